//! Signals: to the command, or to who waits for the lock.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fencepost_tests::{Process, Relay, eventually};
use rustix::process::{Pid, Signal, kill_process};

use crate::holder::{BINARY, Holder};
use crate::stage::{LOCK, Stage};

#[tokio::test]
async fn signals_are_passed_on_and_the_command_says_how_it_ends() {
    let stage = Stage::set().await;
    let script = r#"for signal in HUP USR1 USR2 INT QUIT; do trap "echo $signal >> $stage/log" $signal; done
        trap 'exit 9' TERM; echo ready >> $stage/log; while :; do sleep 0.02; done"#;
    let mut holder = Holder::start(&stage, "a", &[], script);
    stage.until_lines("log", 1).await;
    let mut expected = vec!["ready"];
    for (signal, name) in [
        (Signal::HUP, "HUP"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
    ] {
        holder.signal(signal);
        expected.push(name);
        assert_eq!(stage.until_lines("log", expected.len()).await, expected);
    }
    holder.signal(Signal::TERM);
    assert_eq!(holder.code().await, 9);
    stage.is_left_clean().await;
}

/// `nohup` protects the command from the end of its terminal.
#[tokio::test]
async fn signals_ignored_from_the_start_stay_ignored() {
    let stage = Stage::set().await;
    let ignored = [Signal::HUP, Signal::INT, Signal::QUIT];
    let script = "trap 'echo on >> $stage/log' USR1; trap 'exit 9' TERM; echo ready >> $stage/log; while :; do sleep 0.02; done";
    let mut holder =
        Holder::start_by(&["env", "--ignore-signal=HUP,INT,QUIT"], &stage, "a", &[], script);
    stage.until_lines("log", 1).await;
    let mut waiting =
        Holder::start_by(&["env", "--ignore-signal=HUP,INT,QUIT"], &stage, "b", &[], "true");
    eventually("b waits", async || (stage.leases().await == 2).then_some(())).await;
    for signal in ignored {
        holder.signal(signal);
        waiting.signal(signal);
    }
    // The next one finds the command as it was.
    holder.signal(Signal::USR1);
    assert_eq!(stage.until_lines("log", 2).await, ["ready", "on"]);
    waiting.signal(Signal::TERM);
    holder.signal(Signal::TERM);
    assert_eq!([waiting.code().await, holder.code().await], [143, 9]);
    stage.is_left_clean().await;
}

#[tokio::test]
async fn a_stubborn_command_is_killed_after_its_grace_under_its_lock() {
    let stage = Stage::set().await;
    let script = "trap 'echo asked >> $stage/log' TERM; echo ready >> $stage/log; while :; do sleep 0.02; done";
    // Longer than a lease lives: it is renewed until the command has ended.
    let mut holder = Holder::start(&stage, "a", &["--ttl", "4s", "--grace", "5s"], script);
    stage.until_lines("log", 1).await;
    let (asked, pid) = (Instant::now(), holder.pid());
    let again_and_again = async {
        for lines in 2.. {
            let _ = kill_process(pid, Signal::TERM);
            stage.until_lines("log", lines).await;
        }
    };
    let code = tokio::select! {
        code = holder.code() => code,
        () = again_and_again => panic!("it has no end"),
    };
    assert_eq!(code, 137);
    assert!(asked.elapsed().as_millis() >= 5_000);
    assert!(!holder.log().contains("lost the lock"), "{}", holder.log());
    stage.is_left_clean().await;
}

#[tokio::test]
async fn who_is_told_to_end_while_it_waits_leaves_nothing_behind() {
    let stage = Stage::set().await;
    // It waits without a process of its own for that: one that has just been forked looks like
    // another command.
    let script = "mkfifo $stage/never; exec 3<>$stage/never; trap 'exit 0' TERM; echo ready >> $stage/log; read nothing <&3";
    let mut held = Holder::start(&stage, "a", &["--ttl", "600s"], script);
    stage.until_lines("log", 1).await;
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let mut waiting = Holder::start(&stage, "b", &["--queue"], "true");
        eventually("b queues", async || (stage.keys().await.len() == 2).then_some(())).await;
        waiting.signal(signal);
        assert_eq!(waiting.code().await, code);
        // The holder and its command: of the one that waited, not even what was to become its
        // command.
        assert_eq!(stage.processes().len(), 2, "{:?}", stage.processes());
        assert_eq!((stage.keys().await.len(), stage.leases().await), (1, 1));
    }
    held.signal(Signal::TERM);
    assert_eq!(held.code().await, 0);
    stage.is_left_clean().await;
}

