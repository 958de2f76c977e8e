//! Commands that run and end under a lock, and what is left of them.

use std::path::PathBuf;

use fencepost_tests::{Scratch, eventually, until};
use rustix::process::Signal;

use crate::holder::{BINARY, Holder, is_wrong_usage};
use crate::proxy::ProxyFiles;
use crate::stage::{LOCK, Stage};

#[tokio::test]
async fn a_command_has_its_tenure_in_its_environment() {
    let stage = Stage::set().await;
    let script = r#"echo "$FENCE_LOCK $FENCE_OWNER $FENCE_REVISION" > $stage/env
        until [ -e $stage/go ]; do sleep 0.02; done; exit 7"#;
    let mut holder = Holder::start(&stage, "shard ü", &[], script);
    let record = stage.until_held_by("shard ü").await;
    let told = stage.until_lines("env", 1).await;
    assert_eq!(told, [format!("{LOCK} shard%20%C3%BC {}", record.create_revision())]);
    std::fs::write(stage.file("go"), "").unwrap();
    assert_eq!(holder.code().await, 7);
    assert_eq!(holder.log(), "", "who does not ask for words gets none");
    stage.is_left_clean().await;
}

#[tokio::test]
async fn exit_codes_are_those_that_a_shell_user_expects() {
    let stage = Stage::set().await;
    for (command, code, said) in [
        (&["true"][..], 0, ""),
        (&["sh", "-c", "exit 255"], 255, ""),
        (&["sh", "-c", "kill -KILL $$"], 137, ""),
        (&["sh", "-c", "kill -TERM $$"], 143, ""),
        (
            &["no-such-command"],
            127,
            "fencepost hold: no-such-command cannot be run: No such file or directory",
        ),
        (&["/etc/passwd"], 126, "fencepost hold: /etc/passwd cannot be run: Permission denied"),
    ] {
        let mut holder = Holder::run(&stage, "a", &[], command);
        assert_eq!(holder.code().await, code, "{command:?}");
        assert!(holder.log().starts_with(said), "{command:?}: {}", holder.log());
        stage.is_left_clean().await;
    }
    let help = std::process::Command::new(BINARY).args(["hold", "--help"]).output().unwrap();
    assert_eq!(help.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&help.stdout).contains("FENCE_REVISION"));
    let of_lock = format!("--lock {LOCK} --owner a");
    let (hold, command) = (format!("--etcd http://127.0.0.1:1 {of_lock}"), "-- true");
    for wrong in [
        format!("{of_lock} {command}"),
        format!("--etcd 127.0.0.1 {of_lock} {command}"),
        format!("{hold} --ttl 1500ms {command}"),
        format!("--etcd http://127.0.0.1:1 --lock= --owner a {command}"),
        format!("{hold} --try --queue {command}"),
        format!("{hold} --etcd-ca /none {command}"),
        format!("{hold} --fence here {command}"),
        hold.clone(),
    ] {
        is_wrong_usage(&wrong, "");
    }
}

#[test]
fn ways_to_etcd_that_make_no_sense_are_wrong_usage() {
    let (files, scratch) = (ProxyFiles::new(), Scratch::new());
    files.issue_master("a");
    let file = |name: &str| files.path().join(name).display().to_string();
    let (ca, pem, key) = (file("ca.pem"), file("master.pem"), file("master.key"));
    let password = scratch.path().join("password").display().to_string();
    std::fs::write(&password, "secret\n").unwrap();
    let untrusted = "--etcd: no authority is named whose certificates are to be trusted at https:// endpoints of etcd: \
        name its file by --etcd-ca\n";
    let unused = "--etcd-ca, --etcd-cert and --etcd-key: authorities and certificates mean nothing with http:// endpoints";
    let different = "--etcd: \"https://h:2\" must begin as the other endpoints of etcd do";
    let (plain, secure) = ("--etcd http://h:1", "--etcd https://h:1");
    for (options, says) in [
        (secure.to_owned(), untrusted),
        (format!("{secure} --etcd-cert {pem} --etcd-key {key}"), untrusted),
        (format!("{plain} --etcd-ca {ca}"), unused),
        (format!("{plain} --etcd-cert {pem} --etcd-key {key}"), unused),
        (format!("{plain},https://h:2 --etcd-ca {ca}"), different),
        (
            format!("{plain},http://h:1/"),
            "--etcd: \"http://h:1/\" is in the list of etcd's endpoints already",
        ),
        ("--etcd http://me:s3cret@h:1".to_owned(), "--etcd: \"…@h:1\" is no endpoint of etcd"),
        (
            "--etcd unix:///run/etcd.sock".to_owned(),
            "--etcd: etcd by a unix socket is not offered: have it listen on a loopback address",
        ),
        (
            "--etcd http://[fe80::1%eth0]:2379".to_owned(),
            "--etcd: an IPv6 address with a zone is not offered: write a global address",
        ),
        (
            format!("{secure} --etcd-ca {pem} --etcd-cert {pem} --etcd-key {pem}"),
            &format!("--etcd-key: {pem}: has no private key in it"),
        ),
        (
            format!("{secure} --etcd-ca {ca} --etcd-server-name a..b"),
            "--etcd-server-name: \"a..b\" is not a name that a certificate can be for",
        ),
        (format!("{plain} --etcd-ca {ca} --etcd-server-name etcd.example"), unused),
        // Only worth a word: what is wrong here is the time to live.
        (
            format!("{plain} --etcd-user master --etcd-password-file {password} --ttl 1500ms"),
            "--etcd-user: the password goes over the network as it is",
        ),
    ] {
        let hold = format!("{options} --lock {LOCK} --owner a -- true");
        is_wrong_usage(&hold, &format!("fencepost hold: {says}"));
    }
}

