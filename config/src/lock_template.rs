//! Which lock guards a request: a lock key with placeholders.

use std::borrow::Cow;
use std::fmt;

use fencepost_policy::{LockKey, percent_encoded};

use crate::captures::{Captures, is_capture, is_placeholder_name};
use crate::path_template::PathTemplate;
use crate::trie::Step;

/// The lock key of a route, e.g. `/shards/{shard}/lock`.
///
/// A placeholder stands for a whole segment or a part of one, and always for `[A-Za-z0-9._~-]+`, not `.` or `..`. No
/// segment has two: `{a}-{b}` would name one lock for different requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockTemplate {
    written: String,
    segments: Vec<Segment>,
    /// The segments of its keys where they are presented percent-encoded; `None` if that is how they are.
    encoded: Option<Vec<Segment>>,
    /// The names of the placeholders, each once, and which capture of the path gives its value.
    placeholders: Vec<Placeholder>,
    static_key: Option<LockKey>,
}

/// Those of the placeholders, in their order; of those that there are not, empty.
type Values<'k> = [&'k str; LockTemplate::PLACEHOLDERS_MAX];

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

    /// Reads a template for the routes of one path. If the caller names the lock (`from_header`), its placeholders
    /// need not be captures of the path.
    pub(crate) fn parse(written: &str, path: &PathTemplate, from_header: bool) -> Result<LockTemplate, String> {
        let key = LockKey::new(written).map_err(|invalid| invalid.to_string())?;
        if written.contains(char::is_control) {
            return Err(format!("must be without control characters, not {written:?}"));
        }
        let mut placeholders = Vec::new();
        let parse = |segment| Segment::parse(segment, &mut placeholders, path);
        let segments = written.split('/').map(parse).collect::<Result<Vec<Segment>, String>>()?;
        if let Some(unknown) = placeholders.iter().find(|placeholder| placeholder.capture.is_none() && !from_header) {
            let captures: Vec<String> = path.capture_names().map(|name| format!("{{{name}}}")).collect();
            let captures = if captures.is_empty() { "nothing".to_owned() } else { captures.join(", ") };
            return Err(format!(
                "{{{}}} is not a capture of the path: {path:?} captures {captures}",
                unknown.name,
                path = path.as_str()
            ));
        }
        if placeholders.len() > LockTemplate::PLACEHOLDERS_MAX {
            return Err(format!(
                "has at most {} placeholders, not {}",
                LockTemplate::PLACEHOLDERS_MAX,
                placeholders.len()
            ));
        }
        let static_key = placeholders.is_empty().then_some(key);
        let encoded = segments.iter().any(Segment::is_encoded).then(|| segments.iter().map(Segment::encoded).collect());
        Ok(LockTemplate { written: written.to_owned(), segments, encoded, placeholders, static_key })
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
    /// If the buffer takes no more, or a placeholder is not among the captures: that is so only where the caller
    /// names the lock and the key is not rendered but matched.
    pub fn render_into(&self, captures: &Captures<'_>, buffer: &mut impl fmt::Write) -> fmt::Result {
        for (index, segment) in self.segments.iter().enumerate() {
            if index > 0 {
                buffer.write_char('/')?;
            }
            buffer.write_str(&segment.before)?;
            if let Some(placeholder) = segment.placeholder {
                let capture = self.placeholders[placeholder].capture.and_then(|index| captures.get(index));
                write!(buffer, "{}", capture.ok_or(fmt::Error)?)?;
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
            && self.values(&self.segments, key).is_some()
    }

    /// The template's key that a request means which presents this: the key as it is, or with what is not visible ASCII
    /// percent-encoded ([`LockKey::is_presented_as`]). No two keys of one template are presented alike, nor are those of two
    /// in one configuration (`has_twin_in`).
    pub fn named<'k>(&self, presented: &'k str) -> Option<Cow<'k, str>> {
        self.named_if(presented, |_| true)
    }

    /// The same on a path with these captures: a placeholder that is a capture has its value, so that a request for
    /// shard 2 cannot name the lock of shard 3.
    pub fn named_on_path<'k>(&self, presented: &'k str, captures: &Captures<'_>) -> Option<Cow<'k, str>> {
        self.named_if(presented, |values| {
            self.placeholders.iter().zip(values).all(|(placeholder, value)| match placeholder.capture {
                Some(index) => captures.get(index).is_some_and(|capture| capture == **value),
                None => true,
            })
        })
    }

    fn named_if<'k>(&self, presented: &'k str, fits: impl Fn(&Values<'k>) -> bool) -> Option<Cow<'k, str>> {
        let key = match (self.values(&self.segments, presented), &self.encoded) {
            (Some(values), _) => fits(&values).then_some(Cow::Borrowed(presented)),
            (None, Some(encoded)) => {
                let values = self.values(encoded, presented).filter(fits)?;
                let key: Vec<String> = self.segments.iter().map(|segment| segment.with(&values)).collect();
                Some(Cow::Owned(key.join("/")))
            }
            (None, None) => None,
        };
        key.filter(|key| key.len() <= LockKey::BYTES_MAX)
    }

    /// The values of the placeholders that give a key which reads so by these segments.
    fn values<'k>(&self, segments: &[Segment], key: &'k str) -> Option<Values<'k>> {
        let mut values = [""; LockTemplate::PLACEHOLDERS_MAX];
        let mut written = key.split('/');
        for segment in segments {
            let value = segment.value(written.next()?)?;
            if let Some(placeholder) = segment.placeholder {
                // The same placeholder has the same value everywhere; no value is empty.
                if !values[placeholder].is_empty() && values[placeholder] != value {
                    return None;
                }
                values[placeholder] = value;
            }
        }
        written.next().is_none().then_some(values)
    }

    /// Whether one key may be named by both templates. When in doubt, it may.
    pub fn overlaps(&self, other: &LockTemplate) -> bool {
        self.segments.len() == other.segments.len() && self.begins_like(other)
    }

    /// Whether a key of this template and another one of the other may be presented alike, as `/a b` and `/a%20b` are. When in
    /// doubt, they may.
    pub(crate) fn has_twin_in(&self, other: &LockTemplate) -> bool {
        if self.encoded.is_none() && other.encoded.is_none() {
            return false;
        }
        let encoded = |template: &LockTemplate| template.encoded.clone().unwrap_or_else(|| template.segments.clone());
        let differs = self.segments.iter().zip(&other.segments).any(|(mine, others)| mine.may_be_twin_of(others));
        let mut pairs = encoded(self).into_iter().zip(encoded(other));
        differs && self.segments.len() == other.segments.len() && pairs.all(|(mine, others)| mine.overlaps(&others))
    }

    /// What its keys take where they are presented percent-encoded. Where it [overlaps](LockTemplate::overlaps) another or
    /// [has a twin](LockTemplate::has_twin_in) in it, these begin alike. Keys with other numbers of segments begin otherwise.
    pub(crate) fn whole_steps(&self) -> Vec<Step> {
        let count = Step::Text(self.segments.len().to_string());
        std::iter::once(count).chain(self.steps()).collect()
    }

    /// The same, segment by segment: where it [is above](LockTemplate::is_above) another, these begin alike.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let segments = self.encoded.as_ref().unwrap_or(&self.segments);
        segments.iter().map(Segment::step).collect()
    }

    /// Whether a key of the other template may lie below a key of this one, as `a/b` lies below `a`. When in doubt,
    /// it may.
    pub(crate) fn is_above(&self, other: &LockTemplate) -> bool {
        self.segments.len() < other.segments.len() && self.begins_like(other)
    }

    fn begins_like(&self, other: &LockTemplate) -> bool {
        // Most differ before their first placeholders, where many are held against many.
        let mut literal = self
            .written
            .bytes()
            .zip(other.written.bytes())
            .take_while(|(mine, others)| *mine != b'{' && *others != b'{');
        literal.all(|(mine, others)| mine == others)
            && self.segments.iter().zip(&other.segments).all(|(mine, others)| mine.overlaps(others))
    }
}

