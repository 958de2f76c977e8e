//! What the documents say is so.

use std::collections::BTreeSet;
use std::path::Path;

use fencepost::metrics::{Metrics, SourceReading, TlsUse};
use fencepost::refusal::{AnswerForm, Failure};
use fencepost_config::Config;
use fencepost_policy::Rejection;
use fencepost_tls::{Dated, Expiry};

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The words in backquotes that begin with `prefix`, of the rows of a table.
fn named_in_tables(text: &str, prefix: &str) -> BTreeSet<String> {
    let rows = text.lines().filter(|line| line.starts_with('|'));
    let words = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    words.filter(|word| word.starts_with(prefix)).map(str::to_owned).collect()
}

#[test]
fn every_metric_of_the_readme_exists_and_every_metric_is_in_the_readme() {
    assert_eq!(named_in_tables(&document("README.md"), "fencepost_"), existing_metrics());
}

#[test]
fn every_metric_that_rules_and_dashboard_name_exists() {
    let existing = existing_metrics();
    for file in [
        "deploy/prometheus/fencepost.rules.yml",
        "deploy/prometheus/fencepost.rules.test.yml",
        "deploy/prometheus/fencepost.rules.day.test.yml",
        "deploy/grafana/dashboards/fencepost.json",
    ] {
        let named = metrics_in(&document(file));
        assert!(!named.is_empty(), "{file} names metrics");
        assert_eq!(named.difference(&existing).collect::<Vec<_>>(), Vec::<&String>::new(), "in {file}");
    }
}

/// The metrics that a text names, a histogram's parts as the histogram.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| letter != '_' && !letter.is_ascii_alphanumeric());
    let metrics = words.filter(|word| word.starts_with("fencepost_"));
    metrics.map(|metric| metric.strip_suffix("_bucket").unwrap_or(metric).to_owned()).collect()
}

