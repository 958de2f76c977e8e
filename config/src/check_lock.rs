//! From what is written to what it means, for the lock of one route.

use fencepost_policy::Layout;

use crate::check::DeclaredSource;
use crate::lock_template::LockTemplate;
use crate::path_template::PathTemplate;
use crate::problem::Notes;
use crate::raw::RawLock;
use crate::reader::nearest;
use crate::route::{Lock, Record};
use crate::setting::Setting;

const LAYOUTS: [(&str, Layout); 3] = [
    (Layout::Key.name(), Layout::Key),
    (Layout::Election.name(), Layout::Election),
    (Layout::Mutex.name(), Layout::Mutex),
];

/// The lock of a route; `path` is missing if it is wrong itself.
pub(crate) fn check_lock(
    raw: RawLock,
    path: Option<&PathTemplate>,
    sources: &[DeclaredSource],
    notes: &Notes,
) -> Option<Lock> {
    let RawLock { source, key, from_header, layout, free_values, owner_field } = raw;
    let source = source.parse(notes, |name| find_source(&name, sources));
    let source = source.required(notes, "the name of the source that keeps the lock");
    let from_header = from_header.or_if_absent(false);
    let key = key.parse(notes, |key| parse_key(&key, path, from_header));
    let key = key.required(notes, r#"the key of the lock, like "/shards/{shard}/lock""#);
    let layout = layout.choice(notes, &LAYOUTS).or_if_absent(Layout::Key);
    let record = check_record(layout, free_values, owner_field, notes);
    Some(Lock { source: source?, key: key??, from_header: from_header?, record: record? })
}

fn find_source(name: &str, sources: &[DeclaredSource]) -> Result<usize, String> {
    sources.iter().position(|source| source.name == name).ok_or_else(|| {
        let near = nearest(name, sources.iter().map(|source| source.name.as_str()));
        let hint = near.map(|near| format!("; did you mean {near:?}?"));
        let hint = hint.unwrap_or_else(|| format!(": [source.{name}] is missing"));
        format!("there is no source {name:?}{hint}")
    })
}

/// `None` if the key is right as far as can be said without a path.
fn parse_key(
    key: &str,
    path: Option<&PathTemplate>,
    from_header: Option<bool>,
) -> Result<Option<LockTemplate>, String> {
    if let (Some(path), Some(from_header)) = (path, from_header) {
        return LockTemplate::parse(key, path, from_header).map(Some);
    }
    let every_path = PathTemplate::parse("/")?;
    LockTemplate::parse(key, &every_path, true).map(|_| None)
}

fn check_record(
    layout: Option<Layout>,
    free_values: Setting<Vec<Setting<String>>>,
    owner_field: Setting<String>,
    notes: &Notes,
) -> Option<Record> {
    let record = match layout? {
        Layout::Key => return check_key_record(free_values, owner_field, notes),
        Layout::Election => Record::Election,
        Layout::Mutex => Record::Mutex,
    };
    let why = match record.layout() {
        Layout::Mutex => {
            "there the owner is the full name of the contender's own key, since a human name would let a stalled \
             contender that queued earlier pass for its successor of the same name"
        }
        Layout::Key | Layout::Election => "there the owner is the value of the leader's key, as it is",
    };
    for (place, written) in
        [(&free_values.place, free_values.is_written()), (&owner_field.place, owner_field.is_written())]
    {
        if written {
            notes.problem(place, format_args!("is not for layout = {:?}: {why}", record.layout().name()));
        }
    }
    Some(record)
}

fn check_key_record(
    free_values: Setting<Vec<Setting<String>>>,
    owner_field: Setting<String>,
    notes: &Notes,
) -> Option<Record> {
    let mut values: Vec<String> = Vec::new();
    for value in free_values.or(Vec::new()) {
        let place = value.place.clone();
        let Some(value) = value.into_value() else {
            continue;
        };
        if values.contains(&value) {
            notes.problem(&place, format_args!("{value:?} is in the list already"));
        }
        values.push(value);
    }
    values.sort();
    let owner_field = owner_field.parse(notes, |field| match field.is_empty() {
        true => Err("must be the name of a field of the JSON object, not empty"),
        false => Ok(Some(field)),
    });
    Some(Record::Key { free_values: values, owner_field: owner_field.or(None) })
}
