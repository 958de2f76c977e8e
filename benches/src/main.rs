//! Counts instructions and compares them with what was agreed on: `bin/instructions`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use fencepost_benches::{Case, Counts, compiler, held_against, instructions_of, of_this_machine};

/// How often a step is taken in the shorter of two runs; the difference is free of what comes
/// before the first.
const TIMES: u64 = 1_000;

fn main() -> anyhow::Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["run", case, times] => {
            let case = Case::named(case).with_context(|| format!("there is no case {case}"))?;
            case.run(times.parse()?);
            Ok(ExitCode::SUCCESS)
        }
        [] => compare(),
        ["--update"] => update(),
        _ => {
            eprintln!("usage: bin/instructions [--update]");
            Ok(ExitCode::from(64))
        }
    }
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.toml")
}

fn compare() -> anyhow::Result<ExitCode> {
    if !of_this_machine() {
        return Ok(ExitCode::SUCCESS);
    }
    let agreed = Counts::parse(&std::fs::read_to_string(file())?)
        .context("instructions.toml cannot be read")?;
    held_against(&agreed, &count()?, "bin/instructions")
}

fn update() -> anyhow::Result<ExitCode> {
    let counts = count()?;
    std::fs::write(file(), counts.file("step", "bin/instructions", &compiler()?))?;
    println!("{} cases in {}", counts.0.len(), file().display());
    Ok(ExitCode::SUCCESS)
}

fn count() -> anyhow::Result<Counts> {
    let mut counts = Counts::default();
    for case in Case::ALL {
        let (once, twice) = (instructions(case, TIMES)?, instructions(case, 2 * TIMES)?);
        ensure!(once > TIMES, "callgrind has not seen {} run", case.name());
        counts.0.insert(case.name().to_owned(), (twice - once) as f64 / TIMES as f64);
    }
    Ok(counts)
}

/// All instructions of this program in a run of its own.
fn instructions(case: Case, times: u64) -> anyhow::Result<u64> {
    let (program, directory) = (std::env::current_exe()?, tempfile::tempdir()?);
    let out = directory.path().join("callgrind");
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--tool=callgrind", "--compress-strings=no", "--compress-pos=no"]);
    valgrind.arg(format!("--callgrind-out-file={}", out.display()));
    valgrind.arg(&program).args(["run", case.name(), &times.to_string()]);
    let status = valgrind
        .status()
        .context("valgrind cannot be started: bin/install-tools test installs it")?;
    ensure!(status.success(), "valgrind ended with {status}");
    let object = program.to_str().context("the path of this program is not text")?;
    Ok(instructions_of(object, &std::fs::read_to_string(out)?))
}
