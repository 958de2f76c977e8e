//! docs/configuration.md says what the code does: the same keys, the same defaults, the same
//! ranges.

use std::collections::BTreeMap;

use crate::places::WrittenKey;
use crate::{Config, Problems};

const REFERENCE: &str = include_str!("../../docs/configuration.md");

/// A line of a table, below the heading of its section.
struct Row {
    section: &'static str,
    key: &'static str,
    default: &'static str,
    range: &'static str,
}

fn rows() -> Vec<Row> {
    let (mut rows, mut section) = (Vec::new(), "");
    for line in REFERENCE.lines() {
        section = line.strip_prefix("## ").unwrap_or(section);
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let ["", key, _, default, range, _, ""] = cells[..] {
            rows.extend(literal(key).map(|key| Row { section, key, default, range }));
        }
    }
    rows
}

/// What is between backticks, if nothing stands outside of them.
fn literal(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?.strip_suffix('`').filter(|inner| !inner.contains('`'))
}

fn parse(text: &str) -> Result<Config, Problems> {
    Config::from_toml("f.toml", text)
}

/// A file in which every table is written, and of other keys only those that are required there.
const EVERY_TABLE: &str = r#"
    [[listener]]
    address = "127.0.0.1:8080"
    tls = { certificate = "/t/a.pem", key = "/t/a.key", client_ca = "/t/ca.pem", more_certificates = [{ certificate = "/t/b.pem", key = "/t/b.key" }] }
    [source.main]
    kind = "etcd"
    endpoints = ["https://127.0.0.1:2379"]
    tls = { ca = "/t/ca.pem", certificate = "/t/a.pem", key = "/t/a.key" }
    username = "fencepost"
    password_file = "/password"
    [source.kubernetes]
    kind = "kubernetes"
    url = "https://127.0.0.1:6443"
    tls = { ca = "/t/ca.pem", certificate = "/t/a.pem", key = "/t/a.key" }
    [source.sql]
    kind = "postgres"
    url = "postgres://fencepost@127.0.0.1/app"
    password_file = "/password"
    tls = { ca = "/t/ca.pem", certificate = "/t/a.pem", key = "/t/a.key" }
    query = "= ANY($1)"
    [source.consul]
    kind = "consul"
    url = "https://127.0.0.1:8501"
    tls = { ca = "/t/ca.pem", certificate = "/t/a.pem", key = "/t/a.key" }
    [source.zookeeper]
    kind = "zookeeper"
    servers = ["127.0.0.1:2181"]
    username = "fencepost"
    password_file = "/password"
    [[route]]
    name = "orders"
    path = "/orders"
    upstream = "http://127.0.0.1:9000"
    lock = { source = "consul", key = "orders" }
    mode = "shadow"
    [[route]]
    name = "shards"
    path = "/"
    upstream = "https://127.0.0.1:9000"
    upstream_tls = { ca = "/t/ca.pem", certificate = "/t/a.pem", key = "/t/a.key" }
    lock = { source = "main", key = "/lock" }
    identity = { common_name = "{owner}" }
    request_headers = { set = {} }
    response_headers = { set = {} }
    [admin]
    tls = { certificate = "/t/a.pem", key = "/t/a.key" }
    [group]
    name = "shards"
"#;

/// The heading in the reference of the keys of a table, or of those below one of its keys.
fn section(table: &str, parent: &str) -> &'static str {
    match (table, parent) {
        ("", "") => "Top level",
        ("admin", "") => "`[admin]`",
        ("listener", "") => "`[[listener]]`",
        ("listener" | "admin", "tls") => "`tls` of a listener",
        ("listener" | "admin", "more_certificates") => "`more_certificates`",
        ("limits", "") => "`[limits]`",
        ("decisions", "") => "`[decisions]`",
        ("access_log", "") => "`[access_log]`",
        ("group", "") => "`[group]`",
        ("source.main", "") => "`[source.NAME]`",
        ("source.sql", "") => "A source of SQL",
        ("source.kubernetes", "") => "A source of Kubernetes",
        ("source.consul", "") => "A source of Consul",
        ("source.zookeeper", "") => "A source of ZooKeeper",
        (_, "tls") if table.starts_with("source.") => "`tls` of a source",
        ("route", "") => "`[[route]]`",
        ("route", "upstream_tls") => "`upstream_tls`",
        ("route", "lock") => "`lock`",
        ("route", "request_headers" | "response_headers") => {
            "`request_headers` and `response_headers`"
        }
        ("route", "identity") => "`identity`",
        other => panic!("a table without a heading: {other:?}"),
    }
}

