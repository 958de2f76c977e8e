//! Files with routes and sources that a file includes.
//!
//! They stand in front of the first table of the including file, where `include` itself is: so
//! their routes are asked before its own. Reads no file.

use toml::de::{DeTable, DeValue};

use crate::problem::{Files, Notes, Place, Problem, Problems};
use crate::variables::Variables;

/// A file that another includes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Included {
    /// Its name, for messages.
    pub name: String,
    /// What it holds.
    pub text: String,
}

/// Which files the text of a file includes, as patterns: a path that may have one `*` in its last
/// part. None of a text that is not TOML, or has a wrong pattern: to read it tells that.
pub fn included_by(text: &str) -> Vec<String> {
    if !text.contains("include") {
        return Vec::new();
    }
    let Ok(mut document) = DeTable::parse(text) else { return Vec::new() };
    Variables::put_in(document.get_mut(), &|name| std::env::var(name).ok());
    let list = document.get_ref().get("include").and_then(|list| list.get_ref().as_array());
    let patterns = list.into_iter().flatten().filter_map(|item| item.get_ref().as_str());
    patterns.filter(|pattern| parse_pattern(pattern).is_ok()).map(str::to_owned).collect()
}

pub(crate) fn parse_pattern(text: &str) -> Result<String, String> {
    let (folder, name) = text.rsplit_once('/').unwrap_or(("", text));
    let is_fine = name.ends_with(".toml") && name.matches('*').count() <= 1;
    if !is_fine || folder.contains('*') || text.contains(char::is_control) {
        return Err(format!(
            "must be files that end with .toml, with one \"*\" at most, in the last part, like \"routes.d/*.toml\", not {text:?}"
        ));
    }
    Ok(text.to_owned())
}

/// The text of a file with those that it includes, and which lines are whose.
///
/// # Errors
/// What may not stand in an included file.
pub(crate) fn put_together(
    name: &str,
    text: &str,
    included: &[Included],
) -> Result<(String, Files), Problems> {
    let mut problems = Vec::new();
    for Included { name, text } in included {
        check(name, text, &mut problems);
    }
    Problems::none(problems)?;
    let (top, tables) = text.split_at(first_table(text));
    let mut whole = String::new();
    let mut files = Files::default();
    let mut add = |name: &str, line: usize, part: &str| {
        files.add(1 + whole.matches('\n').count(), name, line);
        whole.push_str(part);
        if !part.is_empty() && !part.ends_with('\n') {
            whole.push('\n');
        }
    };
    add(name, 1, top);
    included.iter().for_each(|Included { name, text }| add(name, 1, text));
    add(name, 1 + top.matches('\n').count(), tables);
    Ok((whole, files))
}

/// Where the line begins that has the header of the first table.
fn first_table(text: &str) -> usize {
    let Ok(document) = DeTable::parse(text) else { return 0 };
    let line_of = |offset: usize| text[..offset].rfind('\n').map_or(0, |end| end + 1);
    let lines = document.get_ref().iter().map(|(key, _)| line_of(key.span().start));
    let headers = lines.filter(|line| text[*line..].trim_start().starts_with('['));
    headers.min().unwrap_or(text.len())
}

