//! The profile of the release build: that builds which should have it do, and no others.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// As cargo compiles what becomes part of a program of the release profile, and such a program.
const LIBRARY: &[&str] = &["--crate-name", "part", "-C", "opt-level=3", "-C", "linker-plugin-lto", "-C", "metadata=1f"];
const PROGRAM: &[&str] =
    &["--crate-name", "whole", "--crate-type", "bin", "-C", "opt-level=3", "-C", "lto", "-C", "metadata=2f"];

/// Where rustc has a linker by itself that takes a list of what is to lie together.
const HOST: &str = "x86_64-unknown-linux-gnu";

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace")
}

fn read(file: &str) -> String {
    fs::read_to_string(workspace().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The compiler that the profile was made with, as it names itself.
fn compiler_of_the_profile() -> String {
    read("profile/made-with").lines().next().expect("its first line names the compiler").to_owned()
}

/// What a compiler of this version is told when cargo tells the wrapper this.
fn passed_on(version: &str, arguments: &[&str]) -> Vec<String> {
    passed_on_at(HOST, version, arguments)
}

fn passed_on_at(host: &str, version: &str, arguments: &[&str]) -> Vec<String> {
    let mut wrapper = Command::new(workspace().join("profile/rustc"));
    // A file of its own: one that was only just written may be open in a process that another test is starting, and cannot be run then.
    wrapper.arg(workspace().join("proxy/tests/profile/compiler")).args(arguments);
    wrapper.env("SHOWN_VERSION", version).env("SHOWN_HOST", host);
    wrapper.env("CARGO_PKG_NAME", "a-package").env("CARGO_PKG_VERSION", "1.2.3");
    printed(&mut wrapper).lines().map(str::to_owned).collect()
}

/// Runs a command, which must succeed and not complain of anything.
fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{command:?} ended with {}: {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

fn names_the_profile(arguments: &[String]) -> bool {
    let profile = format!("-Cprofile-use={}", workspace().join("profile/release.profdata").display());
    arguments.contains(&profile)
}

fn names_the_order(arguments: &[String]) -> bool {
    let order = format!("-Clink-arg=--symbol-ordering-file={}", workspace().join("profile/start-order").display());
    arguments.ends_with(&[
        "-Clink-arg=-Xlinker".to_owned(),
        order,
        "-Clink-arg=-Wl,--no-warn-symbol-ordering".to_owned(),
    ])
}

#[test]
fn what_is_optimized_for_a_program_is_given_the_profile_and_how_to_copy_and_a_name_that_all_release_builds_share() {
    for arguments in [LIBRARY, PROGRAM] {
        let passed_on = passed_on(&compiler_of_the_profile(), arguments);
        assert!(names_the_profile(&passed_on), "{passed_on:?}");
        assert!(passed_on.contains(&"-Cllvm-args=-max-store-memcpy=32".to_owned()), "{passed_on:?}");
        let (named, before) = arguments.split_last().unwrap();
        assert!(named.starts_with("metadata="));
        assert_eq!(passed_on[..before.len()], *before);
        assert_eq!(passed_on[before.len()], "metadata=a-package-1.2.3");
    }
}

#[test]
fn everything_else_is_compiled_as_cargo_says() {
    let others: &[&[&str]] = &[
        &["-vV"],
        &["-", "--crate-name", "___", "--print=file-names", "--crate-type", "bin"],
        // A test build; a build script of a release; bin/instructions; bin/fuzz.
        &["--crate-name", "part", "-C", "embed-bitcode=no", "-C", "debuginfo=1", "-C", "metadata=1f"],
        &["--crate-name", "build_script_build", "-C", "opt-level=0", "-C", "embed-bitcode=no", "-C", "metadata=1f"],
        &["--crate-name", "part", "-C", "opt-level=3", "-C", "lto=off", "-C", "embed-bitcode=no", "-C", "metadata=1f"],
        &["--crate-name", "part", "-C", "opt-level=1", "-C", "embed-bitcode=no", "-C", "metadata=1f"],
    ];
    for arguments in others {
        assert_eq!(passed_on(&compiler_of_the_profile(), arguments), *arguments);
    }
}

#[test]
fn another_compiler_is_given_no_profile() {
    for version in ["rustc 1.95.1 (59807616e 2026-05-28)", "rustc 1.95.0 (59807616e 2026-04-14) (Debian)", "", "clippy"]
    {
        let passed_on = passed_on(version, LIBRARY);
        assert_eq!(passed_on.len(), LIBRARY.len(), "{version}: {passed_on:?}");
    }
}

#[test]
fn who_makes_or_uses_another_profile_is_given_none() {
    for own in [&["-Cprofile-generate=/p"][..], &["-C", "profile-generate=/p"], &["-Cprofile-use=/p"]] {
        let arguments = [LIBRARY, own].concat();
        let passed_on = passed_on(&compiler_of_the_profile(), &arguments);
        assert_eq!(passed_on.len(), arguments.len(), "{passed_on:?}");
        assert!(passed_on.contains(&"metadata=a-package-1.2.3".to_owned()), "{passed_on:?}");
    }
}

#[test]
fn a_program_is_told_what_is_to_lie_together_where_the_linker_is_the_compilers_own() {
    let passed_on = |host, arguments: &[&[&str]]| passed_on_at(host, &compiler_of_the_profile(), &arguments.concat());
    assert!(names_the_order(&passed_on(HOST, &[PROGRAM])));
    for others in [
        passed_on(HOST, &[LIBRARY]),
        passed_on("aarch64-unknown-linux-gnu", &[PROGRAM]),
        passed_on("x86_64-unknown-linux-musl", &[PROGRAM]),
        passed_on(HOST, &[PROGRAM, &["--target", "aarch64-unknown-linux-gnu"]]),
        passed_on(HOST, &[PROGRAM, &["-C", "linker=clang"]]),
        passed_on(HOST, &[PROGRAM, &["-Clinker-features=-lld"]]),
        passed_on(HOST, &[PROGRAM, &["-Clink-arg=-fuse-ld=mold"]]),
    ] {
        assert!(names_the_profile(&others), "{others:?}");
        assert!(!others.iter().any(|argument| argument.contains("symbol-ordering")), "{others:?}");
    }
}

/// With cargo, the compiler and the profile themselves: rustc lists a profile that it has read among the files that its output depends on.
#[test]
fn cargo_compiles_the_release_profile_and_no_other_by_the_profile_and_nothing_is_wrong_with_it() {
    let project = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let root = project.path();
    write_project(root);
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let is_the_same = printed(Command::new(&compiler).arg("-V")).trim() == compiler_of_the_profile();
    let has_linker = printed(Command::new(&compiler).arg("--print=host-tuple")).trim() == HOST;
    for (profile, folder, is_guided) in
        [("release", "release", is_the_same), ("instructions", "instructions", false), ("dev", "debug", false)]
    {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--offline", "--profile", profile]).current_dir(root);
        for name in [
            "RUSTC_WRAPPER",
            "RUSTFLAGS",
            "CARGO_ENCODED_RUSTFLAGS",
            "CARGO_TARGET_DIR",
            "CARGO_BUILD_TARGET",
            "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER",
        ] {
            cargo.env_remove(name);
        }
        printed(&mut cargo);
        let order = printed(&mut Command::new(root.join("target").join(folder).join("whole")));
        assert_eq!(order == "third first fourth second\n", is_guided && has_linker, "{profile}: {order}");
        for (crate_name, becomes_part) in [("part", true), ("whole", true), ("build_script_build", false)] {
            let files = dependencies_of(&root.join("target").join(folder), crate_name);
            let guided = files.contains("/profile/release.profdata");
            assert_eq!(guided, is_guided && becomes_part, "{crate_name} of the profile {profile}: {files}");
        }
    }
}

/// Tells in which order its functions lie in memory.
const PRINTS_ITS_ORDER: &str = r#"
macro_rules! functions {
    ($($name:ident)*) => {
        $(#[unsafe(no_mangle)] #[inline(never)] extern "C" fn $name() { println!("{}", stringify!($name)); })*
        const FUNCTIONS: &[(extern "C" fn(), &str)] = &[$(($name, stringify!($name))),*];
    };
}
functions! { first second third fourth }

fn main() {
    if part::half(4) != 2 {
        FUNCTIONS.iter().for_each(|(function, _)| function());
    }
    let mut functions = FUNCTIONS.to_vec();
    functions.sort_by_key(|(function, _)| *function as usize);
    println!("{}", functions.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(" "));
}
"#;

/// A program, a library and a build script, built as this workspace builds its own.
fn write_project(root: &Path) {
    let write = |file: &str, text: &str| {
        fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
        fs::write(root.join(file), text).unwrap();
    };
    let manifest = read("Cargo.toml");
    let profiles = &manifest[manifest.find("[profile.dev]").unwrap()..];
    let package = |name: &str| format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n");
    let whole = format!("{}[dependencies]\npart = {{ path = \"part\" }}\n[workspace]\n{profiles}", package("whole"));
    write("Cargo.toml", &whole);
    write("build.rs", "fn main() {}\n");
    write("src/main.rs", PRINTS_ITS_ORDER);
    write("part/Cargo.toml", &package("part"));
    write("part/src/lib.rs", "pub fn half(whole: u32) -> u32 {\n    whole / 2\n}\n");
    write("profile/start-order", "third\nof_another_build\nfirst\nfourth\nsecond\n");
    for file in [".cargo/config.toml", "profile/rustc", "profile/made-with", "profile/release.profdata"] {
        fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
        fs::copy(workspace().join(file), root.join(file)).unwrap();
    }
}

/// The files that rustc says a crate was made of.
fn dependencies_of(folder: &Path, crate_name: &str) -> String {
    let mut found = Vec::new();
    collect(folder, &format!("{crate_name}-"), &mut found);
    let [file] = &found[..] else { panic!("{crate_name} has one list: {found:?}") };
    fs::read_to_string(file).unwrap()
}

fn collect(folder: &Path, prefix: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            collect(&path, prefix, found);
        } else if name.starts_with(prefix) && name.ends_with(".d") {
            found.push(path);
        }
    }
}

#[test]
fn the_profile_was_made_with_the_libraries_and_the_compiler_that_releases_are_built_with() {
    let made_with = read("profile/made-with");
    let lock = read("Cargo.lock");
    let libraries: Vec<_> = made_with.lines().skip(1).map(|line| line.split_once(' ').unwrap()).collect();
    assert!(libraries.len() >= 10, "{made_with}");
    for (name, version) in libraries {
        let locked = lock.contains(&format!("name = \"{name}\"\nversion = \"{version}\"\n"));
        assert!(locked, "the profile knows {name} {version}, and Cargo.lock has another: renew it by bin/profile");
    }
    let version = compiler_of_the_profile().split(' ').nth(1).unwrap().to_owned();
    let image = format!("FROM rust:{version}-");
    assert!(
        read("Dockerfile").contains(&image),
        "the image has another compiler than {version}: renew it by bin/profile"
    );
}

#[test]
fn what_is_to_lie_together_is_named_one_function_in_each_line() {
    let order = read("profile/start-order");
    let names: Vec<&str> = order.lines().collect();
    assert!(names.iter().all(|name| !name.is_empty() && !name.contains(char::is_whitespace)), "{names:?}");
    let of_config = names.iter().filter(|name| name.contains("fencepost_config")).count();
    assert!(names.len() >= 1000 && of_config >= 10, "{} names, {of_config} of the configuration's", names.len());
}

#[test]
fn the_image_is_built_with_what_cargo_is_configured_to_run() {
    let left_out = read(".dockerignore");
    let left_out: Vec<&str> = left_out.lines().collect();
    for name in [".cargo", "profile"] {
        assert!(!left_out.contains(&name), "{name} is left out");
    }
}

#[test]
fn the_script_that_makes_the_profile_is_a_script() {
    printed(Command::new("bash").arg("-n").arg(workspace().join("bin/profile")));
}
