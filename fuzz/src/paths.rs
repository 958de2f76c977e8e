//! Which route takes a path, and which lock key comes of it, whatever a worker makes of the path.

use fencepost_config::{Config, Lock, Route, Routing};

/// Templates, keys of locks and a path, a line each. In order: the path of a guarded route, its
/// lock's key, the path of a guarded route behind it, its key, the path of one that is off, and the
/// path of a request.
pub(crate) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let lines: Vec<&str> = text.split('\n').collect();
    let [first, first_key, second, second_key, off, path] = lines[..] else { return };
    let Some(config) = config([first, first_key, second, second_key, off]) else { return };
    let way = Way::of(&config, path);
    if let Way::Guarded { index, key } = &way {
        check_key(&config.routes[*index], key);
    }
    for read in readings(path) {
        way.check(&Way::of(&config, &read), path, &read);
    }
}

fn config([first, first_key, second, second_key, off]: [&str; 5]) -> Option<Config> {
    let quoted =
        |text: &str| serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f");
    let guarded = |name: &str, path: &str, key: &str| {
        let (path, key) = (quoted(path), quoted(key));
        format!(
            "[[route]]\nname = \"{name}\"\npath = {path}\nupstream = \"http://127.0.0.1:9000\"\nlock = {{ source = \"main\", key = {key} }}\n"
        )
    };
    let off = format!(
        "[[route]]\nname = \"off\"\npath = {}\nupstream = \"http://127.0.0.1:9000\"\nmode = \"off\"\n",
        quoted(off)
    );
    let head = "listener = [{ address = \"127.0.0.1:0\" }]\nsource.main.kind = \"memory\"\n";
    let file =
        [head, &guarded("first", first, first_key), &guarded("second", second, second_key), &off]
            .concat();
    Config::from_toml("fuzz.toml", &file).ok()
}

/// Where a path leads.
#[derive(Debug, PartialEq, Eq)]
enum Way {
    /// To a lock.
    Guarded {
        index: usize,
        key: String,
    },
    /// Past all locks.
    Unguarded,
    Nowhere,
    Refused,
}

impl Way {
    fn of(config: &Config, path: &str) -> Way {
        match config.route(None, path) {
            Routing::NoRoute => Way::Nowhere,
            Routing::LockNotAllowed => Way::Refused,
            Routing::To { route, index, captures } => match route.mode.lock() {
                None => Way::Unguarded,
                Some(Lock { key: template, .. }) => {
                    for capture in captures.iter() {
                        assert!(
                            is_component(&capture.to_string()),
                            "{capture} was captured of {path:?}"
                        );
                    }
                    let mut key = String::new();
                    template
                        .render_into(&captures, &mut key)
                        .expect("a string takes what is written");
                    let is_short = key.len() <= fencepost_policy::LockKey::BYTES_MAX;
                    assert!(
                        !is_short
                            || template
                                .named_on_path(&key, &captures)
                                .is_some_and(|named| named == key),
                        "{key:?} is not of {template}"
                    );
                    Way::Guarded { index, key }
                }
            },
        }
    }

    /// What a worker reads otherwise leads to the same lock, or no request gets there.
    fn check(&self, as_read: &Way, path: &str, read: &str) {
        match (self, as_read) {
            (Way::Refused | Way::Nowhere, _) => {} // It does not get to a worker.
            (Way::Guarded { .. }, Way::Guarded { .. }) => {
                assert_eq!(self, as_read, "{path:?} is {read:?} to some workers");
            }
            (Way::Guarded { .. }, Way::Unguarded) | (Way::Unguarded, Way::Guarded { .. }) => {
                panic!(
                    "{path:?} is {self:?}, and {read:?}, as some workers read it, is {as_read:?}"
                )
            }
            (Way::Guarded { .. }, Way::Nowhere | Way::Refused) => {}
            (Way::Unguarded, Way::Unguarded | Way::Nowhere | Way::Refused) => {}
        }
    }
}

/// A capture stays in its component of the key: the key has as many as its template.
fn check_key(route: &Route, key: &str) {
    let Some(Lock { key: template, .. }) = route.mode.lock() else { return };
    let components = |text: &str| text.split('/').count();
    assert_eq!(components(key), components(template.as_str()), "{key:?} is not one of {template}");
}

/// What may stand for a placeholder in a lock key.
fn is_component(text: &str) -> bool {
    let may_stand = |byte: u8| byte.is_ascii_alphanumeric() || b"._~-".contains(&byte);
    !matches!(text, "" | "." | "..") && text.bytes().all(may_stand)
}

/// The path as workers may read it: decoded, without dots, with one slash for many, without
/// parameters, to where a query begins.
fn readings(path: &str) -> Vec<String> {
    let mut readings = Vec::new();
    let mut read = path.to_owned();
    for _ in 0..2 {
        readings.extend([
            without_dots(&read),
            one_slash_for_many(&read),
            without_parameters(&read),
        ]);
        readings.push(without_dots(&one_slash_for_many(&without_parameters(&read))));
        readings.push(without_dots(&read.replace('\\', "/")));
        readings.push(without_dots(read.split(['?', '#']).next().unwrap_or_default()));
        match String::from_utf8(decoded(&read)) {
            Ok(decoded) => read = decoded,
            Err(_) => break,
        }
        readings.push(read.clone());
    }
    readings
}

fn decoded(path: &str) -> Vec<u8> {
    let bytes = path.as_bytes();
    let hex = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let (mut decoded, mut at) = (Vec::new(), 0);
    while let Some(byte) = bytes.get(at) {
        match (byte, hex(at + 1), hex(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                decoded.push(*byte);
                at += 1;
            }
        }
    }
    decoded
}

/// RFC 3986, section 5.2.4, for a path that begins with a slash.
fn without_dots(path: &str) -> String {
    let Some(rest) = path.strip_prefix('/') else { return path.to_owned() };
    let mut kept: Vec<&str> = Vec::new();
    let components: Vec<&str> = rest.split('/').collect();
    for (index, component) in components.iter().enumerate() {
        let is_last = index + 1 == components.len();
        match *component {
            ".." => _ = kept.pop(),
            "." => {}
            other => {
                kept.push(other);
                continue;
            }
        }
        if is_last {
            kept.push("");
        }
    }
    format!("/{}", kept.join("/"))
}

fn one_slash_for_many(path: &str) -> String {
    let mut shorter = path.to_owned();
    while shorter.contains("//") {
        shorter = shorter.replace("//", "/");
    }
    shorter
}

fn without_parameters(path: &str) -> String {
    let components =
        path.split('/').map(|component| component.split(';').next().unwrap_or_default());
    components.collect::<Vec<_>>().join("/")
}
