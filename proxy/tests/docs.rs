//! The documents are true.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fencepost::metrics::{Metrics, TlsUse};
use fencepost::refusal::{AnswerForm, Failure};
use fencepost_config::Config;
use fencepost_locks::{GroupOptions, LockSource, MemoryStore, SourceOptions, SourceStatus};
use fencepost_policy::Rejection;
use fencepost_policy::group::Timing;
use fencepost_tls::{Dated, Expiry};
use tokio::time::Instant;

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
fn metrics_are_those_of_the_book() {
    let page = document("docs/operating.md");
    let named = ["fencepost_", "process_"].map(|prefix| named_in_tables(&page, prefix));
    assert_eq!(named.into_iter().flatten().collect::<BTreeSet<_>>(), existing_metrics());
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
        assert_eq!(
            named.difference(&existing).collect::<Vec<_>>(),
            Vec::<&String>::new(),
            "in {file}"
        );
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
    let timing = Timing { member_ttl: Duration::MAX, orphan_timeout: Duration::MAX };
    let group = GroupOptions {
        name: "any".to_owned(),
        prefix: "/any/".to_owned(),
        timing,
        host: String::new(),
        version: String::new(),
    };
    let options = SourceOptions { group: Some(group), ..SourceOptions::default() };
    let (source, _) = LockSource::build("any", options, MemoryStore::new());
    let status = SourceStatus { up: Some(true), ..source.status(Instant::now()) };
    let (what, subject) = (Dated::Certificate, String::new());
    let expiry = Expiry { file: "/t".into(), what, subject, not_before: 0, not_after: 0 };
    metrics.tls().set_expiries(TlsUse::Listener, "any", &[expiry]);
    metrics.tls().handshakes(TlsUse::Listener, "any");
    let group = source.group().map(Arc::as_ref);
    let text = metrics.text(&sample_files().remove(0), &[("any", status)], group).unwrap();
    let text = String::from_utf8(text).unwrap();
    text.lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn reasons_and_actions_are_those_of_the_book() {
    let page = document("docs/refusals.md");
    for rejection in Rejection::ALL {
        let (code, action) = (rejection.code(), rejection.action().name());
        let row = page.lines().find(|line| line.starts_with(&format!("| `{code}` |")));
        let row = row.unwrap_or_else(|| panic!("{code} has no row"));
        assert!(row.contains(&format!("| `{action}` |")), "{row}");
    }
}

#[test]
fn failures_and_statuses_are_those_of_the_book() {
    let page = document("docs/refusals.md");
    let answered = Failure::ALL.into_iter().filter(|failure| *failure != Failure::Unreadable);
    for failure in answered {
        let response = failure.answer(AnswerForm::Problem);
        let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        let start = format!("| `{}` | {} |", failure.code(), response.status().as_u16());
        let row = page
            .lines()
            .find(|line| line.starts_with(&start))
            .unwrap_or_else(|| panic!("no row {start}"));
        let forwarded = row.split('|').nth(3).unwrap();
        assert!(forwarded.contains(&format!("`{}`", body["forwarded"])), "{row}");
    }
}

#[test]
fn sample_files_are_right() {
    let samples = sample_files();
    assert_eq!(samples.len(), 2);
    assert!(samples.iter().all(|sample| sample.routes.len() == 1));
}

fn sample_files() -> Vec<Config> {
    let pages = ["README.md", "docs/tls.md"].map(document).join("\n");
    let samples = pages.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let read = |sample| {
        Config::from_toml("README.md", sample).unwrap_or_else(|problems| panic!("{problems}"))
    };
    samples.map(read).collect()
}

#[test]
fn the_sample_is_right_with_and_without_its_options() {
    let sample = document("deploy/fencepost.toml");
    // An option is a line that has no space behind its "#".
    let is_option = |line: &str| line.starts_with('#') && !line.starts_with("# ") && line != "#";
    let with_options = sample.lines().map(|line| if is_option(line) { &line[1..] } else { line });
    for text in [sample.clone(), with_options.collect::<Vec<_>>().join("\n")] {
        let read = Config::from_toml("deploy/fencepost.toml", &text);
        read.unwrap_or_else(|problems| panic!("{problems}"));
    }
}

#[test]
fn limits_that_no_key_sets_are_as_the_reference_has_them() {
    let limits = include_str!("limits.txt").lines().filter(|line| !line.starts_with('#'));
    let limits: Vec<[&str; 3]> =
        limits.map(|line| line.split(" @ ").collect::<Vec<_>>().try_into().unwrap()).collect();
    let reference = document("docs/configuration.md");
    let (_, rows) = reference.split_once("## Limits that no key sets").unwrap();
    for [said, file, limit] in &limits {
        assert!(rows.contains(said), "{said}");
        assert!(document(&format!("proxy/src/{file}")).contains(limit), "{file}: {limit}");
    }
    let rows = rows.lines().filter(|line| line.starts_with('|')).skip(2);
    let of_no_limit = rows.filter(|row| !limits.iter().any(|[said, ..]| row.contains(said)));
    assert_eq!(
        of_no_limit.collect::<Vec<_>>().len(),
        2,
        "a reload has the limit of a record, and one is h2's"
    );
}

#[test]
fn every_test_that_the_documents_name_exists() {
    let documents =
        ["ARCHITECTURE.md", "SECURITY.md", "docs/testing-promises.md", "docs/track-record.md"]
            .map(document)
            .join("\n");
    let mut sources = String::new();
    collect_rust(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut sources);
    let rows = documents.lines().filter(|line| line.starts_with('|'));
    let tests = rows
        .flat_map(|row| row.split('`').skip(1).step_by(2))
        .filter(|word| word.matches('_').count() >= 4);
    let missing: Vec<&str> =
        tests.filter(|test| !sources.contains(&format!("fn {test}("))).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn links_between_documents_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let listed = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let named =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "recipes/README.md"];
    let pages = listed.chain(named.map(|name| root.join(name)));
    let mut broken = Vec::new();
    for page in pages.filter(|page| page.extension().is_some_and(|extension| extension == "md")) {
        let text = std::fs::read_to_string(&page).unwrap();
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let is_there =
                target.exists() && (anchor.is_empty() || anchors(&target).contains(anchor));
            if !is_there {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert_eq!(broken, Vec::<String>::new());
}

/// The anchors that GitHub and mdBook give to the headings of a page.
fn anchors(page: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(page).unwrap();
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let kept = |letter: &char| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter);
    headings
        .map(|line| {
            line.trim_start_matches('#')
                .trim()
                .to_lowercase()
                .chars()
                .filter(kept)
                .collect::<String>()
                .replace(' ', "-")
        })
        .collect()
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