impl fmt::Display for LockTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

impl Segment {
    fn parse(text: &str, placeholders: &mut Vec<Placeholder>, path: &PathTemplate) -> Result<Segment, String> {
        let literal = |part: &str| match part.contains(['{', '}']) {
            true => Err(format!(
                "{text:?} is no segment of a key: it has text and at most one placeholder, like \"shard-{{n}}\""
            )),
            false => Ok(part.to_owned()),
        };
        let Some((before, name, after)) = text.split_once('{').and_then(|(before, rest)| {
            let (name, after) = rest.split_once('}')?;
            Some((before, name, after))
        }) else {
            return Ok(Segment { before: literal(text)?, placeholder: None, after: String::new() });
        };
        if !is_placeholder_name(name) {
            return Err(format!("{{{name}}} is no placeholder: a name is like \"shard_2\", of a-z, 0-9 and _"));
        }
        let known = placeholders.iter().position(|placeholder| placeholder.name == name);
        let placeholder = known.unwrap_or_else(|| {
            let capture = path.capture_names().position(|capture| capture == name);
            placeholders.push(Placeholder { name: name.to_owned(), capture });
            placeholders.len() - 1
        });
        Ok(Segment { before: literal(before)?, placeholder: Some(placeholder), after: literal(after)? })
    }

