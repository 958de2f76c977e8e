//! How a record in the store is read.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use fencepost_policy::{
    Contender, Content, KeyEvent, Layout, LockKey, Owner, QueueEvent, QueueTrack, Write,
};
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::error::Category;

use super::cache_view::Problem;
use crate::store::{Event, KeyRange, KeyValue};

/// How a record in the store becomes an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordFormat {
    /// Which keys the record is made of.
    pub layout: Layout,
    /// Layout `key`: values, or owners, that mean that nobody holds the lock.
    pub free_values: Vec<Bytes>,
    /// Layout `key`: the value is a JSON object, and the field at this path is the owner. Without it,
    /// the value is the owner.
    pub owner_field: Option<String>,
    /// Where the owner stands.
    pub owner_in: OwnerIn,
}

/// Where the owner of a `key` lock stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OwnerIn {
    /// In the value.
    #[default]
    Value,
    /// It is the session that holds the key (Consul).
    Session,
    /// In the holder of a Lease (Kubernetes).
    HolderIdentity,
}

impl RecordFormat {
    /// Records of that layout whose value is the owner.
    pub fn plain(layout: Layout) -> RecordFormat {
        RecordFormat {
            layout,
            free_values: Vec::new(),
            owner_field: None,
            owner_in: OwnerIn::Value,
        }
    }

    /// The name of the layout, as a configuration has it.
    pub fn layout_name(&self) -> &'static str {
        match self.owner_in {
            OwnerIn::Value | OwnerIn::Session => self.layout.name(),
            OwnerIn::HolderIdentity => "lease",
        }
    }

    /// What a value of a `key` lock says.
    ///
    /// # Errors
    /// What is wrong with it if it is no lock record, in words that can follow its name and do not
    /// quote it.
    pub fn content(&self, value: &Bytes) -> Result<Content, String> {
        if self.free_values.contains(value) {
            return Ok(Content::Free);
        }
        let owner = match &self.owner_field {
            None => Cow::Borrowed(&**value),
            Some(field) => Cow::Owned(owner_in(value, field)?.into_bytes()),
        };
        if self.free_values.iter().any(|free| **free == *owner) {
            return Ok(Content::Free);
        }
        Ok(Content::Owner(Owner::new(&*owner)))
    }
}

/// The owner in a JSON object, at that path. What is wrong is told without the value: a log is no
/// place for it.
fn owner_in(value: &[u8], field: &str) -> Result<String, String> {
    // The reader below does not look into what it passes over.
    let text =
        std::str::from_utf8(value).map_err(|_| "is not UTF-8, as JSON has to be".to_owned())?;
    let path = path(field);
    let mut json = serde_json::Deserializer::from_str(text);
    let found = At(&path).deserialize(&mut json).and_then(|found| json.end().map(|()| found));
    let found = found.map_err(|error| match error.classify() {
        Category::Data if path.len() == 1 => "is JSON, but not an object".to_owned(),
        Category::Data => format!("is JSON, but not with an object at each step of {field:?}"),
        Category::Io | Category::Syntax | Category::Eof => {
            format!("is not JSON (line {}, column {})", error.line(), error.column())
        }
    })?;
    match found {
        Found::Once(Value::String(owner)) => Ok(owner),
        // Any other number has several spellings, or is not kept exactly.
        Found::Once(Value::Number(owner)) if owner.is_i64() || owner.is_u64() => {
            Ok(owner.to_string())
        }
        Found::Once(_) => Err(format!(
            "has a field {field:?} that is neither a string nor a whole number of 64 bits"
        )),
        Found::Missing => Err(format!("is a JSON object without the field {field:?}")),
        // Readers of JSON disagree on which of them counts (RFC 8259, section 4).
        Found::Twice => Err(format!("is a JSON object that names the field {field:?} twice")),
    }
}

