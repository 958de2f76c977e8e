//! Reads TOML tables key by key and reports everything it stumbles over, instead of stopping at the first.

use std::time::Duration;

use toml::Spanned;
use toml::de::{DeArray, DeInteger, DeTable, DeValue};

use crate::problem::{Notes, Place};
use crate::setting::Setting;
use crate::units;

/// The keys of the whole file that are no tables.
const TOP_LEVEL: [&str; 2] = ["state_dir", "threads"];

/// A table of the file. Each key that it may have is asked for once; [`Table::finish`] reports the others.
pub(crate) struct Table<'t> {
    notes: &'t Notes,
    entries: Option<&'t DeTable<'t>>,
    place: Place,
    known: Vec<&'static str>,
}

impl<'t> Table<'t> {
    /// The whole file.
    pub(crate) fn root(notes: &'t Notes, entries: &'t DeTable<'t>) -> Table<'t> {
        Table::new(notes, Some(entries), notes.place(0, String::new()))
    }

    /// A table that nobody wrote.
    pub(crate) fn empty(notes: &'t Notes, place: Place) -> Table<'t> {
        Table::new(notes, None, place)
    }

    fn new(notes: &'t Notes, entries: Option<&'t DeTable<'t>>, place: Place) -> Table<'t> {
        Table { notes, entries, place, known: Vec::new() }
    }

    /// Calls this table by another name in the problems to come.
    pub(crate) fn rename(&mut self, key: String) {
        self.place = self.place.renamed(key);
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// The keys that were asked for.
    #[cfg(test)]
    pub(crate) fn known(&self) -> &[&'static str] {
        &self.known
    }

    pub(crate) fn string(&mut self, key: &'static str) -> Setting<String> {
        self.read(key, "a string", |value| value.as_str().map(str::to_owned))
    }

    pub(crate) fn boolean(&mut self, key: &'static str) -> Setting<bool> {
        self.read(key, "true or false", DeValue::as_bool)
    }

    pub(crate) fn integer(&mut self, key: &'static str) -> Setting<i64> {
        let notes = self.notes;
        self.read(key, "an integer", as_integer).parse(notes, in_64_bits)
    }

    pub(crate) fn duration(&mut self, key: &'static str) -> Setting<Duration> {
        let notes = self.notes;
        let text = self.read(key, r#"a duration, like "250ms", "5s", "2m" or "1h""#, |value| value.as_str());
        text.parse(notes, units::duration)
    }

    /// A number of bytes.
    pub(crate) fn size(&mut self, key: &'static str) -> Setting<i64> {
        let notes = self.notes;
        let read = self.read(key, r#"a size, like "64KiB", or an integer of bytes"#, |value| {
            let text = value.as_str().map(units::size);
            text.or_else(|| as_integer(value).map(in_64_bits))
        });
        read.parse(notes, |size| size)
    }

    /// A list of strings, each with a place of its own.
    pub(crate) fn strings(&mut self, key: &'static str) -> Setting<Vec<Setting<String>>> {
        let notes = self.notes;
        let list = self.read(key, "a list of strings", DeValue::as_array);
        let key = list.place.key().to_owned();
        list.map(|list| items(list, &key, notes).map(|(place, value)| string_item(notes, place, value)).collect())
    }

    /// A table in this one: `[key]` or `key = { … }`.
    pub(crate) fn table(&mut self, key: &'static str) -> Setting<Table<'t>> {
        let notes = self.notes;
        let table = self.read(key, "a table", DeValue::as_table);
        let place = table.place.clone();
        table.map(|entries| Table::new(notes, Some(entries), place))
    }

    /// The same; nobody need write it.
    pub(crate) fn table_or_empty(&mut self, key: &'static str) -> Table<'t> {
        let table = self.table(key);
        let empty = Table::empty(self.notes, table.place.clone());
        table.or(empty)
    }

    /// Tables of one kind, in order: `[[key]]`. An empty list is as good as none.
    pub(crate) fn tables(&mut self, key: &'static str) -> Setting<Vec<Table<'t>>> {
        let notes = self.notes;
        let list = self.read(key, &format!("a list of tables, each begun with [[{key}]]"), DeValue::as_array);
        if list.value().is_some_and(|list| list.is_empty()) {
            return Setting::absent(list.place);
        }
        list.map(|list| items(list, key, notes).filter_map(|(place, value)| table_item(notes, place, value)).collect())
    }

    /// Tables of one kind, each with a name: `[key.NAME]`.
    pub(crate) fn named_tables(&mut self, key: &'static str) -> Setting<Vec<(String, Table<'t>)>> {
        let notes = self.notes;
        let tables = self.read(key, &format!("tables, each begun with [{key}.NAME]"), DeValue::as_table);
        tables.map(|tables| {
            let named = tables.iter().filter_map(|(name, value)| {
                // The line of the table's own header: the key stands on the same line.
                let place = notes.place(name.span().start, format!("{key}.{}", name.get_ref().escape_debug()));
                Some((name.get_ref().to_string(), table_item(notes, place, value.get_ref())?))
            });
            named.collect()
        })
    }

    /// Every key that was not asked for is a problem.
    pub(crate) fn finish(self) {
        for (name, _) in self.entries.into_iter().flatten() {
            let key = name.get_ref().as_ref();
            if self.known.contains(&key) {
                continue;
            }
            let hint = nearest(key, self.known.iter().copied());
            let hint = match hint {
                Some(near) => format!("; did you mean {near:?}?"),
                // What stands below a table's header is the table's.
                None if TOP_LEVEL.contains(&key) && !self.place.key().is_empty() => {
                    format!("; {key} stands above the first [table] of the file")
                }
                None => String::new(),
            };
            self.notes.problem(&self.place_of(name), format_args!("unknown key{hint}"));
        }
    }

    fn read<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        convert: impl FnOnce(&'t DeValue<'t>) -> Option<T>,
    ) -> Setting<T> {
        self.known.push(key);
        let Some((name, value)) = self.find(key) else {
            return Setting::absent(self.place.child(key));
        };
        let place = self.place_of(name);
        match convert(value.get_ref()) {
            Some(converted) => Setting::given(place, converted),
            None => wrong_type(self.notes, place, expected, value.get_ref()),
        }
    }

    fn find(&self, key: &str) -> Option<(&'t Spanned<Key<'t>>, &'t Spanned<DeValue<'t>>)> {
        self.entries?.iter().find(|(name, _)| name.get_ref() == key)
    }

    fn place_of(&self, name: &Spanned<Key<'_>>) -> Place {
        self.notes.place(name.span().start, self.place.child_key(name.get_ref()))
    }
}

type Key<'t> = toml::de::DeString<'t>;

fn items<'t>(list: &'t DeArray<'t>, key: &str, notes: &Notes) -> impl Iterator<Item = (Place, &'t DeValue<'t>)> {
    let place = move |(index, item): (usize, &'t Spanned<DeValue<'t>>)| {
        (notes.place(item.span().start, format!("{key}[{index}]")), item.get_ref())
    };
    list.iter().enumerate().map(place)
}

fn string_item(notes: &Notes, place: Place, value: &DeValue<'_>) -> Setting<String> {
    match value.as_str() {
        Some(text) => Setting::given(place, text.to_owned()),
        None => wrong_type(notes, place, "a string", value),
    }
}

fn table_item<'t>(notes: &'t Notes, place: Place, value: &'t DeValue<'t>) -> Option<Table<'t>> {
    match value.as_table() {
        Some(entries) => Some(Table::new(notes, Some(entries), place)),
        None => wrong_type(notes, place, "a table", value).into_value(),
    }
}

fn wrong_type<T>(notes: &Notes, place: Place, expected: &str, value: &DeValue<'_>) -> Setting<T> {
    let found = match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    };
    notes.problem(&place, format_args!("must be {expected}, not {found}"));
    Setting::broken(place)
}

fn as_integer<'t>(value: &'t DeValue<'t>) -> Option<&'t DeInteger<'t>> {
    value.as_integer()
}

fn in_64_bits(integer: &DeInteger<'_>) -> Result<i64, String> {
    i64::from_str_radix(integer.as_str(), integer.radix()).map_err(|_| format!("{integer} does not fit into 64 bits"))
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
    fn the_nearest_word_is_near() {
        let nearest = |word| nearest(word, ["max_age", "mode", "name", "path", "exempt_methods"].into_iter());
        assert_eq!(nearest("maxage"), Some("max_age"));
        assert_eq!(nearest("exempt_method"), Some("exempt_methods"));
        assert_eq!(nearest("nmae"), Some("name"));
        assert_eq!(nearest("names"), Some("name"));
        assert_eq!(nearest("colour"), None);
        assert_eq!(nearest(""), None);
    }

    #[test]
    fn edits_are_counted_in_letters() {
        for (from, to, count) in [("", "", 0), ("a", "", 1), ("", "ab", 2), ("kitten", "sitting", 3), ("é", "e", 1)] {
            assert_eq!(edits(from, to), count, "{from:?} {to:?}");
        }
    }
}
