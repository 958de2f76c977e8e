//! Child processes, ports and directories.

use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_tests::{FreePort, Process, Scratch, until};

#[tokio::test]
async fn a_process_is_killed_with_its_value_even_while_it_is_paused() {
    let scratch = Scratch::new();
    let process = Process::start(Command::new("sleep").arg("1000"), &scratch.path().join("log"));
    let directory = format!("/proc/{}", process.id());
    assert!(std::fs::exists(&directory).unwrap());
    process.pause().await;
    drop(process);
    assert!(!std::fs::exists(&directory).unwrap());
}

#[tokio::test]
async fn a_process_outlives_the_thread_that_started_it() {
    let scratch = Scratch::new();
    let log = scratch.path().join("log");
    let starter = std::thread::spawn(move || {
        Process::start(Command::new("sh").args(["-c", "echo started; exec sleep 1000"]), &log)
    });
    let mut process = starter.join().unwrap();
    // Its program has replaced the one that ties it to us.
    until("it has started", async || process.log().contains("started")).await;
    process.pause().await;
    process.resume();
    process.terminate();
    let end = process.end_of_itself().await;
    assert!(!end.success());
}

#[test]
fn no_port_is_given_twice() {
    let ports: Vec<FreePort> = (0..200).map(|_| FreePort::reserve()).collect();
    let mut numbers: Vec<u16> = ports.iter().map(FreePort::number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), ports.len());
    assert!(numbers.iter().all(|number| *number < 32_768));
}

#[test]
fn a_reserved_port_is_free_whatever_is_started_meanwhile() {
    let is_over = AtomicBool::new(false);
    let start = || {
        while !is_over.load(Ordering::Relaxed) {
            assert!(Command::new("true").status().expect("it is there").success());
        }
    };
    std::thread::scope(|scope| {
        (0..4).for_each(|_| _ = scope.spawn(start));
        let bound =
            (0..2000).try_for_each(|_| TcpListener::bind(FreePort::reserve().address()).map(drop));
        is_over.store(true, Ordering::Relaxed);
        bound.expect("it is free");
    });
}