/// The names of fields, from the outermost on: `owner.id`, or as a JSON pointer (RFC 6901)
/// `/owner/id`, by which a name may have a dot in it.
fn path(field: &str) -> Vec<String> {
    match field.strip_prefix('/') {
        Some(pointer) => {
            pointer.split('/').map(|name| name.replace("~1", "/").replace("~0", "~")).collect()
        }
        None => field.split('.').map(str::to_owned).collect(),
    }
}

/// Looks for a value at a path, which a map of all fields would find once at most.
struct At<'p>(&'p [String]);

enum Found {
    Missing,
    Once(Value),
    Twice,
}

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Found, D::Error> {
        if self.0.is_empty() {
            return Value::deserialize(json).map(Found::Once);
        }
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut fields: M) -> Result<Found, M::Error> {
        let mut found = None;
        while let Some(name) = fields.next_key::<String>()? {
            if name == self.0[0] {
                let inner = fields.next_value_seed(At(&self.0[1..]))?;
                found = Some(if found.is_none() { inner } else { Found::Twice });
            } else {
                fields.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found.unwrap_or(Found::Missing))
    }
}

/// A lock and how its record is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockSpec {
    /// Its key.
    pub key: LockKey,
    /// How its record is read.
    pub format: Arc<RecordFormat>,
}

/// Which locks a template names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateSpec {
    /// What all its keys begin with. The shorter, the more of the store is watched; empty is all of
    /// it.
    pub prefix: String,
    /// How their records are read.
    pub format: Arc<RecordFormat>,
}

impl TemplateSpec {
    pub(crate) fn names(&self, lock: &LockSpec) -> bool {
        lock.format == self.format && lock.key.as_str().starts_with(&self.prefix)
    }
}

impl LockSpec {
    /// The keys of the store that the record is made of.
    pub fn range(&self) -> KeyRange {
        let key = self.key.as_str();
        match self.format.layout {
            Layout::Key => KeyRange::Key((&self.key).into()),
            Layout::Election | Layout::Mutex => {
                KeyRange::Prefix(format!("{key}/").into_bytes().into())
            }
        }
    }

    /// A write to the key of a `key` lock.
    pub(crate) fn write(&self, stored: &KeyValue) -> Write {
        Write {
            revision: stored.modified,
            created: stored.created,
            version: stored.version,
            content: self.format.content(&stored.value).unwrap_or(Content::Unreadable),
        }
    }

    /// What is wrong with the record of a `key` lock, naming it.
    pub(crate) fn problem(&self, stored: &KeyValue) -> Option<Problem> {
        let wrong = self.format.content(&stored.value).err()?;
        let problem = format!("the record of {} {wrong}", self.key);
        Some(Arc::new(problem.into()))
    }

    /// What keeps a queue from having a holder.
    pub(crate) fn queue_problem(&self, queue: &QueueTrack) -> Option<Problem> {
        let created = queue.tie()?;
        let problem = format!(
            "below {} one transaction created several keys that are first (create_revision {created}), so that nobody is the holder: delete all but one",
            self.key
        );
        Some(Arc::new(problem.into()))
    }

    pub(crate) fn key_event(&self, event: &Event) -> KeyEvent {
        match event {
            Event::Put(stored) => KeyEvent::Put(self.write(stored)),
            Event::Delete { revision, .. } => KeyEvent::Delete(*revision),
        }
    }
}

/// A key in the queue of an `election` or `mutex` lock.
pub(crate) fn contender(stored: &KeyValue) -> Contender {
    Contender {
        key: (*stored.key).into(),
        created: stored.created,
        revision: stored.modified,
        value: (*stored.value).into(),
    }
}

