//! `bin/gate-cost` would run: it takes too long to be run with the tests.

use std::path::Path;
use std::process::Command;

use fencepost_tests::Scratch;

/// The gate's own files: what the patch may change.
const PATCHED: [&str; 3] =
    ["policy/src/gate.rs", "proxy/src/worker_permit.rs", "locks/src/cache/tracked/at_gate.rs"];

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace")
}

fn run(command: &mut Command) {
    let output =
        command.output().unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} ended with {}: {said}", output.status);
}

#[test]
fn the_patch_that_measures_the_gate_still_applies() {
    let patch = workspace().join("bin/gate-cost.patch");
    let text = std::fs::read_to_string(&patch).unwrap();
    let named: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("+++ b/")).collect();
    assert_eq!(named, PATCHED);
    let scratch = Scratch::new();
    for file in PATCHED {
        let copy = scratch.path().join(file);
        std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
        std::fs::copy(workspace().join(file), copy).unwrap();
    }
    // If a repository lay around the copy, git would skip what is not part of it, in silence.
    let outside = scratch.path().parent().unwrap();
    let mut apply = Command::new("git");
    apply
        .arg("apply")
        .arg(&patch)
        .current_dir(scratch.path())
        .env("GIT_CEILING_DIRECTORIES", outside);
    run(&mut apply);
    for file in PATCHED {
        let [before, after] = [workspace(), scratch.path()]
            .map(|root| std::fs::read_to_string(root.join(file)).unwrap());
        assert_ne!(before, after, "{file}");
    }
}

#[test]
fn scripts_that_take_minutes_parse() {
    for script in ["bin/gate-cost", "bin/release"] {
        run(Command::new("bash").arg("-n").arg(workspace().join(script)));
    }
}
