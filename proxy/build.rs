//! Notes for `--version` and the log which commit this is, and what kind of build.
//!
//! Asks git only for optimized builds: a developer's would be compiled anew with each commit. Without git, or outside of
//! a checkout, the commit is "unknown".

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let profile = std::env::var("PROFILE").expect("cargo sets it");
    let commit =
        given("FENCEPOST_COMMIT").or_else(|| if profile == "release" { head() } else { None });
    let commit = commit.unwrap_or_else(|| "unknown".to_owned());
    let kind = given("FENCEPOST_BUILD").unwrap_or(profile);
    println!("cargo::rustc-env=FENCEPOST_COMMIT={commit}");
    println!("cargo::rustc-env=FENCEPOST_BUILD={kind}");
}

/// The value that the builder sets in the environment, as for an image that is built without the
/// git history.
fn given(name: &str) -> Option<String> {
    println!("cargo::rerun-if-env-changed={name}");
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The commit that is checked out.
fn head() -> Option<String> {
    let arguments = ["rev-parse", "--show-prefix", "--git-path", "logs/HEAD", "--short=12", "HEAD"];
    let output = Command::new("git")
        .args(arguments)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    let [prefix, log, commit] = text.lines().collect::<Vec<_>>().try_into().ok()?;
    // Another project may have unpacked these sources somewhere in its own checkout.
    if prefix != "proxy/" {
        return None;
    }
    // Cargo would run this each time if the file were missing.
    if Path::new(log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    Some(commit.to_owned())
}