pub(crate) fn queue_event(event: &Event) -> QueueEvent {
    match event {
        Event::Put(stored) => QueueEvent::Put(contender(stored)),
        Event::Delete { key, revision } => {
            QueueEvent::Delete { key: (**key).into(), revision: *revision }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(owner_field: Option<&str>, value: &str, expected: Result<Content, &str>) {
        let format = RecordFormat {
            layout: Layout::Key,
            free_values: vec![Bytes::from_static(b"none"), Bytes::new()],
            owner_field: owner_field.map(str::to_owned),
            owner_in: OwnerIn::Value,
        };
        let content = format.content(&Bytes::copy_from_slice(value.as_bytes()));
        assert_eq!(content, expected.map_err(str::to_owned), "{value:?}");
    }

    fn owner(name: &str) -> Result<Content, &str> {
        Ok(Content::Owner(Owner::new(name.as_bytes())))
    }

    #[test]
    fn without_an_owner_field_the_value_is_the_owner() {
        check(None, "shard-1", owner("shard-1"));
        check(None, "{\"owner\":\"a\"}", owner("{\"owner\":\"a\"}"));
        check(None, "none", Ok(Content::Free));
        check(None, "", Ok(Content::Free));
    }

    #[test]
    fn owner_field_takes_only_a_json_object_with_that_text() {
        let field = Some("owner");
        check(field, r#"{"owner":"a","ttl":3}"#, owner("a"));
        check(field, r#"{"owner":"none"}"#, Ok(Content::Free));
        check(field, "", Ok(Content::Free));
        check(field, r#"{"holder":"a"}"#, Err("is a JSON object without the field \"owner\""));
        check(field, r#"{"owner":7}"#, owner("7"));
        check(field, r#"{"owner":-18446744073709551}"#, owner("-18446744073709551"));
        check(field, r#"{"owner":18446744073709551615}"#, owner("18446744073709551615"));
        for other in ["18446744073709551616", "7.0", "1e3", "-0", "null", "true", "[]", "{}"] {
            let neither =
                "has a field \"owner\" that is neither a string nor a whole number of 64 bits";
            check(field, &format!(r#"{{"owner":{other}}}"#), Err(neither));
        }
        check(
            field,
            r#"{"owner":"a","owner":"b"}"#,
            Err("is a JSON object that names the field \"owner\" twice"),
        );
        check(
            field,
            r#"{"owner":"a","owner":"a"}"#,
            Err("is a JSON object that names the field \"owner\" twice"),
        );
        check(field, r#"{"x":{"owner":"b"},"y":[{"owner":"c"}],"owner":"a"}"#, owner("a"));
        for json in [r#"["owner"]"#, r#""owner""#, "7", "-7", "7.5", "true", "null"] {
            check(field, json, Err("is JSON, but not an object"));
        }
        check(field, "shard-1", Err("is not JSON (line 1, column 1)"));
    }

    #[test]
    fn owner_field_may_be_a_path_through_objects() {
        for field in ["spec.holder.id", "/spec/holder/id"] {
            let at = Some(field);
            let error = |text: &str| format!("{text} {field:?}");
            check(at, r#"{"id":"x","spec":{"n":[{"id":"y"}],"holder":{"id":"a"}}}"#, owner("a"));
            check(at, r#"{"spec":{"holder":{"id":12}}}"#, owner("12"));
            check(
                at,
                r#"{"spec":{"holder":{}}}"#,
                Err(&error("is a JSON object without the field")),
            );
            for value in [r#"{"spec":"a"}"#, r#"{"spec":{"holder":[{"id":"a"}]}}"#] {
                check(at, value, Err(&error("is JSON, but not with an object at each step of")));
            }
            for value in [
                r#"{"spec":{"holder":{"id":"a"}},"spec":{}}"#,
                r#"{"spec":{},"spec":{"holder":{"id":"a"}}}"#,
                r#"{"spec":{"holder":{"id":"a","id":"a"}}}"#,
            ] {
                let twice = format!("is a JSON object that names the field {field:?} twice");
                check(at, value, Err(&twice));
            }
        }
        check(Some("/a.b/c~1d"), r#"{"a.b":{"c/d":"x"},"a":{"b":"y"}}"#, owner("x"));
    }
}