#[tokio::test]
async fn who_only_tries_does_not_wait_and_says_who_holds_the_lock() {
    let stage = Stage::set().await;
    let script = "trap 'exit 0' TERM; echo >> $stage/log; while :; do sleep 0.02; done";
    let mut first = Holder::start(&stage, "first", &[], script);
    stage.until_lines("log", 1).await;
    for (arguments, code) in [(&["--try"][..], 75), (&["--try", "-E", "9"], 9)] {
        let mut second = Holder::start(&stage, "second", arguments, "touch $stage/ran");
        assert_eq!(second.code().await, code);
        assert_eq!(second.log(), "fencepost hold: the lock is held by first\n");
    }
    first.signal(Signal::TERM);
    assert_eq!(first.code().await, 0);
    assert!(!stage.file("ran").exists());
    let mut third = Holder::start(&stage, "third", &["--try"], "touch $stage/ran");
    assert_eq!(third.code().await, 0);
    assert!(stage.file("ran").exists());
    stage.is_left_clean().await;
    stage.client().put(LOCK, "", None).await.unwrap();
    let mut fourth = Holder::start(&stage, "fourth", &["--try"], "true");
    assert_eq!(fourth.code().await, 75);
    let says =
        "the lock is held by \"\"; that key has no lease: it stays until somebody deletes it";
    assert_eq!(fourth.log(), format!("fencepost hold: {says}\n"));
}

/// Nobody saw why a lock was waited for, and that it would be for ever.
#[tokio::test]
async fn who_waits_says_behind_whom_whatever_the_owner() {
    let stage = Stage::set().await;
    let key = stage.client().put(LOCK, "x".repeat(300_000), None).await.unwrap();
    let since = key.header().unwrap().revision();
    let cut = "x".repeat(256);
    let said = format!(
        "waiting behind {cut}…, which has {LOCK} since revision {since}; that key has no lease: it stays until somebody deletes it\n"
    );
    let mut first = Holder::start(&stage, "first", &["--queue", "--verbose"], "true");
    let mut second = Holder::start(&stage, "second", &[], "true");
    first.until_log(&said).await;
    second.until_log(&said).await;
    let entry = stage.keys().await.into_iter().find(|key| key.value() == b"first").unwrap();
    let mut third = Holder::start(&stage, "third", &["--queue", "--verbose"], "true");
    let (key, since) = (entry.key_str().unwrap(), entry.create_revision());
    third
        .until_log(&format!("waiting behind first, which has {key} since revision {since}\n"))
        .await;
    let mut other = Holder::start(&stage, "other", &["--try"], "true");
    assert_eq!(other.code().await, 75);
    let told = format!(
        "fencepost hold: the lock is held by {cut}…; that key has no lease: it stays until somebody deletes it\n"
    );
    assert_eq!(other.log(), told);
    stage.client().delete(LOCK, None).await.unwrap();
    for holder in [&mut first, &mut second, &mut third] {
        assert_eq!(holder.code().await, 0, "{}", holder.log());
    }
    assert_eq!(second.log(), format!("fencepost hold: {said}"));
    stage.is_left_clean().await;
}

