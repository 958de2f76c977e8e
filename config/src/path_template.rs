//! Which paths a route takes.

use std::fmt;

use crate::captures::{Captures, is_capture, is_placeholder_name};
use crate::percent::{decoded, is_ambiguous};

/// The paths that a route takes: a prefix of whole segments, e.g. `/shards/{shard}/`.
///
/// `{name}` captures exactly one segment. A template with a slash at its end wants that slash:
/// `/a/` takes `/a/` and `/a/b`, `/a` takes `/a` too; neither takes `/ab`. `/` takes every path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathTemplate {
    written: String,
    segments: Vec<Segment>,
    ends_with_slash: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Literal {
        text: String,
        /// Then most segments of paths can be told from it byte by byte.
        is_ascii: bool,
    },
    Capture(String),
}

/// Whether a route takes a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathMatch<'p> {
    /// It does not, however the path is read.
    No,
    /// It does, however the path is read.
    Yes(Captures<'p>),
    /// It depends on who reads the path, or a capture is not what may stand in a lock key: such a
    /// request must be refused (`lock-not-allowed`), and must not go on to a later route.
    BadCapture,
}

impl PathTemplate {
    /// The largest number of captures in one template.
    pub const CAPTURES_MAX: usize = 8;

    pub(crate) fn parse(written: &str) -> Result<PathTemplate, String> {
        let Some(rest) = written.strip_prefix('/') else {
            return Err(format!("must begin with \"/\", not be {written:?}"));
        };
        let ends_with_slash = written.ends_with('/');
        let segments = rest.strip_suffix('/').unwrap_or(rest).split('/');
        let segments = segments.filter(|_| !rest.is_empty()).map(Segment::parse);
        let segments = segments.collect::<Result<_, _>>()?;
        let template = PathTemplate { written: written.to_owned(), segments, ends_with_slash };
        let names: Vec<&str> = template.capture_names().collect();
        let is_known = |(index, name): &(usize, &&str)| names[..*index].contains(name);
        if let Some((_, name)) = names.iter().enumerate().find(is_known) {
            return Err(format!("captures {{{name}}} twice"));
        }
        let (count, most) = (names.len(), PathTemplate::CAPTURES_MAX);
        if count > most {
            return Err(format!("has at most {most} captures, not {count}"));
        }
        Ok(template)
    }

    /// The template as it is written.
    pub fn as_str(&self) -> &str {
        &self.written
    }

    /// The first segment of each path that this may take, in lower case, of those that
    /// [`plain_first_segment`] shows. `None`: it may be any.
    pub(crate) fn first_segment(&self) -> Option<String> {
        match self.segments.first()? {
            Segment::Literal { text, is_ascii: true } => Some(text.to_ascii_lowercase()),
            Segment::Literal { is_ascii: false, .. } | Segment::Capture(_) => None,
        }
    }

