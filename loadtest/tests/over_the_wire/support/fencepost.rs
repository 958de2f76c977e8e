//! A running fencepost.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use fencepost_tests::{Etcd, FreePort, Process, Scratch, eventually, request};

/// A fencepost before one worker. It ends with this value.
pub(crate) struct Fencepost {
    listen: FreePort,
    /// Ends before the directory of its log does.
    process: Process,
    _scratch: Scratch,
}

impl Fencepost {
    /// Starts it with this worker and lock, and returns once it is ready.
    pub(crate) async fn start(
        worker: &FreePort,
        etcd: &Etcd,
        lock: &str,
        layout: &str,
    ) -> Fencepost {
        let (listen, admin) = (FreePort::reserve(), FreePort::reserve());
        let mut command = Command::new(fencepost_binary());
        command.arg("serve").args(["--listen", &listen.address().to_string()]);
        command.args([
            "--upstream",
            &format!("http://{}", worker.address()),
            "--etcd",
            &etcd.endpoint(),
        ]);
        command.args(["--lock", lock, "--layout", layout, "--admin", &admin.address().to_string()]);
        Fencepost::run(&command, listen, &admin, Scratch::new()).await
    }

    /// Starts it with a configuration file of one route. The lines in `route` give the route's path
    /// and its lock, which is one of the source "main".
    pub(crate) async fn with_route(worker: &FreePort, etcd: &Etcd, route: &str) -> Fencepost {
        let (listen, admin, scratch) = (FreePort::reserve(), FreePort::reserve(), Scratch::new());
        let file = scratch.path().join("fencepost.toml");
        let text = format!(
            "[admin]\nlisten = \"{}\"\n[[listener]]\naddress = \"{}\"\n\
             [source.main]\nkind = \"etcd\"\nendpoints = [\"{}\"]\n\
             [[route]]\nname = \"locks\"\nupstream = \"http://{}\"\n{route}\n",
            admin.address(),
            listen.address(),
            etcd.endpoint(),
            worker.address()
        );
        std::fs::write(&file, text).expect("a scratch directory can be written");
        let mut command = Command::new(fencepost_binary());
        command.arg("serve").arg("-c").arg(&file);
        Fencepost::run(&command, listen, &admin, scratch).await
    }

    async fn run(
        command: &Command,
        listen: FreePort,
        admin: &FreePort,
        scratch: Scratch,
    ) -> Fencepost {
        let mut process = Process::start(command, &scratch.path().join("log"));
        eventually("fencepost is ready", async || {
            let ended = process.ended();
            assert!(ended.is_none(), "fencepost ended with {ended:?}: {}", process.log());
            // A refused connection, like a 503, is an answer to try again.
            let ready = request(admin.address(), "GET", "/readyz", &[], b"").await.ok()?;
            (ready.status == 200).then_some(())
        })
        .await;
        Fencepost { listen, process, _scratch: scratch }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.listen.address())
    }

    pub(crate) fn log(&self) -> String {
        self.process.log()
    }
}

/// The proxy's binary, of the same profile as this test. Cargo tells a test only of its own
/// package's binaries, and does not build others for it: what lies there may be old.
pub(crate) fn fencepost_binary() -> &'static Path {
    static BINARY: LazyLock<PathBuf> = LazyLock::new(|| {
        let test = std::env::current_exe().expect("a running program has a path");
        let profile = test.ancestors().nth(2).expect("tests lie in target/PROFILE/deps");
        let target = profile.parent().expect("target/PROFILE has a parent");
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // As `bin/test` does, after which nothing is left to do: features and debug information of
        // libraries depend on all that is built. In a release that would take an hour.
        let what: &[_] = if profile.ends_with("release") {
            &["build", "--release", "--bin", "fencepost"]
        } else {
            &["test", "--no-run"]
        };
        build.args(what).args(["--quiet", "--locked", "--workspace", "--target-dir"]).arg(target);
        // What cargo tells a test of its package. The build script of ring asks for some of these:
        // where they are others it is run again, and all that needs ring is compiled again.
        for (name, _) in std::env::vars_os() {
            if ["CARGO_PKG_", "CARGO_MANIFEST_"]
                .iter()
                .any(|start| name.to_string_lossy().starts_with(start))
            {
                build.env_remove(name);
            }
        }
        let built =
            build.status().unwrap_or_else(|error| panic!("{build:?} cannot be started: {error}"));
        assert!(built.success(), "{build:?} ended with {built}");
        profile.join("fencepost").with_extension(std::env::consts::EXE_EXTENSION)
    });
    &BINARY
}
