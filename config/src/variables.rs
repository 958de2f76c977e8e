//! `${NAME}` in a file: a string that is nothing else stands for a variable of the environment.
//! Keeps what the file says, so that nobody is shown a value.

use std::borrow::Cow;
use std::collections::HashMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The strings of a file that stand for variables.
#[derive(Debug, Default)]
pub(crate) struct Variables {
    /// By their offsets in the file.
    written: HashMap<usize, Written>,
    /// Values and what the file has for them, the longest first.
    pub(crate) hidden: Hidden,
}

/// A string of a file that stands for a variable, or is meant to.
#[derive(Debug)]
pub(crate) struct Written {
    /// As the file has it.
    pub(crate) source: String,
    /// Why it has no value.
    pub(crate) problem: Option<String>,
}

/// The length from which a value is replaced wherever it stands.
const HIDDEN_BYTES_MIN: usize = 8;

/// Values that nobody is shown, and what is shown instead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Hidden(Vec<(String, String)>);

impl Variables {
    /// Puts the values of `environment` in place of the variables of a file.
    pub(crate) fn put_in(
        table: &mut DeTable<'_>,
        environment: &impl Fn(&str) -> Option<String>,
    ) -> Variables {
        let mut variables = Variables::default();
        for (_, value) in table.iter_mut() {
            variables.put_in_value(value, environment);
        }
        let values = &mut variables.hidden.0;
        values.sort_by_key(|(value, _)| std::cmp::Reverse(value.len()));
        variables
    }

    /// The string at this offset, if it stands for a variable.
    pub(crate) fn at(&self, offset: usize) -> Option<&Written> {
        self.written.get(&offset)
    }

    fn put_in_value(
        &mut self,
        value: &mut Spanned<DeValue<'_>>,
        environment: &impl Fn(&str) -> Option<String>,
    ) {
        let offset = value.span().start;
        let text = match value.get_mut() {
            DeValue::Array(items) => {
                return items.iter_mut().for_each(|item| self.put_in_value(item, environment));
            }
            DeValue::Table(table) => {
                let values = table.iter_mut().map(|(_, value)| value);
                return values.for_each(|value| self.put_in_value(value, environment));
            }
            DeValue::String(text) => text,
            DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_) => return,
        };
        if !text.contains("${") {
            return;
        }
        let source = text.to_string();
        let problem = match meant(&source, environment) {
            Ok(Meant::Text(literal)) => {
                *text = literal.into();
                return;
            }
            Ok(Meant::Value(value)) => {
                if !value.is_empty() {
                    self.hidden.0.push((value.clone(), source.clone()));
                }
                *text = value.into();
                None
            }
            Err(problem) => Some(problem),
        };
        self.written.insert(offset, Written { source, problem });
    }
}

enum Meant {
    Text(String),
    Value(String),
}

/// What a string with `${` stands for.
fn meant(source: &str, environment: &impl Fn(&str) -> Option<String>) -> Result<Meant, String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let name = source.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    let name = name.filter(|name| name.bytes().all(is_part) && !name.is_empty());
    match name {
        Some(name) => match environment(name) {
            Some(value) => Ok(Meant::Value(value)),
            None => Err(format!("the environment has no variable {name} (of UTF-8)")),
        },
        None if source.replace("$${", "").contains("${") => Err(format!(
            "must be \"${{NAME}}\" as a whole, or have \"$${{\" for the text \"${{\", not {source:?}"
        )),
        None => Ok(Meant::Text(source.replace("$${", "${"))),
    }
}