    /// The names of the captures, in the order of [`Captures`].
    pub fn capture_names(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Capture(name) => Some(name.as_str()),
            Segment::Literal { .. } => None,
        })
    }

    /// Whether this route takes a path (as received, without the query).
    ///
    /// # Contract
    /// A path that a worker may normalise never slips past an earlier route into a later one. A
    /// path is [`PathMatch::BadCapture`] if normalisation changes whether this template takes it.
    /// In detail:
    ///
    /// - A path that is ambiguous as a whole (`.` and `..` in any spelling, broken escapes, NUL) is
    ///   refused first, even if the reason stands behind the prefix. `/shards/2/../3/` is shard 3
    ///   to some workers.
    /// - The segments that the template spans are decoded once and compared. Three kinds of them
    ///   are refused as soon as everything before them matches. The first is an empty segment,
    ///   because `//` is `/` to some. The second decodes to something with `/`, `\`, `;`, `%`, `?`,
    ///   `#` or a control character. The third is a literal in other upper and lower case, as
    ///   Unicode has it.
    /// - A captured segment decodes to `[A-Za-z0-9._~-]+`, or is refused.
    /// - Behind the prefix everything else may stand: `%2F`, `//`, `;v=1`, upper case.
    pub fn matches<'p>(&self, path: &'p str) -> PathMatch<'p> {
        if is_ambiguous(path) { PathMatch::BadCapture } else { self.matches_unambiguous(path) }
    }

    /// Works like [`matches`](Self::matches), for a path that is not ambiguous as a whole.
    pub(crate) fn matches_unambiguous<'p>(&self, path: &'p str) -> PathMatch<'p> {
        let Some(rest) = path.strip_prefix('/') else {
            return PathMatch::No;
        };
        let mut captures = Captures::default();
        // What follows the slash that was passed last; `None` if the path ended without another
        // slash.
        let mut rest = Some(rest);
        for segment in &self.segments {
            let Some(text) = rest.filter(|text| !text.is_empty()) else { return PathMatch::No };
            let (written, behind) = match text.split_once('/') {
                Some((written, behind)) => (written, Some(behind)),
                None => (text, None),
            };
            match segment.compare(written) {
                Comparison::Different => return PathMatch::No,
                Comparison::Unclear => return PathMatch::BadCapture,
                Comparison::Same => {}
            }
            if let Segment::Capture(_) = segment {
                captures.push(written);
            }
            rest = behind;
        }
        if self.ends_with_slash && rest.is_none() {
            return PathMatch::No;
        }
        PathMatch::Yes(captures)
    }

    /// Which segment of a path is why [`PathTemplate::matches`] has [`PathMatch::BadCapture`], and
    /// what to write instead.
    pub(crate) fn why_bad(&self, path: &str) -> String {
        let written = path.strip_prefix('/').unwrap_or(path).split('/');
        let mut segments = self.segments.iter().zip(written);
        let Some((segment, written)) = segments
            .find(|(segment, written)| matches!(segment.compare(written), Comparison::Unclear))
        else {
            return "The path can be read in two ways.".to_owned();
        };
        let is_unclear = decoded(written).any(|byte| KINDS[usize::from(byte)] & UNCLEAR != 0);
        match segment {
            _ if written.is_empty() => {
                "The path has an empty segment: write one slash in place of two.".to_owned()
            }
            Segment::Capture(name) => format!(
                "The segment {} of the path stands for {{{name}}}: write it with A-Z, a-z, 0-9, \".\", \"_\", \"~\" and \"-\" alone.",
                shown_segment(written)
            ),
            Segment::Literal { .. } if is_unclear => format!(
                "The segment {} of the path can be read in two ways: write it without slash, backslash, \";\", \"%\", \"?\", \"#\" and \
                 control characters, encoded ones too.",
                shown_segment(written)
            ),
            Segment::Literal { text, .. } => {
                format!(
                    "The segment {} of the path has to be written {text:?}.",
                    shown_segment(written)
                )
            }
        }
    }

    /// Whether no path reaches a route with the other template, if this one is asked first.
    pub(crate) fn covers(&self, other: &PathTemplate) -> bool {
        let (mine, others) = (&self.segments, &other.segments);
        let has_slash = mine.len() < others.len() || other.ends_with_slash;
        mine.len() <= others.len()
            && (has_slash || !self.ends_with_slash)
            && mine.iter().zip(others).all(|(mine, others)| mine.covers(others))
    }

    /// Whether there may be a path that both take. When in doubt, there may.
    pub(crate) fn overlaps(&self, other: &PathTemplate) -> bool {
        let mut pairs = self.segments.iter().zip(&other.segments);
        pairs.all(|(mine, others)| mine.covers(others) || others.covers(mine))
    }

    /// What all its paths begin with, without upper case. Where it [covers](PathTemplate::covers)
    /// another, this begins that of the other. Where it [overlaps](PathTemplate::overlaps) another,
    /// one of the two begins the other's.
    pub(crate) fn beginning(&self) -> String {
        let mut beginning = String::new();
        for segment in &self.segments {
            beginning.push('/');
            match segment {
                Segment::Literal { text, .. } => beginning.push_str(&folded(text)),
                Segment::Capture(_) => break,
            }
        }
        beginning
    }

    /// This template without the segments of another; `None` if it does not begin with them.
    pub(crate) fn without(&self, prefix: &PathTemplate) -> Option<PathTemplate> {
        let segments = self.segments.strip_prefix(&*prefix.segments)?.to_vec();
        let written = &self.written[prefix.written.len()..];
        let written = if written.is_empty() { "/" } else { written }.to_owned();
        Some(PathTemplate { written, segments, ends_with_slash: self.ends_with_slash })
    }

    /// A path without the segments of this one: empty, or from a slash on. `None` if it does not
    /// begin with them, decoded once as [`matches`](PathTemplate::matches) does.
    pub fn strip<'p>(&self, path: &'p str) -> Option<&'p str> {
        let mut rest = path;
        for segment in &self.segments {
            let text = rest.strip_prefix('/')?;
            let (written, behind) = text.split_at(text.find('/').unwrap_or(text.len()));
            let Comparison::Same = segment.compare(written) else { return None };
            rest = behind;
        }
        Some(rest)
    }

    /// This template without the slash at its end, if it has one that matters.
    pub(crate) fn without_last_slash(&self) -> Option<PathTemplate> {
        let written = self.written.strip_suffix('/').filter(|rest| !rest.is_empty())?;
        let segments = self.segments.clone();
        Some(PathTemplate { written: written.to_owned(), segments, ends_with_slash: false })
    }
}

impl fmt::Display for PathTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

