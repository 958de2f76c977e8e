//! Which lock guards a request: a lock key with placeholders.

use std::borrow::Cow;
use std::fmt::{self, Write};

use fencepost_policy::{LockKey, percent_encoded};

use crate::captures::{Captures, is_capture, is_placeholder_name};
use crate::path_template::PathTemplate;

/// The lock key of a route, e.g. `/shards/{shard}/lock`.
///
/// A placeholder stands for a whole segment or a part of one, and always for `[A-Za-z0-9._~-]+`,
/// not `.` or `..`. No segment has two: `{a}-{b}` would name one lock for different requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockTemplate {
    written: String,
    segments: Vec<Segment>,
    /// The segments of its keys where they are presented percent-encoded.
    encoded: Vec<Segment>,
    /// The names of the placeholders, each once, and which capture of the path gives its value.
    placeholders: Vec<Placeholder>,
    static_key: Option<LockKey>,
}

/// Those of the placeholders, in their order; of those that there are not, empty.
type Values<'k> = [&'k str; LockTemplate::PLACEHOLDERS_MAX];

type Named<'k> = Option<Cow<'k, str>>;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Segment {
    before: String,
    /// Which placeholder follows, if any.
    placeholder: Option<usize>,
    after: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Placeholder {
    name: String,
    capture: Option<usize>,
}

impl LockTemplate {
    /// The largest number of different placeholders in one template.
    pub const PLACEHOLDERS_MAX: usize = 8;

    /// Reads a template for the routes of one path. If `is_free`, since the caller names the lock,
    /// its placeholders need not be captures of the path.
    pub(crate) fn parse(text: &str, path: &PathTemplate, is_free: bool) -> Result<Self, String> {
        let key = LockKey::new(text).map_err(|invalid| invalid.to_string())?;
        if text.contains(char::is_control) {
            return Err(format!("must be without control characters, not {text:?}"));
        }
        let mut placeholders: Vec<Placeholder> = Vec::new();
        let parse = |segment| Segment::read(segment, &mut placeholders, path);
        let segments = text.split('/').map(parse).collect::<Result<Vec<Segment>, String>>()?;
        let mut unknown = placeholders.iter().filter(|known| known.capture.is_none());
        if let Some(Placeholder { name, .. }) = unknown.next().filter(|_| !is_free) {
            let captures = path.capture_names().map(|name| format!("{{{name}}}"));
            let captures = captures.collect::<Vec<_>>().join(", ");
            let captures = if captures.is_empty() { "nothing" } else { &captures };
            let captured = format!("{:?} captures {captures}", path.as_str());
            return Err(format!("{{{name}}} is not a capture of the path: {captured}"));
        }
        let (count, most) = (placeholders.len(), LockTemplate::PLACEHOLDERS_MAX);
        if count > most {
            return Err(format!("has at most {most} placeholders, not {count}"));
        }
        let encoded = segments.iter().map(Segment::encoded).collect();
        let (written, static_key) = (text.to_owned(), placeholders.is_empty().then_some(key));
        Ok(LockTemplate { written, segments, encoded, placeholders, static_key })
    }

    /// The template as it is written.
    pub fn as_str(&self) -> &str {
        &self.written
    }

    /// The key, if it is the same for every request.
    pub fn static_key(&self) -> Option<&LockKey> {
        self.static_key.as_ref()
    }

    /// What every key of this template begins with: the text before the first placeholder.
    pub fn literal_prefix(&self) -> &str {
        self.written.split('{').next().unwrap_or_default()
    }

    /// Writes the key for what the path captured. It may be longer than [`LockKey::BYTES_MAX`].
    ///
    /// # Errors
    /// If the buffer takes no more, or a placeholder is not among the captures: that is so only
    /// where the caller names the lock and the key is not rendered but matched.
    pub fn render_into(&self, captures: &Captures<'_>, buffer: &mut impl Write) -> fmt::Result {
        for (index, segment) in self.segments.iter().enumerate() {
            if index > 0 {
                buffer.write_char('/')?;
            }
            buffer.write_str(&segment.before)?;
            if let Some(placeholder) = segment.placeholder {
                let capture = self.placeholders[placeholder].capture;
                let value = capture.and_then(|index| captures.get(index)).ok_or(fmt::Error)?;
                write!(buffer, "{value}")?;
            }
            buffer.write_str(&segment.after)?;
        }
        Ok(())
    }

    /// Whether this is one of the template's keys, for some values of its placeholders.
    pub fn matches_key(&self, key: &str) -> bool {
        // Most begin otherwise, where many are held against many.
        key.len() <= LockKey::BYTES_MAX
            && key.starts_with(self.literal_prefix())
            && values(&self.segments, key).is_some()
    }

    /// The template's key that a request means which presents this: the key as it is, or with what
    /// is not visible ASCII percent-encoded ([`LockKey::is_presented_as`]). No two keys of one
    /// template are presented alike, nor are those of two in one configuration (`has_twin_in`).
    pub fn named<'k>(&self, presented: &'k str) -> Option<Cow<'k, str>> {
        self.named_if(presented, |_| true)
    }

    /// [`named`](Self::named) on a path with these captures: a placeholder that is a capture has
    /// its value, so that a request for shard 2 cannot name the lock of shard 3.
    pub fn named_on_path<'k>(&self, key: &'k str, captures: &Captures<'_>) -> Option<Cow<'k, str>> {
        let fits = |(placeholder, value): (&Placeholder, &&str)| {
            let Some(index) = placeholder.capture else { return true };
            captures.get(index).is_some_and(|capture| capture == **value)
        };
        self.named_if(key, |values| self.placeholders.iter().zip(values).all(fits))
    }

    fn named_if<'k>(&self, name: &'k str, fits: impl Fn(&Values<'k>) -> bool) -> Named<'k> {
        let key = if let Some(values) = values(&self.segments, name) {
            fits(&values).then_some(Cow::Borrowed(name))
        } else {
            let values = values(&self.encoded, name).filter(fits)?;
            let key: Vec<String> = self.segments.iter().map(|part| part.with(&values)).collect();
            Some(Cow::Owned(key.join("/")))
        };
        key.filter(|key| key.len() <= LockKey::BYTES_MAX)
    }

    /// Whether one key may be named by both templates. When in doubt, it may.
    pub fn overlaps(&self, other: &LockTemplate) -> bool {
        self.segments.len() == other.segments.len() && begin_alike(&self.segments, &other.segments)
    }

    /// Whether a key of this template and another one of the other may be presented alike, as `/a
    /// b` and `/a%20b` are. When in doubt, they may.
    pub(crate) fn has_twin_in(&self, other: &LockTemplate) -> bool {
        let mut pairs = self.segments.iter().zip(&other.segments);
        self.segments.len() == other.segments.len()
            && pairs.any(|(mine, others)| mine.may_be_twin_of(others))
            && begin_alike(&self.encoded, &other.encoded)
    }

    /// What all its keys begin with where they are presented percent-encoded. Where it
    /// [overlaps](LockTemplate::overlaps) another, has a twin in it or is above it, one of the two
    /// begins the other's.
    pub(crate) fn beginning(&self) -> String {
        percent_encoded(self.literal_prefix().as_bytes()).map(char::from).collect()
    }

    /// Whether a key of the other template may lie below a key of this one, as `a/b` lies below
    /// `a`. When in doubt, it may.
    pub(crate) fn is_above(&self, other: &LockTemplate) -> bool {
        self.segments.len() < other.segments.len() && begin_alike(&self.segments, &other.segments)
    }
}

