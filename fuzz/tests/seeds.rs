//! Every input that is kept is run, whatever engine runs besides.

use std::fs;
use std::panic::{set_hook, take_hook};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_fuzz::TARGETS;

/// Whether any thread panicked: the proxy goes on after that, and an engine would end.
static PANICKED: AtomicBool = AtomicBool::new(false);

fn inputs(kind: &str, target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(kind).join(target);
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn every_kept_input_leaves_every_target_content() {
    let tell = take_hook();
    set_hook(Box::new(move |panic| {
        PANICKED.store(true, Ordering::Relaxed);
        tell(panic);
    }));
    for target in TARGETS {
        for path in [inputs("seeds", target.name), inputs("regressions", target.name)].concat() {
            eprintln!("{}", path.display()); // Shown if the next line panics.
            (target.run)(&fs::read(&path).unwrap());
            assert!(
                !PANICKED.load(Ordering::Relaxed),
                "a thread panicked over {} or the one before",
                path.display()
            );
        }
    }
}

#[test]
fn every_target_has_inputs_and_every_input_a_target() {
    for target in TARGETS {
        assert!(!inputs("seeds", target.name).is_empty(), "{} has no seeds", target.name);
    }
    for kind in ["seeds", "regressions"] {
        for folder in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(kind)).unwrap() {
            let name = folder.unwrap().file_name().into_string().unwrap();
            assert!(
                TARGETS.iter().any(|target| target.name == name),
                "{kind}/{name} belongs to no target"
            );
        }
    }
}