/// A segment of a path in quotes; of a long one, its beginning.
pub(crate) fn shown_segment(segment: &str) -> String {
    const LETTERS_MAX: usize = 64;
    match segment.char_indices().nth(LETTERS_MAX) {
        Some((end, _)) => format!("{:?}…", &segment[..end]),
        None => format!("{segment:?}"),
    }
}

enum Comparison {
    Same,
    Different,
    /// It depends on who reads it.
    Unclear,
}

impl Segment {
    fn parse(text: &str) -> Result<Segment, String> {
        if let Some(name) = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
            if is_placeholder_name(name) {
                return Ok(Segment::Capture(name.to_owned()));
            }
            let rule = r#"a name is like "shard_2", of a-z, 0-9 and _"#;
            return Err(format!("{{{name}}} is no capture: {rule}"));
        }
        let odd = || text.bytes().find(|byte| KINDS[usize::from(*byte)] == UNCLEAR);
        Err(if text.contains(['{', '}']) {
            format!("{text:?} is neither text nor a capture: {{name}} stands for one whole segment")
        } else if text.is_empty() {
            "has an empty segment: workers take \"//\" for \"/\"".to_owned()
        } else if matches!(text, "." | "..") {
            format!("has a segment {text:?}: workers remove it")
        } else if text.contains('%') {
            let rule = "paths are compared decoded, so write the character itself";
            format!("has '%' in the segment {text:?}: {rule}")
        } else if let Some(odd) = odd().map(char::from) {
            format!("has {odd:?} in the segment {text:?}: no request path with that is taken")
        } else {
            return Ok(Segment::Literal { text: text.to_owned(), is_ascii: text.is_ascii() });
        })
    }

    fn compare(&self, written: &str) -> Comparison {
        let kinds = decoded(written).fold(0, |kinds, byte| kinds | KINDS[usize::from(byte)]);
        if written.is_empty() || kinds & UNCLEAR != 0 {
            return Comparison::Unclear;
        }
        match self {
            Segment::Literal { text, .. } if decoded(written).eq(text.bytes()) => Comparison::Same,
            Segment::Literal { text, is_ascii } => {
                let lower = |byte: u8| byte.to_ascii_lowercase();
                let is_ascii = *is_ascii && kinds & BEYOND_ASCII == 0;
                let alike = decoded(written).map(lower).eq(text.bytes().map(lower))
                    || !is_ascii && reads_alike(decoded(written).collect(), text);
                if alike { Comparison::Unclear } else { Comparison::Different }
            }
            Segment::Capture(_) if is_capture(decoded(written)) => Comparison::Same,
            Segment::Capture(_) => Comparison::Unclear,
        }
    }

    fn covers(&self, other: &Segment) -> bool {
        match (self, other) {
            (Segment::Capture(_), _) => true,
            (Segment::Literal { text, .. }, Segment::Literal { text: other, .. }) => {
                text.eq_ignore_ascii_case(other) || reads_alike(other.clone().into_bytes(), text)
            }
            (Segment::Literal { .. }, Segment::Capture(_)) => false,
        }
    }
}

/// Whether these bytes are a text that differs from another in upper and lower case only, by
/// Unicode's mappings.
fn reads_alike(bytes: Vec<u8>, text: &str) -> bool {
    String::from_utf8(bytes).is_ok_and(|written| folded(&written) == folded(text))
}

/// Folds upper and lower case: texts that differ in nothing else give equal results.
fn folded(text: &str) -> String {
    // Up and down: some letters have one capital letter with others, and some capital letters one
    // small one.
    text.to_uppercase().to_lowercase()
}

/// The first segment of a path, if it is ASCII and every worker reads it as it is written. Every
/// ASCII literal is then [`Comparison::Different`] from it, except those that are equal in lower
/// case.
pub(crate) fn plain_first_segment(path: &str) -> Option<&str> {
    let rest = path.strip_prefix('/')?;
    let first = rest.split_once('/').map_or(rest, |(first, _)| first);
    let is_plain = !first.is_empty() && first.bytes().all(|byte| KINDS[usize::from(byte)] == 0);
    is_plain.then_some(first)
}

/// Some readers end, split or decode a segment once more at this byte.
const UNCLEAR: u8 = 1;

/// Whether it is told from another by upper and lower case alone, only Unicode says.
const BEYOND_ASCII: u8 = 2;

/// Of what kinds each byte is. A table: this is asked of each byte of each segment.
static KINDS: [u8; 256] = {
    let mut kinds = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        kinds[byte] = match byte as u8 {
            b'/' | b'\\' | b';' | b'%' | b'?' | b'#' | 0..=0x1f | 0x7f => UNCLEAR,
            0x80.. => BEYOND_ASCII,
            _ => 0,
        };
        byte += 1;
    }
    kinds
};

#[cfg(test)]
#[path = "path_template_tests.rs"]
mod tests;
