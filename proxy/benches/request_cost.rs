//! What requests take: instructions per request of a fencepost, held against what was agreed on.
//!
//! `bin/instructions requests` builds it and runs this.

mod counted;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use fencepost_benches::{Counts, compiler, held_against, of_this_machine};

use self::counted::{CASES, Scene};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    // Cargo adds an argument of its own.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/requests.toml");
    let (binary, updates) = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [binary] => (PathBuf::from(binary), false),
        [binary, "--update"] => (PathBuf::from(binary), true),
        _ => {
            eprintln!(
                "usage: request_cost BINARY [--update]: bin/instructions requests builds the binary"
            );
            return Ok(ExitCode::from(64));
        }
    };
    if !of_this_machine() {
        return Ok(ExitCode::SUCCESS);
    }
    let scene = Scene::open().await;
    let mut counts = Counts::default();
    for case in CASES {
        counts.0.insert(case.name.to_owned(), scene.cost(&binary, case).await);
    }
    if updates {
        std::fs::write(&file, counts.file("request", "bin/instructions requests", &compiler()?))?;
    }
    held_against(
        &Counts::parse(&std::fs::read_to_string(file)?)?,
        &counts,
        "bin/instructions requests",
    )
}