/// It said that "signals cannot be listened to".
#[tokio::test]
async fn a_system_without_proc_is_told_that_it_is_needed() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: it takes root to mount something over /proc");
        return;
    }
    let stage = Stage::set().await;
    let hide = ["unshare", "-m", "sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"", "sh"];
    let mut holder = Holder::start_by(&hide, &stage, "a", &[], "true");
    assert_eq!(holder.code().await, 1);
    holder.says(
        "/proc/self/status: No such file or directory (os error 2): hold needs /proc, mount it\n",
    );
}

#[tokio::test]
async fn what_a_command_leaves_ends_before_its_lock_is_given_back() {
    let stage = Stage::set().await;
    // One that ends when asked to, one that has left the group and does not, and the child of that
    // one.
    let left = r#"
        sh -c 'trap "echo asked >> $1/log; exit" TERM; touch $1/ready; while :; do sleep 0.02; done' left $stage &
        setsid sh -c 'trap "" TERM; sh -c "while :; do date +%s%N > $1/beat; sleep 0.02; done" child $1' left $stage &
        until [ -e $stage/beat ] && [ -e $stage/ready ]; do sleep 0.02; done
        exit 3"#;
    let mut holder = Holder::start(&stage, "a", &["--grace", "2s", "--verbose"], left);
    assert_eq!(holder.code().await, 3);
    assert_eq!(stage.read("log"), "asked\n");
    let log = holder.log();
    let said =
        ["left processes behind", "has not ended in time: killing it", "gave /shards/2/lock back"];
    let places = said.map(|said| log.find(said).unwrap_or_else(|| panic!("no {said:?} in {log}")));
    assert!(places.is_sorted(), "{log}");
    stage.is_left_clean().await;
}

#[tokio::test]
async fn what_is_asked_to_end_with_its_command_is_asked_once() {
    let stage = Stage::set().await;
    let script = r#"
        sh -c 'trap "echo asked >> $1/log" TERM; trap "go=1" USR1; echo ready >> $1/log
            until [ "$go" ]; do sleep 0.02; done; echo over >> $1/log' left $stage &
        wait"#;
    let mut holder = Holder::start(&stage, "a", &["--grace", "60s"], script);
    stage.until_lines("log", 1).await;
    let (command, _) =
        holder.children().into_iter().find(|(_, arguments)| arguments.starts_with("sh\0")).unwrap();
    holder.signal(Signal::TERM);
    let command = PathBuf::from(format!("/proc/{}", command.as_raw_nonzero()));
    until("leave was taken of the command", async || !command.exists()).await;
    stage.until_lines("log", 2).await;
    holder.signal(Signal::USR1);
    assert_eq!(holder.code().await, 143);
    assert_eq!(stage.read("log"), "ready\nasked\nover\n");
    stage.is_left_clean().await;
}

#[tokio::test]
async fn orphans_of_a_command_are_taken_in_and_leave_no_zombies() {
    let stage = Stage::set().await;
    let script = r#"for i in 1 2 3 4 5; do (sh -c 'exit 0' & ) ; done; echo ready > $stage/ready
        trap 'exit 0' TERM; while :; do sleep 0.02; done"#;
    let mut holder = Holder::start(&stage, "a", &[], script);
    stage.until_lines("ready", 1).await;
    eventually("no zombies are left", async || {
        let above = format!("PPid:\t{}\n", holder.pid().as_raw_nonzero());
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let statuses =
            entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("status")).ok());
        let children: Vec<String> = statuses.filter(|status| status.contains(&above)).collect();
        // The command and the watchdog.
        (children.len() == 2 && children.iter().all(|child| !child.contains("State:\tZ")))
            .then_some(())
    })
    .await;
    holder.signal(Signal::TERM);
    assert_eq!(holder.code().await, 0);
    stage.is_left_clean().await;
}

#[tokio::test]
async fn a_command_has_its_own_process_group_unless_in_foreground() {
    let stage = Stage::set().await;
    // Its child is ended either way.
    let script = "sh -c 'while :; do sleep 0.02; : $1; done' child $stage & ps -o pgid= -p $$ > $stage/group; exit 0";
    for (arguments, stays) in [(&[][..], false), (&["--foreground"], true)] {
        let mut holder = Holder::start(&stage, "a", arguments, script);
        let own =
            rustix::process::getpgid(Some(holder.pid())).unwrap().as_raw_nonzero().to_string();
        assert_eq!(holder.code().await, 0);
        assert_eq!(stage.read("group").trim() == own, stays, "{arguments:?}");
        stage.is_left_clean().await;
    }
}