/// Notes what else than routes and sources an included file has: it would be a key of the table
/// that stands before.
fn check(name: &str, text: &str, problems: &mut Vec<Problem>) {
    let notes = Notes::for_file(name, text);
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let offset = error.span().map_or(text.len(), |span| span.start);
        notes.syntax_problem(text, offset, error.message());
    }
    for (key, value) in document.get_ref() {
        let line = notes.line_of(key.span().start);
        let start = text.lines().nth(line - 1).unwrap_or_default().trim_start();
        let is_fine = match (key.get_ref().as_ref(), value.get_ref()) {
            ("route", DeValue::Array(_)) => start.starts_with("[["),
            ("source", DeValue::Table(_)) => start.starts_with('['),
            _ => false,
        };
        if !is_fine {
            let place = Place { line, key: String::new() }.child(line, key.get_ref());
            notes.problem(&place, "an included file has [[route]] and [source.NAME] tables only");
        }
    }
    if let Err(found) = notes.finish() {
        problems.extend(found.iter().cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    const MAIN: &str = "include = [\"routes.d/*.toml\"]\nthreads = 1\n\n[[listener]]\naddress = \"127.0.0.1:0\"\n[[route]]\nname = \"last\"\npath = \"/\"\nupstream = \"http://127.0.0.1:9\"\nmode = \"off\"\n";

    fn route(name: &str) -> String {
        format!(
            "# One.\n\n[[route]]\nname = {name:?}\npath = \"/{name}/\"\nupstream = \"http://127.0.0.1:9\"\nmode = \"off\""
        )
    }

    fn read(included: &[(&str, &str)]) -> Result<Config, String> {
        let included = included
            .iter()
            .map(|(name, text)| Included { name: (*name).to_owned(), text: (*text).to_owned() });
        let included: Vec<Included> = included.collect();
        Config::from_files("f.toml", MAIN, &included).map_err(|problems| problems.to_string())
    }

    #[test]
    fn included_routes_come_first_in_order() {
        let (a, b) = (route("a"), route("b") + "\n[source.main]\nkind = \"memory\"\n");
        let config = read(&[("a.toml", &a), ("b.toml", &b)]).unwrap();
        let names: Vec<&str> = config.routes.iter().map(|route| &*route.name).collect();
        assert_eq!(names, ["a", "b", "last"]);
        assert_eq!(config.sources[0].name, "main");
        let later = config.places.problem("route.b.path", "no").to_string();
        assert_eq!(later, "b.toml:5: route.b.path: no");
        assert_eq!(
            config.places.problem("route.last.path", "no").to_string(),
            "f.toml:8: route.last.path: no"
        );
        let warned: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(warned, ["b.toml:8: source.main: no route uses this source"]);
        assert_eq!(read(&[]).unwrap().routes.len(), 1);
        assert_eq!(included_by(MAIN), ["routes.d/*.toml"]);
    }

    #[test]
    fn pattern_may_be_a_variable() {
        let text = "include = [\"${CARGO_MANIFEST_PATH}\", \"${NO_SUCH}\"]";
        assert_eq!(included_by(text), [std::env::var("CARGO_MANIFEST_PATH").unwrap()]);
    }

    #[test]
    fn problem_of_an_included_file_has_its_name_and_line() {
        let route = route("a");
        for (text, told) in [
            (
                &*format!("{route}\nmood = \"off\""),
                "a.toml:8: route.a.mood: unknown key; did you mean \"mode\"?",
            ),
            (&format!("{route}\nname = 1"), "a.toml:8:1: duplicate key"),
            (&format!("{route}\n["), "a.toml:8:"),
            ("threads = 2\n", "a.toml:1: threads: an included file has [[route]]"),
            ("[limits]\nthreads = 2\n", "a.toml:1: limits: an included file has"),
            ("include = []", "a.toml:1: include: an included file has"),
            ("\n[route.lock]\nkey = \"/k\"", "a.toml:2: route: an included file has"),
            ("route = []", "a.toml:1: route: an included file has"),
            ("source.x.kind = \"memory\"", "a.toml:1: source: an included file has"),
            (
                "[[route]]\nname = \"last\"\npath = \"/x\"\nupstream = \"http://127.0.0.1:9\"\nmode = \"off\"",
                "f.toml:7: route[1].name: another route (a.toml:2) has this name",
            ),
        ] {
            let problems = read(&[("a.toml", text)]).unwrap_err();
            assert!(problems.contains(told), "{text}: {problems}");
        }
        let twice = read(&[
            ("a.toml", "[source.main]\nkind = \"memory\""),
            ("b.toml", "\n[source.main]\nkind = \"memory\""),
        ]);
        assert!(twice.as_ref().is_err_and(|problems| problems.contains("b.toml:2:")), "{twice:?}");
    }

    #[test]
    fn pattern_has_one_star_in_its_last_part() {
        for fine in ["routes.d/*.toml", "a.toml", "/etc/f/*-prod.toml", "*.toml"] {
            assert_eq!(parse_pattern(fine).as_deref(), Ok(fine));
        }
        for wrong in ["", "routes.d", "*/a.toml", "a**.toml", "a.toml/", "a.json"] {
            assert!(parse_pattern(wrong).is_err(), "{wrong}");
        }
    }
}
