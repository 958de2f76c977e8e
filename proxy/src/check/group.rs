//! What `fencepost check --live` finds of the group: whether this process may join it, and who has.

use fencepost_config::Config;
use fencepost_locks::{GroupMember, SaidByMember, group_members, may_join};

use crate::output::{Unprinted, print};
use crate::process::Process;

/// Says whether the group's keys may be written, and whose there are. Returns whether all is well.
pub(super) async fn show_group(process: &Process, config: &Config) -> Result<bool, Unprinted> {
    let Some(group) = &config.group else { return Ok(true) };
    let Some(store) = process.sources.etcd(&config.sources[group.source].name) else {
        return Ok(true);
    };
    let (name, prefix) = (&group.name, group.members_prefix());
    let joins = may_join(&store, &prefix).await;
    match &joins {
        Ok(()) => print(format_args!("group {name}: may write keys below {prefix}"))?,
        Err(error) => print(format_args!("group {name}: {error}"))?,
    }
    let members = match group_members(&store, &prefix).await {
        Ok(members) => members,
        Err(error) => {
            if joins.is_ok() {
                print(format_args!("group {name}: {error}"))?;
            }
            return Ok(false);
        }
    };
    if members.is_empty() {
        print(format_args!("group {name}: has no members yet"))?;
    }
    for GroupMember { id, said } in members {
        match said {
            Some(SaidByMember { host, version, state, clear: _ }) => {
                // A service that embeds the fence names no host.
                let place = if host.is_empty() { String::new() } else { format!(" on {host}") };
                print(format_args!(
                    "group {name}: member {id}{place}, version {version}: {}",
                    state.name()
                ))?;
            }
            None => print(format_args!(
                "warning: group {name}: this version cannot read the key of member {id}: run the same version everywhere"
            ))?,
        }
    }
    Ok(joins.is_ok())
}