/// The values of the placeholders that give a key which reads so by these segments.
fn values<'k>(segments: &[Segment], key: &'k str) -> Option<Values<'k>> {
    let mut values = [""; LockTemplate::PLACEHOLDERS_MAX];
    let mut written = key.split('/');
    for segment in segments {
        let value = segment.value(written.next()?)?;
        if let Some(placeholder) = segment.placeholder {
            // A placeholder has one value in the whole path, and that is never empty.
            if !values[placeholder].is_empty() && values[placeholder] != value {
                return None;
            }
            values[placeholder] = value;
        }
    }
    written.next().is_none().then_some(values)
}

/// Whether there may be texts that both begin with, as far as the shorter one goes.
fn begin_alike(one: &[Segment], other: &[Segment]) -> bool {
    one.iter().zip(other).all(|(one, other)| one.overlaps(other))
}

impl fmt::Display for LockTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

impl Segment {
    fn read(text: &str, known: &mut Vec<Placeholder>, path: &PathTemplate) -> Result<Self, String> {
        let (before, rest) = text.split_once('{').unwrap_or((text, ""));
        let (before, name, after) = match rest.split_once('}') {
            Some((name, after)) => (before, Some(name), after),
            None => (text, None, ""),
        };
        if before.contains(['{', '}']) || after.contains(['{', '}']) {
            let rule = r#"it has text and at most one placeholder, like "shard-{n}""#;
            return Err(format!("{text:?} is no segment of a key: {rule}"));
        }
        if let Some(name) = name.filter(|name| !is_placeholder_name(name)) {
            let rule = r#"a name is like "shard_2", of a-z, 0-9 and _"#;
            return Err(format!("{{{name}}} is no placeholder: {rule}"));
        }
        let placeholder = name.map(|name| {
            known.iter().position(|placeholder| placeholder.name == name).unwrap_or_else(|| {
                let capture = path.capture_names().position(|capture| capture == name);
                known.push(Placeholder { name: name.to_owned(), capture });
                known.len() - 1
            })
        });
        Ok(Segment { before: before.to_owned(), placeholder, after: after.to_owned() })
    }