    /// How its text is presented percent-encoded. What a placeholder stands for is visible ASCII, and has no `%`.
    fn encoded(&self) -> Segment {
        let encoded = |text: &str| percent_encoded(text.as_bytes()).map(char::from).collect();
        Segment { before: encoded(&self.before), placeholder: self.placeholder, after: encoded(&self.after) }
    }

    fn step(&self) -> Step {
        let before = self.before.clone();
        if self.placeholder.is_some() { Step::BeginsWith(before) } else { Step::Text(before) }
    }

    /// Whether that is another text.
    fn is_encoded(&self) -> bool {
        self.text().any(|byte| !byte.is_ascii_graphic())
    }

    /// What is written of it, without its placeholder.
    fn text(&self) -> impl Iterator<Item = u8> {
        self.before.bytes().chain(self.after.bytes())
    }

    /// Whether two different texts of these segments may be the same where they are percent-encoded: then one has a `%` where the
    /// other has what is encoded.
    fn may_be_twin_of(&self, other: &Segment) -> bool {
        let parts = |segment: &Segment| (segment.before.clone(), segment.placeholder.is_some(), segment.after.clone());
        let has_escape = |segment: &Segment| segment.text().any(|byte| byte == b'%');
        let may_meet = self.is_encoded() && has_escape(other) || has_escape(self) && other.is_encoded();
        may_meet && parts(self) != parts(other)
    }

    /// The text for these values of the placeholders.
    fn with(&self, values: &Values<'_>) -> String {
        let value = self.placeholder.map_or("", |placeholder| values[placeholder]);
        [&self.before, value, &self.after].concat()
    }

    /// The value of the placeholder that makes this segment read so; empty if there is no placeholder.
    fn value<'k>(&self, written: &'k str) -> Option<&'k str> {
        let value = written.strip_prefix(self.before.as_str())?.strip_suffix(self.after.as_str())?;
        let fits = if self.placeholder.is_some() { is_capture(value.bytes()) } else { value.is_empty() };
        fits.then_some(value)
    }

    fn overlaps(&self, other: &Segment) -> bool {
        match (self.placeholder, other.placeholder) {
            (None, _) => other.value(&self.before).is_some(),
            (Some(_), None) => self.value(&other.before).is_some(),
            (Some(_), Some(_)) => {
                let prefixes = self.before.starts_with(&other.before) || other.before.starts_with(&self.before);
                let suffixes = self.after.ends_with(&other.after) || other.after.ends_with(&self.after);
                prefixes && suffixes
            }
        }
    }
}

#[cfg(test)]
#[path = "lock_template_tests.rs"]
mod tests;
