//! How a record in the store is read.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use fencepost_policy::{
    Contender, Content, KeyEvent, Layout, LockKey, Owner, QueueEvent, QueueTrack, Write,
};
use serde::Deserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};
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
    /// Layout `key`: the value is a JSON object, and this field of it is the owner. Without it, the
    /// value is the owner.
    pub owner_field: Option<String>,
}

impl RecordFormat {
    /// Records of that layout whose value is the owner.
    pub fn plain(layout: Layout) -> RecordFormat {
        RecordFormat { layout, free_values: Vec::new(), owner_field: None }
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

/// The field of a JSON object. What is wrong is told without the value: a log is no place for it.
fn owner_in(value: &[u8], field: &str) -> Result<String, String> {
    // The reader below does not look into what it passes over.
    let text =
        std::str::from_utf8(value).map_err(|_| "is not UTF-8, as JSON has to be".to_owned())?;
    let mut json = serde_json::Deserializer::from_str(text);
    let found = json.deserialize_map(FieldOf(field)).and_then(|found| json.end().map(|()| found));
    let found = found.map_err(|error| match error.classify() {
        Category::Data => "is JSON, but not an object".to_owned(),
        Category::Io | Category::Syntax | Category::Eof => {
            format!("is not JSON (line {}, column {})", error.line(), error.column())
        }
    })?;
    match found {
        Found::Once(serde_json::Value::String(owner)) => Ok(owner),
        Found::Once(_) => Err(format!("has a field {field:?} that is not a string")),
        Found::Missing => Err(format!("is a JSON object without the field {field:?}")),
        // Readers of JSON disagree on which of them counts (RFC 8259, section 4).
        Found::Twice => Err(format!("is a JSON object that names the field {field:?} twice")),
    }
}

/// Looks for one field of a JSON object, which a map of all its fields would find once at most.
struct FieldOf<'f>(&'f str);

enum Found {
    Missing,
    Once(serde_json::Value),
    Twice,
}

impl<'de> Visitor<'de> for FieldOf<'_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut fields: M) -> Result<Found, M::Error> {
        let mut found = Found::Missing;
        while let Some(name) = fields.next_key::<String>()? {
            if name == self.0 {
                let value = fields.next_value()?;
                found =
                    if matches!(found, Found::Missing) { Found::Once(value) } else { Found::Twice };
            } else {
                fields.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
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
        check(field, r#"{"owner":7}"#, Err("has a field \"owner\" that is not a string"));
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
}
