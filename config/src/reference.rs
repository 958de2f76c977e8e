//! REFERENCE.md says what the code does: the same keys, the same defaults, the same ranges.

use std::collections::BTreeMap;

use crate::listening::{RawAdmin, RawListener};
use crate::problem::{Notes, Place};
use crate::raw::{RawConfig, RawIdentity, RawLimits, RawLock, RawRoute, RawSource};
use crate::reader::Table;
use crate::records::{RawAccessLog, RawDecisions};
use crate::tls::{RawClientTls, RawServerTls};
use crate::{Config, Places, Problems};

const REFERENCE: &str = include_str!("../REFERENCE.md");

/// One line of a table.
struct Row {
    key: String,
    default: String,
    range: String,
}

/// The rows by the heading above them.
fn rows() -> BTreeMap<&'static str, Vec<Row>> {
    let mut sections: BTreeMap<&str, Vec<Row>> = BTreeMap::new();
    let mut section = "";
    for line in REFERENCE.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            section = heading;
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let ["", key, _, default, range, _, ""] = cells[..]
            && let Some(key) = literal(key)
        {
            let row = Row { key: key.to_owned(), default: default.to_owned(), range: range.to_owned() };
            sections.entry(section).or_default().push(row);
        }
    }
    sections
}

/// What is between backticks, if nothing stands outside of them.
fn literal(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?.strip_suffix('`').filter(|inner| !inner.contains('`'))
}

/// A right file, with one more setting in the section of this heading.
fn file_with(heading: &str, setting: &str) -> String {
    let only_in = |section: &str| if section == heading { setting } else { "" };
    let identity = if heading == "`identity`" {
        format!("identity = {{ common_name = \"{{owner}}\", {setting} }}")
    } else {
        String::new()
    };
    let in_lock = if heading == "`lock`" { format!(", {setting}") } else { String::new() };
    let in_tls = if heading == "`tls` of a listener" { format!(", {setting}") } else { String::new() };
    format!(
        r#"
        {}
        [admin]
        {}
        [[listener]]
        address = "127.0.0.1:8080"
        tls = {{ certificate = "/t/a.pem", key = "/t/a.key", client_ca = "/t/ca.pem"{in_tls} }}
        [limits]
        {}
        [decisions]
        {}
        [access_log]
        {}
        [source.main]
        kind = "memory"
        [[route]]
        name = "shards"
        path = "/shards/{{shard}}/"
        upstream = "http://127.0.0.1:9000"
        lock = {{ source = "main", key = "/shards/{{shard}}/lock"{in_lock} }}
        {identity}
        {}
        "#,
        only_in("Top level"),
        only_in("`[admin]`"),
        only_in("`[limits]`"),
        only_in("`[decisions]`"),
        only_in("`[access_log]`"),
        only_in("`[[route]]`"),
    )
}

fn parse(heading: &str, setting: &str) -> Result<Config, Problems> {
    Config::from_toml("f.toml", &file_with(heading, setting))
}

#[test]
fn every_key_is_in_the_reference_and_every_key_of_the_reference_is_one() {
    let notes = Notes::for_flags();
    let keys = |read: &dyn Fn(&mut Table<'_>)| {
        let mut table = Table::empty(&notes, Place::flag(""));
        read(&mut table);
        let mut known = table.known().to_vec();
        known.sort_unstable();
        known
    };
    let known = BTreeMap::from([
        ("Top level", keys(&|table| drop(RawConfig::read(table)))),
        ("`[admin]`", keys(&|table| drop(RawAdmin::read(table)))),
        ("`[[listener]]`", keys(&|table| drop(RawListener::read(table)))),
        ("`tls` of a listener", keys(&|table| drop(RawServerTls::read(table)))),
        ("`[limits]`", keys(&|table| drop(RawLimits::read(table)))),
        ("`[decisions]`", keys(&|table| drop(RawDecisions::read(table)))),
        ("`[access_log]`", keys(&|table| drop(RawAccessLog::read(table)))),
        ("`[source.NAME]`", keys(&|table| drop(RawSource::read(String::new(), table)))),
        ("`tls` of a source", keys(&|table| drop(RawClientTls::read(table)))),
        ("`[[route]]`", keys(&|table| drop(RawRoute::read(table)))),
        ("`upstream_tls`", keys(&|table| drop(RawClientTls::read(table)))),
        ("`lock`", keys(&|table| drop(RawLock::read(table)))),
        ("`identity`", keys(&|table| drop(RawIdentity::read(table)))),
    ]);
    let rows = rows();
    let described = rows.iter().map(|(heading, rows)| {
        let mut keys: Vec<&str> = rows.iter().map(|row| row.key.as_str()).collect();
        keys.sort_unstable();
        (*heading, keys)
    });
    assert_eq!(described.collect::<BTreeMap<_, _>>(), known);
}

#[test]
fn the_defaults_of_the_reference_are_the_defaults() {
    let mut compared = 0;
    for (heading, rows) in rows() {
        let without = parse(heading, "").unwrap_or_else(|problems| panic!("{problems}"));
        let without = Config { warnings: Vec::new(), places: Places::default(), ..without };
        for Row { key, default, .. } in rows {
            let Some(default) = literal(&default) else {
                assert!(default == "none" || default.starts_with("required"), "{key} has the default {default}");
                continue;
            };
            let config = parse(heading, &format!("{key} = {default}")).unwrap_or_else(|problems| panic!("{problems}"));
            assert_eq!(
                Config { warnings: Vec::new(), places: Places::default(), ..config },
                without,
                "{key} = {default}"
            );
            compared += 1;
        }
    }
    assert_eq!(compared, 48, "a default that is written differently would be passed over");
}

#[test]
fn the_ranges_of_the_reference_are_the_ranges() {
    let mut compared = 0;
    for (heading, rows) in rows() {
        for Row { key, range, .. } in rows {
            let ends: Vec<&str> = range.split(" to ").filter_map(literal).collect();
            let [least, most] = ends[..] else {
                continue;
            };
            for end in [least, most] {
                assert!(parse(heading, &format!("{key} = {end}")).is_ok(), "{key} = {end}");
            }
            let beyond = match most.rfind(|last: char| last.is_ascii_digit()) {
                Some(last) if most.starts_with('"') => format!("{}0{}", &most[..=last], &most[last + 1..]),
                Some(_) | None => format!("{most}0"),
            };
            let problems = parse(heading, &format!("{key} = {beyond}")).unwrap_err().to_string();
            assert!(problems.contains(&format!("must be {least} to {most}, not ")), "{problems}");
            compared += 1;
        }
    }
    assert_eq!(compared, 31, "a range that is written differently would be passed over");
}
