//! `kind = "zookeeper"`.

use std::path::PathBuf;

use super::SourceKind;
use crate::address::HostPort;
use crate::problem::must_be;
use crate::reader::Table;
use crate::tls::parse_file;
use crate::units::{MINUTE, SECOND};

/// A user of ZooKeeper's scheme `digest`. What the file holds is no part of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZookeeperUser {
    /// The name: not empty, no colon, no control characters.
    pub name: String,
    /// The file of the password; an absolute path.
    pub password_file: PathBuf,
}

const IN_CLEARTEXT: &str = "its password goes over the network as it is, since fencepost has no TLS to ZooKeeper: use a network that you trust";

pub(super) fn read(t: &mut Table<'_>) -> Option<SourceKind> {
    t.require_items("servers", r#"a server of the ZooKeeper ensemble, like "127.0.0.1:2181""#);
    let servers = t.list("servers", HostPort::parse);
    let session_timeout = t.time("session_timeout", SECOND..=10 * MINUTE, 6 * SECOND);
    let has_user = !t.written(&["username", "password_file"]).is_empty();
    let user = has_user.then(|| ZookeeperUser::read(t)).flatten();
    if user.is_some() {
        t.warning("username", IN_CLEARTEXT);
    }
    let servers = servers.into_iter().map(|(_, server)| server).collect();
    Some(SourceKind::Zookeeper { servers, session_timeout, user })
}

impl ZookeeperUser {
    fn read(t: &mut Table<'_>) -> Option<ZookeeperUser> {
        let name = t.required("username", "whose password_file it is", parse_username);
        let file = t.required("password_file", "the file of the user's password", parse_file);
        Some(ZookeeperUser { name: name?, password_file: file? })
    }
}

/// The server takes what stands before the first colon for the name.
fn parse_username(name: &str) -> Result<String, String> {
    let is_name = !name.is_empty() && !name.contains(|c: char| c.is_control() || c == ':');
    if is_name {
        Ok(name.to_owned())
    } else {
        Err(must_be("the name of a user of ZooKeeper, without a colon", name))
    }
}