    /// How its text is presented percent-encoded. What a placeholder stands for is visible ASCII,
    /// and has no `%`.
    fn encoded(&self) -> Segment {
        let encoded = |text: &str| percent_encoded(text.as_bytes()).map(char::from).collect();
        let (before, after) = (encoded(&self.before), encoded(&self.after));
        Segment { before, placeholder: self.placeholder, after }
    }

    /// Whether two different texts of these segments may be the same where they are
    /// percent-encoded: then one has a `%` where the other has what is encoded.
    fn may_be_twin_of(&self, other: &Segment) -> bool {
        let parts = |of: &Segment| (of.before.clone(), of.placeholder.is_some(), of.after.clone());
        let text = |of: &Segment| [of.before.as_str(), &of.after].concat();
        let is_encoded = |text: String| text.contains(|letter: char| !letter.is_ascii_graphic());
        let may_be = |one, other| is_encoded(text(one)) && text(other).contains('%');
        parts(self) != parts(other) && (may_be(self, other) || may_be(other, self))
    }

    /// The text for these values of the placeholders.
    fn with(&self, values: &Values<'_>) -> String {
        let value = self.placeholder.map_or("", |placeholder| values[placeholder]);
        [&self.before, value, &self.after].concat()
    }

    /// The value of the placeholder that makes this segment read so; empty if there is no
    /// placeholder.
    fn value<'k>(&self, written: &'k str) -> Option<&'k str> {
        let value = written.strip_prefix(&*self.before)?.strip_suffix(&*self.after)?;
        let is_filled = self.placeholder.is_some();
        let fits = if is_filled { is_capture(value.bytes()) } else { value.is_empty() };
        fits.then_some(value)
    }

    fn overlaps(&self, other: &Segment) -> bool {
        match (self.placeholder, other.placeholder) {
            (None, _) => other.value(&self.before).is_some(),
            (Some(_), None) => self.value(&other.before).is_some(),
            (Some(_), Some(_)) => {
                let (before, others) = (&self.before, &other.before);
                let (after, other_after) = (&self.after, &other.after);
                (before.starts_with(others) || others.starts_with(before))
                    && (after.ends_with(other_after) || other_after.ends_with(after))
            }
        }
    }
}

#[cfg(test)]
#[path = "lock_template_tests.rs"]
mod tests;