/// The kernel stops a background process that writes to a terminal with `tostop`.
#[tokio::test]
async fn a_terminal_that_stops_its_background_stops_no_watchdog() {
    let stage = Stage::set().await;
    let hold = |command: &str| {
        format!(
            "stty tostop; sh -c 'echo $$ >> {stage}/pid; exec {BINARY} hold --etcd {etcd} --lock {LOCK} --owner a --ttl 2s --once \
                -- {command}'; echo ended $?",
            stage = stage.file("").display(),
            etcd = stage.etcd.endpoint(),
        )
    };
    let start = |command: &str, log: &str| {
        let mut script = Command::new("script");
        script.args(["-q", "-c", &hold(command), "/dev/null"]).stdin(Stdio::null());
        Process::start(&script, &stage.file(log))
    };
    // While the lock is taken and no command runs yet, there is nobody that a watchdog would end.
    let command = format!("sh -c \"echo >> {}; exec sleep 1000\"", stage.file("log").display());
    let mut terminal = start(&command, "terminal");
    stage.until_lines("log", 1).await;
    let pid = Pid::from_raw(stage.until_lines("pid", 1).await[0].parse().unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let said = "its holder stands still: ending the command";
    eventually("its watchdog says so", async || {
        stage.read("terminal").contains(said).then_some(())
    })
    .await;
    kill_process(pid, Signal::CONT).unwrap();
    terminal.end_of_itself().await;
    assert!(stage.read("terminal").contains("ended 76"), "{}", stage.read("terminal"));

    let mut terminal = start("no-such-command", "second");
    terminal.end_of_itself().await;
    assert!(
        stage.read("second").contains("no-such-command cannot be run: "),
        "{}",
        stage.read("second")
    );
    assert!(stage.read("second").contains("ended 127"), "{}", stage.read("second"));
    stage.is_left_clean().await;
}

/// It went on asking etcd for a lease that nobody wanted any more, for 11 s, without a word.
#[tokio::test]
async fn a_holder_without_etcd_says_so_and_ends_in_time() {
    let stage = Stage::set().await;
    let nobody = fencepost_tests::FreePort::reserve();
    let way = Relay::before(&stage.etcd).await;
    way.freeze().await;
    for (address, within) in
        [nobody.address(), way.address()].map(|address| (address, Duration::from_secs(5)))
    {
        let mut holder =
            Holder::start_at(&format!("http://{address}"), &stage.file(""), "a", &[], "true");
        let silent = format!("etcd does not answer: http://{address}: ");
        holder.until_log(&silent).await;
        holder.signal(Signal::TERM);
        let asked = Instant::now();
        assert_eq!(holder.code().await, 143);
        assert!(asked.elapsed() < within, "{address}: {:?}", asked.elapsed());
        assert_eq!(holder.log().matches(&silent).count(), 1, "{}", holder.log());
    }
    stage.is_left_clean().await;
}

/// It was tried twice, one after the other, for 3 s each.
#[tokio::test]
async fn a_lock_that_cannot_be_given_back_is_left_to_expire() {
    let stage = Stage::set().await;
    let way = Relay::before(&stage.etcd).await;
    let script = "trap 'exit 9' TERM; echo ready >> $stage/log; while :; do sleep 0.02; done";
    let mut holder = Holder::start_at(
        &format!("http://{}", way.address()),
        &stage.file(""),
        "a",
        &["--ttl", "60s"],
        script,
    );
    stage.until_lines("log", 1).await;
    way.freeze().await;
    holder.signal(Signal::TERM);
    let asked = Instant::now();
    assert_eq!(holder.code().await, 9);
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    let left =
        "the lock is not known to be given back; it gets free within 60s: etcd does not answer: ";
    assert_eq!(holder.log().matches(left).count(), 1, "{}", holder.log());
}

#[tokio::test]
async fn try_does_not_wait_for_an_absent_etcd() {
    let nobody = fencepost_tests::FreePort::reserve();
    let began = Instant::now();
    let mut holder =
        Holder::at(&format!("http://{}", nobody.address()), "a", &["--try"], &["true"]);
    assert_eq!(holder.code().await, 1);
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    assert!(
        holder.log().contains("the lock cannot be taken: etcd does not answer: "),
        "{}",
        holder.log()
    );
}

/// In a group of its own it is in its terminal's background, and stopped as soon as it reads from
/// there.
#[tokio::test]
async fn a_command_that_reads_from_its_terminal_is_named() {
    let stage = Stage::set().await;
    let words = format!(
        "echo $$ > {stage}/pid; exec env --default-signal=INT {BINARY} hold --etcd {etcd} --lock {LOCK} --owner a -- sh -c 'exec cat # {stage}'",
        stage = stage.file("").display(),
        etcd = stage.etcd.endpoint(),
    );
    let mut terminal = Process::start(
        Command::new("script").args(["-q", "-e", "-c", &words, "/dev/null"]).stdin(Stdio::null()),
        &stage.file("terminal"),
    );
    let said = "--foreground leaves it there";
    eventually("it is said", async || stage.read("terminal").contains(said).then_some(())).await;
    let pid = stage.until_lines("pid", 1).await[0].parse().unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::INT).unwrap();
    assert_eq!(terminal.end_of_itself().await.code(), Some(130), "{}", stage.read("terminal"));
    stage.is_left_clean().await;
}

