//! Reads TOML tables key by key. Notes every problem and goes on, where serde would stop at the
//! first.
//!
//! Each method declares a key: its type, its range and its default. A wrong value is noted, and the
//! default stands in for it, because a configuration with a problem is never used.

use std::borrow::Cow;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use crate::foreign::{home_of, nearest_offered, right_shape};
use crate::places::{NONE, WrittenKey, WrittenTable, shown};
use crate::problem::{Notes, Place, must_be};
use crate::units::Unit;
use crate::variables::Written;

type Key = &'static str;
type Read<T> = Result<T, String>;
type List<T> = Vec<(Place, T)>;
type Range = RangeInclusive<i64>;

/// What a text means, or what is wrong with it.
pub(crate) trait Parse<T>: FnOnce(&str) -> Read<T> {}
impl<T, F: FnOnce(&str) -> Read<T>> Parse<T> for F {}

/// A table of the file. [`Table::finish`] notes the keys that nobody asked for.
pub(crate) struct Table<'t> {
    pub(crate) notes: &'t Notes,
    /// `None`: nobody wrote the table.
    entries: Option<&'t DeTable<'t>>,
    pub(crate) place: Place,
    /// Where its keys are recorded: in which of the tables, and below which of its keys.
    record: usize,
    parent: Key,
    asked: Vec<Key>,
}

