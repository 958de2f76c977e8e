//! Commands that come to run as another user, so that their holder may not signal them.

use std::fs::{File, Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;

use fencepost_tests::until;
use rustix::process::{Signal, geteuid};

use crate::holder::Holder;
use crate::stage::Stage;

/// A root that may signal other users' processes no more than anybody else may. It takes root to start it.
const WITHOUT_POWER: [&str; 3] = ["setpriv", "--bounding-set=-kill", "--inh-caps=-kill"];

/// What runs as another user, once it is there, for as long as there is the file `go`.
const ANOTHERS: &str = r#"setpriv --reuid 65534 --clear-groups --inh-caps=-all \
    sh -c 'echo there >> $1/log; while [ -e $1/go ]; do sleep 0.02; done' anothers $stage"#;

/// A stage on which other users may write, too; `None` where the tests may not run anything as another user.
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
    until("it has ended", async || stage.processes().is_empty()).await;
}

#[tokio::test]
async fn a_command_of_another_user_is_named_once() {
    let Some(stage) = stage().await else { return };
    let arguments = ["--once", "--ttl", "10s", "--grace", "200ms"];
    let mut holder = Holder::start_by(&WITHOUT_POWER, &stage, "a", &arguments, &format!("exec {ANOTHERS}"));
    let named = "the command runs as another user, cannot be ended, and may run on beside the next holder's: run hold as that user, or as root";
    holder.until_log(named).await;
    assert_eq!(holder.log(), format!("fencepost hold: {named}\n"), "while the lock is held");
    stage.etcd.pause().await;
    holder.until_log("lost the lock: no renewal was confirmed in time; the command cannot be ended\n").await;
    holder.until_log("the command has not ended in time, and cannot be killed\n").await;
    stage.etcd.resume();
    let mut next = Holder::start(&stage, "b", &[], "true");
    assert_eq!(next.code().await, 0);
    std::fs::remove_file(stage.file("go")).unwrap();
    assert_eq!(holder.code().await, 76);
    assert_eq!(holder.log().matches(named).count(), 1, "{}", holder.log());
    for said in ["ending the command", "killing", "stands still"] {
        holder.does_not_say(said);
    }
    stage.is_left_clean().await;
}

#[tokio::test]
async fn a_watchdog_names_a_command_of_another_user() {
    let cannot = "the command runs as another user, cannot be ended, and may run on beside the next holder's\n";
    let in_part = "ending the command, but for what runs as another user: that may run on beside the next holder's\n";
    let (itself, below) = (format!("exec {ANOTHERS}"), format!("{ANOTHERS} & wait"));
    for (signal, script, said) in [
        (Signal::KILL, &itself, format!("the lock's holder has ended: {cannot}")),
        (Signal::KILL, &below, format!("the lock's holder has ended: {in_part}")),
        (Signal::STOP, &itself, format!("the lock was not renewed in time: {cannot}")),
        (Signal::STOP, &below, format!("the lock was not renewed in time, and its holder stands still: {in_part}")),
    ] {
        let Some(stage) = stage().await else { return };
        let holder = Holder::start_by(&WITHOUT_POWER, &stage, "a", &["--ttl", "2s"], script);
        stage.until_lines("log", 1).await;
        holder.signal(signal);
        holder.until_log(&said).await;
        drop(holder);
        until_none_runs(&stage).await;
    }
}

#[tokio::test]
async fn what_a_command_leaves_running_as_another_user_is_named() {
    let Some(stage) = stage().await else { return };
    let script = format!("{ANOTHERS} & until [ -e $stage/log ]; do sleep 0.02; done; exit 3");
    let mut holder = Holder::start_by(&WITHOUT_POWER, &stage, "a", &[], &script);
    assert_eq!(holder.code().await, 3);
    let left = "the command has left processes behind that run as another user: they cannot be ended, and may run on beside the next holder's";
    assert_eq!(holder.log(), format!("fencepost hold: {left}: run hold as that user, or as root\n"));
    until_none_runs(&stage).await;
    stage.is_left_clean().await;
}