#[test]
fn reference_has_every_key_with_its_default_and_no_other() {
    let config = parse(EVERY_TABLE).unwrap_or_else(|problems| panic!("{problems}"));
    let mut known: BTreeMap<(&str, &str), Option<&str>> = BTreeMap::new();
    for table in config.places.tables.iter() {
        let name = match table.name.split(['.', '[']).next().unwrap() {
            "source" => &*table.name,
            name => name,
        };
        // The kind of a source is described once.
        let is_said = |key: &&WrittenKey| key.key != "kind" || name == "source.main";
        for key in table.keys.iter().filter(is_said) {
            known.insert((section(name, key.parent), key.key), key.value.as_deref());
        }
    }
    let rows = rows();
    let described: Vec<(&str, &str)> = rows.iter().map(|row| (row.section, row.key)).collect();
    assert!(
        described.iter().all(|key| known.contains_key(key)),
        "the reference has keys that are none"
    );
    assert_eq!(
        known.len(),
        described.len(),
        "{:?}",
        known.keys().filter(|key| !described.contains(key))
    );
    for Row { section, key, default, .. } in
        rows.iter().filter(|row| !row.default.starts_with("required"))
    {
        let is_in_use = matches!(
            *key,
            "client_ca" | "certificate" | "key" | "username" | "password_file" | "common_name"
        );
        match (known[&(*section, *key)], literal(default)) {
            (Some(value), Some(default)) => {
                assert_eq!(value, default.replace('"', ""), "{section} {key}")
            }
            (Some(value), None) => {
                assert!(*default == "none" && (value == "none" || is_in_use), "{section} {key}")
            }
            (None, default) => assert_eq!(default, None, "{section} {key} is a table"),
        }
    }
}

#[test]
fn reference_has_the_ranges() {
    let with = |section: &str, setting: &str| {
        let in_section = |other: &str| if section == other { setting } else { "" };
        let table = literal(section).filter(|table| !table.starts_with("[["));
        let others = if section == "`[group]`" { IN_GROUP } else { "" };
        let table = table.map_or(String::new(), |table| format!("{table}\n{setting}\n{others}"));
        parse(&format!(
            "{}\n{table}\n{EVERY_ROUTE}\n{}",
            in_section("Top level"),
            in_section("`[[route]]`")
        ))
    };
    let mut compared = 0;
    for Row { section, key, range, .. } in rows() {
        let ends: Vec<&str> = range.split(" to ").filter_map(literal).collect();
        let [least, most] = ends[..] else { continue };
        for end in [least, most] {
            assert!(with(section, &format!("{key} = {end}")).is_ok(), "{key} = {end}");
        }
        let beyond = match most.rfind(|last: char| last.is_ascii_digit()) {
            Some(last) if most.starts_with('"') => {
                format!("{}0{}", &most[..=last], &most[last + 1..])
            }
            Some(_) | None => format!("{most}0"),
        };
        let problems = with(section, &format!("{key} = {beyond}")).unwrap_err().to_string();
        assert!(problems.contains(&format!("must be {least} to {most}, not ")), "{problems}");
        compared += 1;
    }
    assert_eq!(compared, 37, "a range that is written differently would be passed over");
}

const IN_GROUP: &str = r#"
    name = "shards"
    [source.main]
    kind = "etcd"
    endpoints = ["http://127.0.0.1:2379"]
"#;

const EVERY_ROUTE: &str = r#"
    [[listener]]
    address = "127.0.0.1:8080"
    [[route]]
    name = "all"
    path = "/"
    upstream = "http://127.0.0.1:9000"
    mode = "off"
"#;