impl<'t> Table<'t> {
    /// The whole file.
    pub(crate) fn root(notes: &'t Notes, entries: &'t DeTable<'t>) -> Table<'t> {
        Table::new(notes, Some(entries), Place { line: notes.line_of(0), key: String::new() })
    }

    /// A table whose keys all have their defaults.
    pub(crate) fn empty(notes: &'t Notes, key: &str) -> Table<'t> {
        Table::new(notes, None, Place { line: 0, key: key.to_owned() })
    }

    fn new(notes: &'t Notes, entries: Option<&'t DeTable<'t>>, place: Place) -> Table<'t> {
        let record = notes.record(|tables| {
            let name = place.key.clone();
            tables.push(WrittenTable { name, line: place.line, keys: Vec::new() });
            tables.len() - 1
        });
        Table { notes, entries, place, record, parent: "", asked: Vec::new() }
    }

    /// Calls this table by another name from now on.
    pub(crate) fn rename(&mut self, key: String) {
        self.notes.record(|tables| tables[self.record].name.clone_from(&key));
        self.place.key = key;
    }

    /// Where a key of this table is, or would be.
    pub(crate) fn place_of(&self, key: &str) -> Place {
        self.place.child(self.line(key), key)
    }

    pub(crate) fn is_written(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    pub(crate) fn problem(&self, key: &str, text: impl Display) {
        self.notes.problem(&self.place_of(key), text);
    }

    pub(crate) fn warning(&self, key: &str, text: impl Display) {
        self.notes.warning(&self.place_of(key), text);
    }

    /// A string that `parse` understands.
    pub(crate) fn text<T>(&mut self, key: Key, parse: impl Parse<T>) -> Option<T> {
        let text = self.read(key, "a string", DeValue::as_str);
        self.record(key, text.map_or(NONE.into(), shown));
        self.right(key, parse(text?))
    }

    /// [`text`](Self::text), with a default; `None` only after a problem.
    pub(crate) fn text_or<T>(&mut self, key: Key, or: &str, parse: impl Parse<T>) -> Option<T> {
        let text = self.read(key, "a string", DeValue::as_str).unwrap_or(or);
        self.record(key, shown(text));
        self.right(key, parse(text))
    }

    /// [`text`](Self::text), but a problem if it is not written: `what` says what is missing.
    pub(crate) fn required<T>(&mut self, key: Key, what: &str, parse: impl Parse<T>) -> Option<T> {
        if !self.is_written(key) {
            self.problem(key, format_args!("missing: {what}"));
        }
        self.text(key, parse)
    }

    /// One of a few words. The first is the default, also after a problem.
    pub(crate) fn choice<T: Copy>(&mut self, key: Key, choices: &[(&str, T)]) -> T {
        let (default, value) = choices[0];
        self.text_or(key, default, |word| one_of(word, choices)).unwrap_or(value)
    }

    /// `false` by default.
    pub(crate) fn flag(&mut self, key: Key) -> bool {
        self.flag_or(key, false)
    }

    /// `true` or `false`.
    pub(crate) fn flag_or(&mut self, key: Key, default: bool) -> bool {
        let value = self.read(key, "true or false", DeValue::as_bool).unwrap_or(default);
        self.record(key, if value { "true" } else { "false" });
        value
    }

    /// An integer.
    pub(crate) fn count<N: TryFrom<i64>>(&mut self, key: Key, range: Range, default: i64) -> N {
        fitting(self.number(key, Unit::Count, range, Some(default)).unwrap_or(default))
    }

    /// A size in bytes.
    pub(crate) fn size<N: TryFrom<i64>>(&mut self, key: Key, range: Range, default: i64) -> N {
        fitting(self.number(key, Unit::Size, range, Some(default)).unwrap_or(default))
    }

    /// A duration. The range and the default are in milliseconds.
    pub(crate) fn time(&mut self, key: Key, range: Range, default: i64) -> Duration {
        let millis = self.number(key, Unit::Time, range, Some(default)).unwrap_or(default);
        Duration::from_millis(fitting(millis))
    }

    /// [`time`](Self::time), or `"off"`: as long as it takes.
    pub(crate) fn time_or_off(&mut self, key: Key, range: Range, default: i64) -> Option<Duration> {
        let text = self.find(key).and_then(|(_, value)| self.meant(value).ok()?.as_str());
        match text {
            Some("off") => {
                self.asked.push(key);
                self.record(key, "off");
                return None;
            }
            Some(text) if !text.starts_with(|first: char| first.is_ascii_digit()) => {
                self.problem(key, must_be(r#"a duration, like "5m", or "off""#, text));
            }
            Some(_) | None => return Some(self.time(key, range, default)),
        }
        self.asked.push(key);
        None
    }

    /// A number of any unit that has no default.
    pub(crate) fn optional<N: TryFrom<i64>>(
        &mut self,
        key: Key,
        unit: Unit,
        range: Range,
    ) -> Option<N> {
        self.number(key, unit, range, None).map(fitting)
    }

    fn number(&mut self, key: Key, unit: Unit, range: Range, default: Option<i64>) -> Option<i64> {
        let number = self.read(key, unit.expected(), |value| unit.read(value));
        let number = number.and_then(|number| self.right(key, number)).or(default);
        let shown = number.map_or(NONE.to_owned(), |number| unit.show(number).replace('"', ""));
        self.record(key, shown);
        self.right(key, unit.check(number?, range))
    }

    /// A list of strings that `parse` understands, each with its place. A repeated value is a
    /// problem.
    pub(crate) fn list<T: Eq>(&mut self, key: Key, parse: impl Fn(&str) -> Read<T>) -> List<T> {
        let list = self.read(key, "a list of strings", DeValue::as_array);
        let (mut texts, mut values): (Vec<Cow<'_, str>>, List<T>) = (Vec::new(), Vec::new());
        for (place, item) in self.items(key, list) {
            let text = self.text_of(item);
            texts.extend(text.as_ref().map(|text| self.shown(item, text)));
            match text.and_then(|text| Ok((text, parse(text)?))) {
                Ok((text, value)) if values.iter().any(|(_, other)| *other == value) => {
                    self.notes.problem(&place, format_args!("{text:?} is in the list already"));
                }
                Ok((_, value)) => values.push((place, value)),
                Err(problem) => self.notes.problem(&place, self.told(Some(item), problem)),
            }
        }
        self.record(key, format!("[{}]", texts.join(", ")));
        values
    }

    /// A table with names of its own, `key = { NAME = "value", … }`, of which `parse` understands
    /// each name and value. A repeated name is a problem.
    pub(crate) fn strings<N: Eq, V>(
        &mut self,
        key: Key,
        parse: impl Fn(&str, &str) -> Read<(N, V)>,
    ) -> Vec<(N, V)> {
        let table = self.read(key, "a table", DeValue::as_table);
        let (mut texts, mut values): (Vec<String>, Vec<(N, V)>) = (Vec::new(), Vec::new());
        for (name, value) in table.into_iter().flatten() {
            let (line, name) = (self.notes.line_of(name.span().start), name.get_ref());
            let place = self.place_of(key).child(line, name);
            let text = self.text_of(value);
            let shown_value =
                |text: &&str| format!("{} = {}", shown(name), self.shown(value, text));
            texts.extend(text.as_ref().map(shown_value));
            match text.and_then(|text| parse(name, text)) {
                Ok((name_read, _)) if values.iter().any(|(other, _)| *other == name_read) => {
                    self.notes.problem(&place, format_args!("{name:?} is in the table already"));
                }
                Ok(read) => values.push(read),
                Err(problem) => self.notes.problem(&place, self.told(Some(value), problem)),
            }
        }
        self.record(key, format!("{{{}}}", texts.join(", ")));
        values
    }

    /// A table in this one, `[key]` or `key = { … }`; `None` too if anything in it is wrong.
    pub(crate) fn table<T>(
        &mut self,
        key: Key,
        read: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<T> {
        let entries = Some(self.read(key, "a table", DeValue::as_table)?);
        self.record_key(key, None);
        let Table { notes, record, .. } = *self;
        let (before, place, asked) = (notes.problem_count(), self.place_of(key), Vec::new());
        let mut table = Table { notes, entries, place, record, parent: key, asked };
        let value = read(&mut table);
        table.finish();
        value.filter(|_| notes.problem_count() == before)
    }

    /// Tables in a list of this one, `key = [{ … }, …]`.
    pub(crate) fn inner_tables<T>(
        &mut self,
        key: Key,
        read: impl Fn(&mut Self) -> Option<T>,
    ) -> Vec<T> {
        let list = self.read(key, "a list of tables", DeValue::as_array);
        self.record_key(key, None);
        let Table { notes, record, .. } = *self;
        let values = self.items(key, list).into_iter().filter_map(|(place, item)| {
            let item = item.get_ref();
            let Some(entries) = item.as_table() else {
                notes.problem(&place, wrong_type("a table", item));
                return None;
            };
            let (entries, asked) = (Some(entries), Vec::new());
            let mut table = Table { notes, entries, place, record, parent: key, asked };
            let value = read(&mut table);
            table.finish();
            value
        });
        values.collect()
    }

    /// A table of the whole file, `[key]`. One that nobody wrote has all defaults.
    pub(crate) fn section<T>(&mut self, key: Key, read: impl FnOnce(&mut Self) -> T) -> T {
        let entries = self.read(key, "a table", DeValue::as_table);
        self.record_key(key, None);
        let mut table = Table::new(self.notes, entries, self.place_of(key));
        let value = read(&mut table);
        table.finish();
        value
    }

    /// Tables of one kind, in order: `[[key]]`. At least one is required.
    pub(crate) fn tables(&mut self, key: Key, what: &str) -> Vec<Table<'t>> {
        self.require_items(key, what);
        let expected = format!("a list of tables, each begun with [[{key}]]");
        let list = self.read(key, &expected, DeValue::as_array);
        self.record_key(key, None);
        let items = self.items(key, list).into_iter();
        items.filter_map(|(place, item)| self.item(place, item.get_ref())).collect()
    }

    /// Tables of one kind, each with a name: `[key.NAME]`.
    pub(crate) fn named_tables(&mut self, key: Key) -> Vec<(String, Table<'t>)> {
        let expected = format!("tables, each begun with [{key}.NAME]");
        let tables = self.read(key, &expected, DeValue::as_table);
        self.record_key(key, None);
        let named = tables.into_iter().flatten().filter_map(|(name, value)| {
            // The line of the table's own header: the key stands on the same line.
            let (line, name) = (self.notes.line_of(name.span().start), name.get_ref());
            let place = self.place_of(key).child(line, name);
            Some((name.to_string(), self.item(place, value.get_ref())?))
        });
        named.collect()
    }

    /// Of keys that are read only under some condition, those that are written.
    pub(crate) fn written(&mut self, keys: &[Key]) -> Vec<Key> {
        self.asked.extend(keys);
        keys.iter().copied().filter(|key| self.is_written(key)).collect()
    }

    /// A list that is missing or empty is a problem: `what` says what is missing.
    pub(crate) fn require_items(&self, key: Key, what: &str) {
        let is_empty = |value: &DeValue<'_>| value.as_array().is_some_and(|list| list.is_empty());
        if self.find(key).is_none_or(|(_, value)| is_empty(value.get_ref())) {
            self.problem(key, format_args!("missing: {what}"));
        }
    }

    /// Every key that was not asked for is a problem.
    pub(crate) fn finish(&self) {
        let names = self.entries.into_iter().flatten().map(|(name, _)| name.get_ref().as_ref());
        for key in names.filter(|name| !self.asked.contains(name)) {
            let hint = match nearest(key, self.asked.iter().copied()) {
                _ if let Some(offered) = nearest_offered(key) => {
                    self.problem(key, format_args!("not offered; {offered}"));
                    continue;
                }
                _ if let Some(home) = home_of(key) => format!("; {key} stands {home}"),
                Some(near) => format!("; did you mean {near:?}?"),
                None => String::new(),
            };
            self.problem(key, format_args!("unknown key{hint}"));
        }
    }

    /// The value of a key, if it is written and of the type that `convert` takes.
    fn read<T>(
        &mut self,
        key: Key,
        expected: &str,
        convert: impl FnOnce(&'t DeValue<'t>) -> Option<T>,
    ) -> Option<T> {
        self.asked.push(key);
        let (_, value) = self.find(key)?;
        let value = self.meant(value);
        let converted = value
            .and_then(|value| convert(value).ok_or_else(|| wrong_type_of(key, expected, value)));
        self.right(key, converted)
    }

    fn text_of(&self, value: &'t Spanned<DeValue<'t>>) -> Read<&'t str> {
        let value = self.meant(value)?;
        value.as_str().ok_or_else(|| wrong_type("a string", value))
    }

    /// Notes the problem, if it is one.
    fn right<T>(&self, key: Key, parsed: Read<T>) -> Option<T> {
        let value = self.find(key).map(|(_, value)| value);
        parsed.map_err(|problem| self.problem(key, self.told(value, problem))).ok()
    }

    fn items(&self, key: Key, list: Option<&'t DeArray<'t>>) -> List<&'t Spanned<DeValue<'t>>> {
        let items = list.into_iter().flatten().enumerate().map(|(index, item)| {
            let line = self.notes.line_of(item.span().start);
            (self.place.child(line, &format!("{key}[{index}]")), item)
        });
        items.collect()
    }

    fn item(&self, place: Place, value: &'t DeValue<'t>) -> Option<Table<'t>> {
        let DeValue::Table(entries) = value else {
            self.notes.problem(&place, wrong_type("a table", value));
            return None;
        };
        Some(Table::new(self.notes, Some(entries), place))
    }

    /// The offset of a key and its value, if it is written.
    fn find(&self, key: &str) -> Option<(usize, &'t Spanned<DeValue<'t>>)> {
        let (name, value) = self.entries?.get_key_value(key)?;
        Some((name.span().start, value))
    }

    /// The value of a key, or of a part of it. One that stands for a variable may have none.
    fn meant(&self, value: &'t Spanned<DeValue<'t>>) -> Read<&'t DeValue<'t>> {
        match self.notes.variable(value).and_then(|written| written.problem.clone()) {
            Some(problem) => Err(problem),
            None => Ok(value.get_ref()),
        }
    }

    /// What is wrong with a value, without the value if that is a variable's.
    fn told(&self, value: Option<&'t Spanned<DeValue<'t>>>, problem: String) -> String {
        let written = value.and_then(|value| self.notes.variable(value));
        match written.filter(|written| written.problem.is_none()) {
            Some(Written { source, .. }) => format!(
                "what {source} stands for, which is not shown, is not what this key takes: see its line in docs/configuration.md"
            ),
            None => problem,
        }
    }

    /// A text as it is shown: the variable that it is, or itself.
    fn shown(&self, value: &Spanned<DeValue<'_>>, text: &str) -> Cow<'static, str> {
        self.notes.variable(value).map_or_else(|| shown(text), |written| shown(&written.source))
    }

    fn line(&self, key: &str) -> usize {
        self.find(key).map_or(self.place.line, |(offset, _)| self.notes.line_of(offset))
    }

    fn record(&self, key: Key, value: impl Into<Cow<'static, str>>) {
        let written = self.find(key).and_then(|(_, value)| self.notes.variable(value));
        self.record_key(key, Some(written.map_or(value.into(), |written| shown(&written.source))));
    }

    fn record_key(&self, key: Key, value: Option<Cow<'static, str>>) {
        let written = WrittenKey { parent: self.parent, key, line: self.line(key), value };
        self.notes.record(|tables| tables[self.record].keys.push(written));
    }
}

fn wrong_type_of(key: Key, expected: &str, value: &DeValue<'_>) -> String {
    let shape = right_shape(key, type_name(value)).map(|shape| format!(": {shape}"));
    wrong_type(expected, value) + &shape.unwrap_or_default()
}

fn wrong_type(expected: &str, value: &DeValue<'_>) -> String {
    format!("must be {expected}, not {}", type_name(value))
}

fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

fn fitting<N: TryFrom<i64>>(number: i64) -> N {
    N::try_from(number).ok().expect("the range of a key fits its type")
}

/// The name of a route or source.
pub(crate) fn parse_name(name: &str) -> Read<String> {
    parse_name_of(name, "it is a metric label")
}

/// A name of those letters, for this reason.
pub(crate) fn parse_name_of(name: &str, why: &str) -> Read<String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if !(1..=64).contains(&name.len()) || !name.bytes().all(is_part) {
        return Err(format!("a name has 1 to 64 of A-Z, a-z, 0-9, _ and -: {why}"));
    }
    Ok(name.to_owned())
}

/// What one of a few words means.
pub(crate) fn one_of<T: Copy>(word: &str, choices: &[(&str, T)]) -> Read<T> {
    if let Some((_, value)) = choices.iter().find(|(name, _)| *name == word) {
        return Ok(*value);
    }
    let names: Vec<String> = choices.iter().map(|(name, _)| format!("{name:?}")).collect();
    let (last, others) = names.split_last().expect("a choice has choices");
    let names = match others {
        [] => last.clone(),
        others => format!("{} or {last}", others.join(", ")),
    };
    Err(format!("must be {names}, not {word:?}"))
}

/// The word that was probably meant: the one that takes the fewest edits, and few for its length.
pub(crate) fn nearest<'w>(word: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let (edits, nearest) = words.map(|known| (edits(word, known), known)).min()?;
    (edits <= 1 + nearest.len() / 4).then_some(nearest)
}

/// How many letters must be put in, taken out or replaced to make one word of the other.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_word_is_near() {
        let nearest =
            |word| nearest(word, ["max_age", "mode", "name", "path", "exempt_methods"].into_iter());
        assert_eq!(nearest("maxage"), Some("max_age"));
        assert_eq!(nearest("exempt_method"), Some("exempt_methods"));
        assert_eq!(nearest("nmae"), Some("name"));
        assert_eq!(nearest("names"), Some("name"));
        assert_eq!(nearest("colour"), None);
        assert_eq!(nearest(""), None);
    }

    #[test]
    fn edits_count_letters() {
        for (from, to, count) in
            [("", "", 0), ("a", "", 1), ("", "ab", 2), ("kitten", "sitting", 3), ("é", "e", 1)]
        {
            assert_eq!(edits(from, to), count, "{from:?} {to:?}");
        }
    }
}
