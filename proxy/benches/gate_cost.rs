//! What the gate costs: instructions per request of a fencepost as it is, and of one whose gate is
//! reduced to its ratchet.
//!
//! `bin/gate-cost` builds both and runs this.

mod counted;

use std::path::PathBuf;
use std::process::ExitCode;

use self::counted::{CASES, Scene};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    // Cargo adds arguments of its own.
    let binaries: Vec<PathBuf> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).map(Into::into).collect();
    let [whole, ratchet] = &binaries[..] else {
        eprintln!(
            "usage: gate_cost WHOLE RATCHET: two binaries of fencepost; bin/gate-cost makes them"
        );
        return ExitCode::from(64);
    };
    let scene = Scene::open().await;
    println!(
        "{:<22} {:>12} {:>12} {:>8}",
        "instructions/request", "whole gate", "ratchet", "ratio"
    );
    for case in CASES {
        let (whole, ratchet) = (scene.cost(whole, case).await, scene.cost(ratchet, case).await);
        println!("{:<22} {whole:>12.0} {ratchet:>12.0} {:>8.4}", case.name, whole / ratchet);
    }
    ExitCode::SUCCESS
}
