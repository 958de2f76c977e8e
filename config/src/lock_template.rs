//! Which lock guards a request: a lock key with placeholders.

use std::borrow::Cow;
use std::fmt;

use fencepost_policy::{LockKey, percent_encoded};

use crate::captures::{Captures, is_capture, is_placeholder_name};
use crate::path_template::PathTemplate;

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
        key.len() <= LockKey::BYTES_MAX && self.values(&self.segments, key).is_some()
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
        let encoded = |template: &LockTemplate| template.encoded.clone().unwrap_or_else(|| template.segments.clone());
        let differs = self.segments.iter().zip(&other.segments).any(|(mine, others)| mine.may_be_twin_of(others));
        let mut pairs = encoded(self).into_iter().zip(encoded(other));
        differs && self.segments.len() == other.segments.len() && pairs.all(|(mine, others)| mine.overlaps(&others))
    }

    /// Whether a key of the other template may lie below a key of this one, as `a/b` lies below `a`. When in doubt,
    /// it may.
    pub(crate) fn is_above(&self, other: &LockTemplate) -> bool {
        self.segments.len() < other.segments.len() && self.begins_like(other)
    }

    fn begins_like(&self, other: &LockTemplate) -> bool {
        self.segments.iter().zip(&other.segments).all(|(mine, others)| mine.overlaps(others))
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
mod tests {
    use super::*;
    use crate::path_template::PathMatch;
    use proptest::prelude::*;

    const PATH: &str = "/{a}/{b}/";

    fn template(written: &str) -> LockTemplate {
        LockTemplate::parse(written, &PathTemplate::parse(PATH).unwrap(), true).unwrap()
    }

    fn with_captures<T>(path: &str, look: impl FnOnce(&Captures<'_>) -> T) -> T {
        match PathTemplate::parse(PATH).unwrap().matches(path) {
            PathMatch::Yes(captures) => look(&captures),
            PathMatch::No | PathMatch::BadCapture => panic!("{path} is not taken"),
        }
    }

    #[test]
    fn a_key_is_rendered_from_what_the_path_captured() {
        for (written, key) in [
            ("/k", "/k"),
            ("/locks/{a}/lock", "/locks/x/lock"),
            ("{b}", "Y"),
            ("/locks/shard-{b}.lock/{a}", "/locks/shard-Y.lock/x"),
            ("/{a}/{a}", "/x/x"),
            ("//{a}/", "//x/"),
        ] {
            let mut rendered = String::new();
            with_captures("/x/%59/", |captures| template(written).render_into(captures, &mut rendered)).unwrap();
            assert_eq!(rendered, key, "{written}");
        }
        let unbound = with_captures("/x/y/", |captures| template("/{z}").render_into(captures, &mut String::new()));
        assert_eq!(unbound, Err(fmt::Error));
    }

    #[test]
    fn a_key_matches_if_each_placeholder_stands_for_one_segment() {
        let shards = template("/shards/{z}/lock");
        for key in ["/shards/2/lock", "/shards/a.b_c~d-E/lock", "/shards/.../lock"] {
            assert!(shards.matches_key(key), "{key}");
        }
        let wrong = [
            "",
            "/shards//lock",
            "/shards/2/lock/",
            "/shards/2/3/lock",
            "/shards/../lock",
            "/shards/./lock",
            "/shards/2",
        ];
        let odd = [
            "/shards/a b/lock",
            "/shards/%32/lock",
            "/shards/ü/lock",
            "shards/2/lock",
            "//shards/2/lock",
            "/shards/{z}/lock",
            "/Shards/2/lock",
        ];
        for key in wrong.into_iter().chain(odd) {
            assert!(!shards.matches_key(key), "{key}");
        }
        assert!(template("/s-{z}-x").matches_key("/s-2-x"));
        assert!(!template("/s-{z}-x").matches_key("/s--x"));
        assert!(!template("/s-{z}-s-").matches_key("/s-"), "what is before and what is after do not share letters");
        assert!(!template("/{z}").matches_key(&format!("/{}", "k".repeat(1024))), "too long for a lock key");
    }

    #[test]
    fn one_placeholder_has_one_value() {
        assert!(template("/{z}/x/{z}").matches_key("/1/x/1"));
        assert!(!template("/{z}/x/{z}").matches_key("/1/x/2"));
    }

    #[test]
    fn a_caller_cannot_name_the_lock_of_another_path() {
        let matches =
            |key| with_captures("/2/y/", |captures| template("/shards/{a}/{z}").named_on_path(key, captures).is_some());
        assert!(matches("/shards/2/anything"));
        assert!(!matches("/shards/3/anything"));
        assert!(!matches("/shards/2/"));
    }

    /// Keys with other characters could not be named at all.
    #[test]
    fn a_key_is_named_as_it_is_or_percent_encoded() {
        let named = |written: &str, presented: &str| template(written).named(presented).map(Cow::into_owned);
        for (written, presented, key) in [
            ("/k", "/k", Some("/k")),
            ("/ü x/lock", "/ü x/lock", Some("/ü x/lock")),
            ("/ü x/lock", "/%C3%BC%20x/lock", Some("/ü x/lock")),
            ("/ü x/lock", "/%c3%bc%20x/lock", None),
            ("/ü x/lock", "/ü%20x/lock", None),
            ("/ü/{z}/lock-{y} x", "/%C3%BC/2/lock-a x", None),
            ("/ü/{z}/lock-{y} x", "/%C3%BC/2/lock-a%20x", Some("/ü/2/lock-a x")),
            ("/ü/{z}/lock-{y} x", "/ü/2/lock-a x", Some("/ü/2/lock-a x")),
            ("/ü/{z}/{z}", "/%C3%BC/2/3", None),
            ("/a%20b", "/a%20b", Some("/a%20b")),
            ("/a%20b", "/a b", None),
            ("/{z}", "/%C3%BC", None),
            ("/k", "/%6B", None),
        ] {
            assert_eq!(named(written, presented).as_deref(), key, "{written} {presented}");
        }
        let long = format!("/{}", "ü".repeat(511));
        assert_eq!(named(&long, &format!("/{}", "%C3%BC".repeat(511))), Some(long));
        let too_long = format!("/{}/{}", "%C3%BC".repeat(500), "k".repeat(23));
        assert_eq!(named(&format!("/{}/{{z}}", "ü".repeat(500)), &too_long), None);
        let on_path = |presented| {
            with_captures("/2/y/", |captures| template("/ü/{a}").named_on_path(presented, captures).is_some())
        };
        assert!(on_path("/%C3%BC/2"));
        assert!(!on_path("/%C3%BC/3"), "of another path");
    }

    #[test]
    fn templates_have_twins_if_two_keys_may_be_presented_alike() {
        for (one, other, have_twins) in [
            ("/a b", "/a%20b", true),
            ("/a b", "/a b", false),
            ("/a b", "/a c", false),
            ("/a b", "/a%20c", false),
            ("/a b", "/a%20b/c", false),
            ("/a b/{x}", "/a%20b/c", true),
            ("/a b/{x}", "/a b/{y}", false),
            ("/a b/c%", "/a b/c%", false),
            ("/%2{x}", "/ ", true),
            ("/ {x}", "/%20{y}", true),
            ("/{x}%20z", "/q {y}", true),
            ("/{x}", "/a b", false),
            ("/ü", "/%C3%BC", true),
            ("/ü", "/%c3%bc", false),
        ] {
            assert_eq!(template(one).has_twin_in(&template(other)), have_twins, "{one} {other}");
            assert_eq!(template(other).has_twin_in(&template(one)), have_twins, "{other} {one}");
        }
    }

    #[test]
    fn only_a_template_without_placeholders_is_static() {
        assert_eq!(template("/k").static_key(), Some(&LockKey::new("/k").unwrap()));
        assert_eq!(template("/{a}").static_key(), None);
        for (written, prefix) in [("/k", "/k"), ("/shards/{a}/lock", "/shards/"), ("/s-{a}", "/s-"), ("{a}", "")] {
            assert_eq!(template(written).literal_prefix(), prefix);
        }
    }

    #[test]
    fn a_placeholder_is_a_capture_unless_the_caller_names_the_lock() {
        let path = PathTemplate::parse(PATH).unwrap();
        assert!(LockTemplate::parse("/{a}", &path, false).is_ok());
        assert!(LockTemplate::parse("/{z}", &path, false).is_err());
        assert!(LockTemplate::parse("/{z}", &path, true).is_ok());
        for wrong in
            ["", "/{", "/}", "/{}", "/{A}", "/{1}", "/{a}{b}", "/{a}-{b}", "/{{a}}", "/{a}}", "/a\n", "/{a", "/a}"]
        {
            assert!(LockTemplate::parse(wrong, &path, true).is_err(), "{wrong:?}");
        }
        assert!(LockTemplate::parse(&"k".repeat(1025), &path, true).is_err());
        let nine: String = (0..9).map(|n| format!("/{{p{n}}}")).collect();
        assert!(LockTemplate::parse(&nine, &path, true).is_err());
    }

    #[test]
    fn templates_overlap_if_one_key_may_be_both() {
        for (one, other, overlap) in [
            ("/a", "/a", true),
            ("/a", "/b", false),
            ("/a", "/{x}", true),
            ("/..", "/{x}", false),
            ("/a/b", "/{x}", false),
            ("/{x}/b", "/a/{y}", true),
            ("/{x}/b", "/a/c", false),
            ("/s-{x}", "/s-2", true),
            ("/s-{x}", "/t-{x}", false),
            ("/s-{x}", "/s{x}", true),
            ("/{x}-s", "/{x}-t", false),
        ] {
            assert_eq!(template(one).overlaps(&template(other)), overlap, "{one} {other}");
            assert_eq!(template(other).overlaps(&template(one)), overlap, "{other} {one}");
        }
    }

    #[test]
    fn a_template_is_above_what_may_lie_below_its_keys() {
        for (above, below, is_above) in [
            ("a", "a/b", true),
            ("a", "ab", false),
            ("a", "a", false),
            ("a/b", "a", false),
            ("/a", "/{x}/b", true),
            ("/{x}", "/a/b/c", true),
            ("/s-{x}", "/t-1/a", false),
        ] {
            assert_eq!(template(above).is_above(&template(below)), is_above, "{above} {below}");
        }
    }

    proptest! {
        #[test]
        fn a_rendered_key_matches_its_template(a in "[A-Za-z0-9_~-]{1,8}", b in "[A-Za-z0-9_~-]{1,8}") {
            let template = template("/x/{a}/y-{b}.z/{a}");
            let mut key = String::new();
            let matches = with_captures(&format!("/{a}/{b}/"), |captures| {
                template.render_into(captures, &mut key).unwrap();
                template.named_on_path(&key, captures).is_some_and(|named| named == key)
            });
            prop_assert!(matches, "{key}");
        }

        #[test]
        fn static_keys_nest_as_the_policy_says(one in "[ab/]{1,6}", other in "[ab/]{1,6}") {
            let nests = LockKey::new(&one).unwrap().nests(&LockKey::new(&other).unwrap());
            let (one, other) = (template(&one), template(&other));
            prop_assert_eq!(one.is_above(&other) || other.is_above(&one), nests);
        }
    }
}
