//! Commands that come to run as another user, so that their holder may not signal them.

use std::fs::{File, Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;

use fencepost_tests::eventually;
use rustix::process::geteuid;

use crate::holder::Holder;
use crate::stage::{LOCK, Stage};

/// A root that may signal other users' processes no more than anybody else may. It takes root to
/// start it.
const WITHOUT_POWER: [&str; 3] = ["setpriv", "--bounding-set=-kill", "--inh-caps=-kill"];

/// What runs as another user, once it is there, for as long as there is the file `go`.
const OTHER_USERS: &str = r#"setpriv --reuid 65534 --clear-groups --inh-caps=-all \
    sh -c 'echo there >> $1/log; while [ -e $1/go ]; do sleep 0.02; done' other $stage"#;

/// A stage on which other users may write, too; `None` where the tests may not run anything as
/// another user.
async fn stage() -> Option<Stage> {
    if !geteuid().is_root() {
        println!("skipped: it takes root to run a command as another user");
        return None;
    }
    let stage = Stage::set().await;
    set_permissions(stage.file(""), Permissions::from_mode(0o777)).unwrap();
    File::create(stage.file("go")).unwrap();
    Some(stage)
}

/// Waits until what ran on has ended.
async fn until_none_runs(stage: &Stage) {
    std::fs::remove_file(stage.file("go")).unwrap();
    eventually("it has ended", async || stage.processes().is_empty().then_some(())).await;
}

#[tokio::test]
async fn command_of_another_user_is_named_when_it_cannot_be_killed() {
    let Some(stage) = stage().await else { return };
    let arguments = ["--once", "--ttl", "10s", "--grace", "200ms"];
    let mut holder =
        Holder::start_by(&WITHOUT_POWER, &stage, "a", &arguments, &format!("exec {OTHER_USERS}"));
    stage.until_lines("log", 1).await;
    stage.client().delete(LOCK, None).await.unwrap();
    holder.until_log("runs as another user, so that it cannot be killed; it may run on beside the next holder's").await;
    until_none_runs(&stage).await;
    assert_eq!(holder.code().await, 76, "{}", holder.log());
    stage.is_left_clean().await;
}

#[tokio::test]
async fn what_a_command_leaves_as_another_user_is_named() {
    let Some(stage) = stage().await else { return };
    let script = format!("{OTHER_USERS} & until [ -e $stage/log ]; do sleep 0.02; done; exit 3");
    let mut holder = Holder::start_by(&WITHOUT_POWER, &stage, "a", &[], &script);
    assert_eq!(holder.code().await, 3);
    let left =
        "the command has left a process behind that runs as another user and cannot be ended; ";
    let advice = "it may run on beside the next holder's: run hold as that user, or as root";
    assert_eq!(holder.log(), format!("fencepost hold: {left}{advice}\n"));
    until_none_runs(&stage).await;
    stage.is_left_clean().await;
}
