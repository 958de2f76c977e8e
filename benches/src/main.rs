//! Counts instructions and compares them with what was agreed on: `bin/instructions`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use fencepost_benches::{Case, Change, Counts, instructions_of};

/// How often a step is taken in the shorter of two runs; the difference is free of what comes before the first.
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
    if !cfg!(target_arch = "x86_64") {
        println!("The counts that were agreed on are of x86-64: nothing to compare with on this machine.");
        return Ok(ExitCode::SUCCESS);
    }
    let agreed = Counts::parse(&std::fs::read_to_string(file())?).context("instructions.toml cannot be read")?;
    println!("{:<24} {:>10} {:>10} {:>8}", "instructions a call", "agreed on", "now", "ratio");
    let (mut worse, mut better) = (0, 0);
    for (name, now) in count()?.0 {
        let before = agreed.0.get(&name).copied().unwrap_or(f64::NAN);
        let word = match agreed.change(&name, now) {
            Change::None => "",
            Change::Better => "  better",
            Change::Worse => "  WORSE",
        };
        worse += u32::from(word.contains("WORSE"));
        better += u32::from(word.contains("better"));
        println!("{name:<24} {before:>10.1} {now:>10.1} {:>8.4}{word}", now / before);
    }
    if worse + better > 0 {
        println!(
            "\nIf that is meant: bin/instructions --update. Another compiler than {} changes counts too.",
            compiler()?
        );
    }
    Ok(if worse > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn update() -> anyhow::Result<ExitCode> {
    let counts = count()?;
    std::fs::write(file(), counts.file(&compiler()?))?;
    println!("{} cases in {}", counts.0.len(), file().display());
    Ok(ExitCode::SUCCESS)
}

/// The compiler of this machine, which is the one that has built this.
fn compiler() -> anyhow::Result<String> {
    let printed = Command::new("rustc").arg("--version").output().context("rustc cannot be started")?;
    Ok(String::from_utf8_lossy(&printed.stdout).trim().to_owned())
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
    let status = valgrind.status().context("valgrind cannot be started: bin/install-tools test installs it")?;
    ensure!(status.success(), "valgrind ended with {status}");
    let object = program.to_str().context("the path of this program is not text")?;
    Ok(instructions_of(object, &std::fs::read_to_string(out)?))
}