/// Ctrl-Z as the README describes it: the shell sees a stopped job, and the command ends with its
/// lock. `fg` runs the command again.
#[tokio::test]
async fn a_holder_stopped_from_the_keyboard_reruns_its_command() {
    let stage = Stage::set().await;
    let command = r#"trap 'echo "end $FENCE_REVISION" >> $stage/log; exit 0' TERM; echo "begin $FENCE_REVISION" >> $stage/log
        while :; do sleep 0.02; done"#;
    std::fs::write(stage.file("command"), command).unwrap();
    // Jobs that can be stopped are those of a shell that controls them, at a terminal.
    let session = format!(
        r#"set -m; export stage={stage}
        sh -c 'echo $$ > $stage/pid; exec {BINARY} hold --etcd {etcd} --lock {LOCK} --owner a --ttl 2s -- sh $stage/command'
        echo $? >> $stage/jobs
        until [ -e $stage/go ]; do sleep 0.02; done
        fg
        echo $? >> $stage/jobs"#,
        stage = stage.file("").display(),
        etcd = stage.etcd.endpoint(),
    );
    std::fs::write(stage.file("session"), session).unwrap();
    let words = format!("exec bash {}", stage.file("session").display());
    let mut script = Command::new("script");
    script.args(["-q", "-c", &words, "/dev/null"]).stdin(Stdio::null());
    let mut terminal = Process::start(&script, &stage.file("terminal"));
    let first = stage.until_lines("log", 1).await.remove(0);
    let pid = Pid::from_raw(stage.until_lines("pid", 1).await[0].parse().unwrap()).unwrap();
    kill_process(pid, Signal::TSTP).unwrap();
    assert_eq!(stage.until_lines("jobs", 1).await, ["148"], "stopped: {}", stage.read("terminal"));
    // It is another's meanwhile, and then the command has ended. Processes that end while they are
    // listed are none of this test's business.
    let mut next =
        Holder::start(&stage, "b", &[], "cat /proc/[0-9]*/cmdline > $stage/beside; exit 0");
    assert_eq!(next.code().await, 0);
    let beside = stage.read("beside").contains(&format!("sh\0{}", stage.file("command").display()));
    assert!(!beside, "it outlived its lock");
    std::fs::write(stage.file("go"), "").unwrap();
    let log = stage.until_lines("log", 2).await;
    let revision = |line: &str| line.strip_prefix("begin ").unwrap().parse::<u64>().unwrap();
    assert!(revision(&log[0]) < revision(&log[1]) && log[0] == first, "{log:?}");
    kill_process(pid, Signal::TERM).unwrap();
    terminal.end_of_itself().await;
    assert_eq!(stage.read("jobs"), "148\n0\n", "{}", stage.read("terminal"));
    stage.is_left_clean().await;
}