impl Hidden {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A text with the variables in place of their values. A short value may be a word of the text
    /// itself, and is only replaced in quotes.
    pub(crate) fn hide<'t>(&self, text: impl Into<Cow<'t, str>>) -> Cow<'t, str> {
        let mut text = text.into();
        for (value, source) in &self.0 {
            for value in [value.clone(), value.escape_debug().to_string()] {
                let (value, shown) = if value.len() < HIDDEN_BYTES_MIN {
                    (format!("\"{value}\""), &format!("\"{source}\""))
                } else {
                    (value, source)
                };
                if text.contains(&value) && !source.contains(&value) {
                    text = text.replace(&value, shown).into();
                }
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use crate::{Config, Problems};

    /// With a variable that cargo sets: `fencepost-config`.
    const NAME: &str = "${CARGO_PKG_NAME}";

    fn parse(lines: &str) -> Result<Config, Problems> {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n[[route]]\nname = \"a\"\npath = \"/\"\nmode = \"off\"\n{lines}\n"
        );
        Config::from_toml("f.toml", &text)
    }

    #[test]
    fn variable_is_used_and_the_file_is_shown() {
        let lines = format!(
            "host = \"{NAME}\"\nupstream = \"http://127.0.0.1:9\"\nexempt_methods = [\"GET\", \"{NAME}\"]\n\
             request_headers.set = {{ A = \"{NAME}\", B = \"$${{x}} $${{y}}\" }}"
        );
        let config = parse(&lines).unwrap();
        let route = &config.routes[0];
        assert_eq!(route.host.as_deref(), Some("fencepost-config"));
        assert_eq!(route.exempt_methods[1], "fencepost-config");
        let mut headers = http::HeaderMap::new();
        route.rewrite.request_headers.apply(&mut headers);
        assert_eq!(
            (&headers["a"], &headers["b"]),
            (&"fencepost-config".parse().unwrap(), &"${x} ${y}".parse().unwrap())
        );
        let all: Vec<String> =
            config.settings().map(|(_, key, value)| format!("{key} {value}")).collect();
        for shown in [
            "host ${CARGO_PKG_NAME}".to_owned(),
            "exempt_methods [GET, ${CARGO_PKG_NAME}]".to_owned(),
            "request_headers.set {A = ${CARGO_PKG_NAME}, B = \"${x} ${y}\"}".to_owned(),
        ] {
            assert!(all.contains(&shown), "{shown} of {all:?}");
        }
        let told = format!("{}{:?}", all.concat(), config.warnings);
        assert!(!told.contains("fencepost-config"), "{told}");
        let later =
            config.places.problem("route.a.host", "fencepost-config is not there").to_string();
        assert_eq!(later, "f.toml:7: route.a.host: ${CARGO_PKG_NAME} is not there");
    }

    #[test]
    fn short_value_is_hidden_in_quotes_alone() {
        let hidden = super::Hidden(vec![("a".to_owned(), "${NAME}".to_owned())]);
        let text = "must be a name, not \"a\": \"abc\" is another";
        assert_eq!(hidden.hide(text), "must be a name, not \"${NAME}\": \"abc\" is another");
    }

    #[test]
    fn problem_with_a_variable_shows_no_value() {
        for (lines, told) in [
            (
                "upstream = \"${NO_SUCH}\"",
                "f.toml:7: route.a.upstream: the environment has no variable NO_SUCH",
            ),
            (
                "upstream = \"http://${CARGO_PKG_NAME}:9\"",
                "f.toml:7: route.a.upstream: must be \"${NAME}\" as a whole",
            ),
            ("upstream = \"${CARGO PKG}\"", "must be \"${NAME}\" as a whole"),
            (
                "upstream = \"${CARGO_PKG_NAME}\"",
                "f.toml:7: route.a.upstream: what ${CARGO_PKG_NAME} stands for, which is not shown",
            ),
            (
                "upstream = \"http://h:1\"\nexempt_methods = [\n\"${NO_SUCH}\"]",
                "f.toml:9: route.a.exempt_methods[0]: the environment",
            ),
            (
                "upstream = \"http://h:1\"\nupstream_host = \"${CARGO_MANIFEST_DIR}\"",
                "f.toml:8: route.a.upstream_host: what ${CARGO_MANIFEST_DIR} stands for",
            ),
            (
                "upstream = \"http://h:1\"\nexempt_methods = [\"${CARGO_PKG_NAME}\", \"fencepost-config\"]",
                "\"${CARGO_PKG_NAME}\" is in the list already",
            ),
            (
                "upstream = \"http://h:1\"\nmax_age = \"${CARGO_PKG_NAME}\"",
                "f.toml:8: route.a.max_age: what ${CARGO_PKG_NAME} stands for",
            ),
            (
                "upstream = \"http://h:1\"\nrequest_headers.set = { A = \"${NO_SUCH}\" }",
                "f.toml:8: route.a.request_headers.set.A: the environment",
            ),
        ] {
            let problems = parse(lines).unwrap_err().to_string();
            assert!(problems.contains(told), "{lines}: {problems}");
            let manifest = env!("CARGO_MANIFEST_DIR");
            assert!(
                !problems.contains("fencepost-config") && !problems.contains(manifest),
                "{problems}"
            );
        }
    }
}