fn existing_metrics() -> BTreeSet<String> {
    let metrics = Metrics::new().unwrap();
    let route = metrics.route("any", "enforce");
    route.failed(Failure::NoAnswer);
    metrics.set_lost(0, 0, 0);
    metrics.set_connections_ended(0, |_| 0);
    let reading = SourceReading {
        up: Some(true),
        age_seconds: 0.0,
        watch_restarts: 0,
        tracked_locks: 0,
        tenures: 0,
        regressed: false,
    };
    metrics.set_source("any", reading);
    let (what, subject) = (Dated::Certificate, String::new());
    let expiry = Expiry { file: "/t".into(), what, subject, not_before: 0, not_after: 0 };
    metrics.tls().set_expiries(TlsUse::Listener, "any", &[expiry]);
    metrics.tls().handshakes(TlsUse::Listener, "any");
    let text = String::from_utf8(metrics.text(&samples_of_the_readme().remove(0)).unwrap()).unwrap();
    text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn the_readme_names_every_reason_with_its_action() {
    let readme = document("README.md");
    for rejection in Rejection::ALL {
        let (code, action) = (rejection.code(), rejection.action().name());
        let row = readme.lines().find(|line| line.starts_with(&format!("| `{code}` |")));
        let row = row.unwrap_or_else(|| panic!("{code} has no row"));
        assert!(row.contains(&format!("| `{action}` |")), "{row}");
    }
}

#[test]
fn the_readme_names_every_failure_with_its_answer() {
    let readme = document("README.md");
    let answered = Failure::ALL.into_iter().filter(|failure| *failure != Failure::Unreadable);
    for failure in answered {
        let response = failure.answer(AnswerForm::Problem);
        let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        let start = format!("| `{}` | {} |", failure.code(), response.status().as_u16());
        let row = readme.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no row {start}"));
        let forwarded = row.split('|').nth(3).unwrap();
        assert!(forwarded.contains(&format!("`{}`", body["forwarded"])), "{row}");
    }
}

#[test]
fn the_sample_files_of_the_readme_are_right() {
    let samples = samples_of_the_readme();
    assert_eq!(samples.len(), 2);
    assert!(samples.iter().all(|sample| sample.routes.len() == 1));
}

fn samples_of_the_readme() -> Vec<Config> {
    let readme = document("README.md");
    let samples = readme.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let read = |sample| Config::from_toml("README.md", sample).unwrap_or_else(|problems| panic!("{problems}"));
    samples.map(read).collect()
}

#[test]
fn limits_that_no_key_sets_are_as_the_reference_has_them() {
    let limits = [
        ("5 s each time, 8 times", "tenure_log.rs", "RECORD_TIMEOUT: Duration = Duration::from_secs(5)"),
        ("5 s each time, 8 times", "gate/handoff.rs", "RECORDS_MAX: u32 = 8"),
        ("brings into use | 5 s each |", "reload/files.rs", "READ_TIMEOUT: Duration = Duration::from_secs(5)"),
        ("that are in use | 5 s |", "reload/files.rs", "READ_TIMEOUT: Duration = Duration::from_secs(5)"),
        ("| 16 MiB; 64 MiB; 4 KiB |", "reload/file.rs", "MEBIBYTES_MAX: u64 = 16"),
        ("| 16 MiB; 64 MiB; 4 KiB |", "../../tls/src/error.rs", "BYTES_MAX: u64 = 64 << 20"),
        ("| 16 MiB; 64 MiB; 4 KiB |", "../../locks/src/etcd/access.rs", "PASSWORD_BYTES_MAX: u64 = 4096"),
        ("sends with its own | 6 |", "../../tls/src/verifier.rs", "INTERMEDIATES_MAX: usize = 6"),
        (
            "| 500 ms; 1.5 s |",
            "../../locks/src/etcd/endpoints.rs",
            "ATTEMPT_TIMEOUT: Duration = Duration::from_millis(500)",
        ),
        ("| 500 ms; 1.5 s |", "../../locks/src/etcd.rs", "READ_TIMEOUT: Duration = Duration::from_millis(1500)"),
        (
            "etcd comes up | 2 s |",
            "../../locks/src/etcd/connect.rs",
            "CONNECT_TIMEOUT: Duration = Duration::from_secs(2)",
        ),
        ("| 10 s, which is", "../../locks/src/cache/reading.rs", "WALK_TIME_MAX: Duration = Duration::from_secs(10)"),
        ("| 10 requests to etcd in 100 ms", "../../locks/src/cache/driver.rs", "READERS_OF_UNKNOWN: usize = 10"),
        (
            "in 100 ms that find",
            "../../locks/src/cache/driver.rs",
            "UNKNOWN_APART: Duration = Duration::from_millis(100)",
        ),
        ("for up to 128 locks each;", "../../locks/src/cache/reading.rs", "TOGETHER_MAX: usize = 128"),
        ("6,400 locks wait |", "../../locks/src/cache/common.rs", "UNKNOWN_MAX: usize = 6_400"),
        (
            "tells once a minute",
            "../../locks/src/cache/common.rs",
            "REFUSALS_TOLD_EVERY: Duration = Duration::from_secs(60)",
        ),
        (
            "may not be read | 60 s |",
            "../../locks/src/cache/reading.rs",
            "ALONE_PERIOD: Duration = Duration::from_secs(60)",
        ),
        ("without space) | 60 s |", "../../locks/src/etcd.rs", "APART_PERIOD: Duration = Duration::from_secs(60)"),
        ("1,000 for a lock, 10,000 in all", "../../fence/src/handoff.rs", "WAITING_PER_LOCK_MAX: usize = 1_000"),
        ("1,000 for a lock, 10,000 in all", "gate/handoff.rs", "WAITING_MAX: usize = 10_000"),
        ("| 100 ms | Others pass", "../../fence/src/handoff.rs", "TURN_MAX: Duration = Duration::from_millis(100)"),
        ("upstream | 10,000 | 503", "upstream/target.rs", "waiting_max: 10_000"),
        ("256 KiB of each; 2 GiB by all of a connection", "upstream/http2.rs", "WINDOW_BYTES: u32 = 256 * 1024"),
        (
            "256 KiB of each; 2 GiB by all of a connection",
            "upstream/http2.rs",
            "CONNECTION_WINDOW_BYTES_MAX: u32 = (1 << 31) - 1",
        ),
        ("| 100 ms, then until it", "upstream/at_worker/ending.rs", "LEAVE_MAX: Duration = Duration::from_millis(100)"),
        ("by resets mostly | 64 |", "upstream/http2.rs", "GIVEN_UP_MAX: u32 = 64"),
        ("beside 512 and `connections_max`", "descriptors.rs", "ADMIN_CONNECTIONS: usize = 256"),
        ("beside 512 and `connections_max`", "descriptors.rs", "OTHERS: usize = 256"),
        ("closed after 1 s. A quarter", "upstream/quota.rs", "IDLE_LOOK: Duration = Duration::from_secs(1)"),
        ("A quarter of them is only for", "upstream/quota.rs", "let reserve = connections / 4;"),
        ("fewer than 8 on a thread", "upstream/quota.rs", "FEW_MAX: usize = 8"),
        ("4 times in all", "gate.rs", "SENDS_MAX: usize = 4"),
        ("16 MiB, 5 s", "../../fence/src/refusal.rs", "DISCARD_BYTES_MAX: u64 = 16 << 20"),
        ("16 MiB, 5 s", "../../fence/src/refusal.rs", "DISCARD_TIMEOUT: Duration = Duration::from_secs(5)"),
        ("256 KiB, 100 ms", "upstream/at_worker/response.rs", "BEHIND_BYTES_MAX: usize = 256 * 1024"),
        ("256 KiB, 100 ms", "upstream/at_worker/response.rs", "CATCH_UP_MAX: Duration = Duration::from_millis(100)"),
        ("| 1 s | The same", "upstream/pool.rs", "STALL_MAX: Duration = Duration::from_secs(1)"),
        ("| 4 KiB, `body_timeout` |", "downstream/unread.rs", "REST_BYTES_MAX: u64 = 4 * 1024"),
        ("its bytes make up for at 16 KiB a second", "upstream/upload.rs", "BYTES_A_SECOND: u32 = 16 * 1024"),
        ("and 80 KiB over HTTP/1.1", "wire/mod.rs", "HTTP1_BUFFER_BYTES: usize = 80 * 1024"),
        ("80 KiB over HTTP/2", "upstream/http2.rs", "HEAD_BYTES_MAX: u32 = HTTP1_BUFFER_BYTES as u32"),
        ("| 12.5 MiB |", "upstream/http2.rs", "WINDOW_BYTES: u32 = 256 * 1024"), // h2 has half of 100 of these.
        ("| 12.5 MiB |", "upstream/target.rs", "streams_max: 100"),
        ("256 KiB of each;", "downstream/drive.rs", "const WINDOW_BYTES: u32 = 256 * 1024"),
        ("| 128 KiB for each of", "downstream/drive.rs", "const WINDOW_BYTES: u32 = 256 * 1024"), // And half of each of these.
        ("2 MiB at least |", "downstream/drive.rs", "CONNECTION_WINDOW_BYTES_MIN: u32 = 4 * 1024 * 1024"),
        ("| 5 s | Its connection", "downstream/watch.rs", "PARTING_MAX: Duration = Duration::from_secs(5)"),
        ("| 1 MiB | 502", "upstream/http1.rs", "BEFORE_HEAD_BYTES_MAX: u64 = 1024 * 1024"),
        ("| 1 s | The connection", "upstream/connect.rs", "REFUSAL_MAX: Duration = Duration::from_secs(1)"),
        ("one every 10 s | 10 s", "upstream/http2.rs", "PING_INTERVAL: Duration = Duration::from_secs(10)"),
        (
            "not answer | 90 s |",
            "wire/transport.rs",
            "with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(10)).with_retries(3)",
        ),
        ("| 128 KiB | It says", "wire/transport.rs", "UNSENT_BYTES_MAX: u32 = 128 * 1024"),
        ("| 256 | The one", "descriptors.rs", "ADMIN_CONNECTIONS: usize = 256"),
        ("| 32 | 503", "admin/streams.rs", "STREAMS_MAX: usize = 32"),
        ("| once a second |", "admin/timeline.rs", "PACE: Duration = Duration::from_secs(1)"),
        ("has | 1,000 |", "observe/timeline.rs", "ROWS_MAX: usize = 1_000"),
        ("| 200 of each kind", "observe/timeline.rs", "BARS_MAX: usize = 200"),
        ("; 20,000 tenures and waits in all", "observe/timeline.rs", "BARS_IN_ALL_MAX: usize = 20_000"),
        ("| 15 s | It is told so", "admin/streams.rs", "SILENCE_MAX: Duration = Duration::from_secs(15)"),
        ("sent | 90 s |", "run.rs", "ADMIN_SILENCE_MAX: Duration = Duration::from_secs(90)"),
        ("in 100 ms | 8,192", "observe.rs", "COLLECT_PERIOD: Duration = Duration::from_millis(100)"),
        ("in 100 ms | 8,192", "observe/notes.rs", "NOTES_MAX: usize = 8_192"),
        ("the last 16 things noted", "observe/notes.rs", "LIKE_WITHIN: usize = 16"),
        ("| 10,000 at once,", "observe/notes.rs", "EACH_AT_ONCE: u32 = 10_000"),
        ("and 1,000 more each second |", "observe/notes.rs", "EACH_A_SECOND: u32 = 1_000"),
        ("`state_dir` | 5 s | The process ends", "state/writer.rs", "LEAVE_TIMEOUT: Duration = Duration::from_secs(5)"),
        ("| 1 s, 2 s |", "logging.rs", "END_MAX: Duration = Duration::from_secs(1)"),
        ("| 1 s, 2 s |", "access_log.rs", "END_MAX: Duration = Duration::from_secs(2)"),
        ("| 1 s | It is cut", "drain.rs", "LAST_ANSWERS_MAX: Duration = Duration::from_secs(1)"),
    ];
    let reference = document("config/REFERENCE.md");
    let (_, rows) = reference.split_once("## Limits that no key sets").unwrap();
    for (said, file, limit) in limits {
        assert!(rows.contains(said), "{said}");
        assert!(document(&format!("proxy/src/{file}")).contains(limit), "{file}: {limit}");
    }
    let rows = rows.lines().filter(|line| line.starts_with('|')).skip(2);
    let of_no_limit = rows.filter(|row| !limits.iter().any(|(said, ..)| row.contains(said)));
    assert_eq!(of_no_limit.collect::<Vec<_>>().len(), 2, "a reload has the limit of a record, and one is h2's");
}

#[test]
fn every_test_that_the_documents_name_exists() {
    let documents = ["ARCHITECTURE.md", "SECURITY.md", "docs/testing-promises.md"].map(document).join("\n");
    let mut sources = String::new();
    collect_rust(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut sources);
    let rows = documents.lines().filter(|line| line.starts_with('|'));
    let tests = rows.flat_map(|row| row.split('`').skip(1).step_by(2)).filter(|word| word.matches('_').count() >= 4);
    let missing: Vec<&str> = tests.filter(|test| !sources.contains(&format!("fn {test}("))).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

fn collect_rust(folder: &Path, sources: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            collect_rust(&path, sources);
        } else if name.ends_with(".rs") {
            sources.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}
