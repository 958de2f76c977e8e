//! The flags of the command line, for one worker behind one lock, as the file that means the same.

/// The flags of the command line, as they are written.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// `--listen`, once or more: where requests are accepted.
    pub listen: Vec<String>,
    /// `--upstream`: the worker.
    pub upstream: Option<String>,
    /// `--etcd`, once or more: the members of the lock store.
    pub etcd: Vec<String>,
    /// `--lock`: the key of the lock.
    pub lock: Option<String>,
    /// `--layout`: `key`, `election` or `mutex`.
    pub layout: Option<String>,
    /// `--admin`: where the admin listener is.
    pub admin: Option<String>,
    /// `--group`: the name of the group that the process is a member of.
    pub group: Option<String>,
    /// `--state-dir`: where floors are kept across restarts.
    pub state_dir: Option<String>,
    /// `--threads`: how many threads serve requests.
    pub threads: Option<String>,
    /// `--freshness`: `cached` or `linearizable`.
    pub freshness: Option<String>,
    /// `--max-age`: news older than this admits nothing.
    pub max_age: Option<String>,
}

/// Keys of that file, or what they begin with, and the flags to blame for them. The first that fits
/// counts.
const FLAGS: [(&str, &str); 9] = [
    ("listener", "--listen"),
    ("admin", "--admin"),
    ("group", "--group"),
    ("source", "--etcd"),
    ("route.default.lock.layout", "--layout"),
    ("route.default.lock", "--lock"),
    ("route.default.freshness", "--freshness"),
    ("route.default.max_age", "--max-age"),
    ("route", "--upstream"),
];

/// The flag that gives a key its value.
pub(crate) fn flag_of(key: &str) -> String {
    let flag = FLAGS.iter().find(|(beginning, _)| key.starts_with(beginning));
    flag.map_or_else(|| format!("--{}", key.replace('_', "-")), |(_, flag)| (*flag).to_owned())
}

impl Flags {
    /// The file. What is missing on the command line is missing there too.
    pub(crate) fn to_toml(&self) -> String {
        let text = |key: &str, value: &Option<String>| match value {
            Some(value) => format!("{key} = {}\n", quoted(value)),
            None => String::new(),
        };
        let listener = |address: &String| format!("[[listener]]\naddress = {}\n", quoted(address));
        let endpoints: Vec<String> = self.etcd.iter().map(|endpoint| quoted(endpoint)).collect();
        [
            text("state_dir", &self.state_dir),
            match self.threads.as_ref().and_then(|threads| threads.parse::<i64>().ok()) {
                Some(count) => format!("threads = {count}\n"),
                None => text("threads", &self.threads),
            },
            text("admin.listen", &self.admin),
            text("group.name", &self.group),
            self.listen.iter().map(listener).collect(),
            format!("[source.main]\nkind = \"etcd\"\nendpoints = [{}]\n", endpoints.join(", ")),
            "[[route]]\nname = \"default\"\npath = \"/\"\n".to_owned(),
            text("upstream", &self.upstream),
            text("freshness", &self.freshness),
            text("max_age", &self.max_age),
            "lock.source = \"main\"\n".to_owned(),
            text("lock.key", &self.lock),
            text("lock.layout", &self.layout),
        ]
        .concat()
    }
}

/// A string of TOML.
fn quoted(value: &str) -> String {
    let escaped = value.chars().map(|letter| match letter {
        '"' | '\\' => format!("\\{letter}"),
        letter if letter.is_control() => format!("\\u{:04x}", u32::from(letter)),
        letter => letter.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Places};

    fn flags() -> Flags {
        Flags {
            listen: vec!["127.0.0.1:8080".to_owned()],
            upstream: Some("http://127.0.0.1:9000".to_owned()),
            etcd: vec!["http://127.0.0.1:2379".to_owned()],
            lock: Some("/shards/2/lock".to_owned()),
            ..Flags::default()
        }
    }

    #[test]
    fn flags_and_file_make_the_same_configuration() {
        let file = r#"
            threads = 2
            admin = { listen = "off" }
            group = { name = "shards" }
            listener = [{ address = "127.0.0.1:8080" }]
            source.main = { kind = "etcd", endpoints = ["http://127.0.0.1:2379"] }
            [[route]]
            name = "default"
            path = "/"
            upstream = "http://127.0.0.1:9000"
            freshness = "linearizable"
            max_age = "2s"
            lock = { source = "main", key = "/shards/2/lock", layout = "mutex" }
        "#;
        let flags = Flags {
            threads: Some("2".to_owned()),
            admin: Some("off".to_owned()),
            group: Some("shards".to_owned()),
            freshness: Some("linearizable".to_owned()),
            max_age: Some("2s".to_owned()),
            layout: Some("mutex".to_owned()),
            ..flags()
        };
        // A warning has another place: a file has lines.
        let unwarned = |config: Result<Config, _>| {
            config.map(|config| Config {
                warnings: Vec::new(),
                places: Places::default(),
                ..config
            })
        };
        assert_eq!(
            unwarned(Config::from_flags(flags)),
            unwarned(Config::from_toml("f.toml", file))
        );
    }

    #[test]
    fn problem_names_its_flag() {
        let address = r#"must be "ip:port", "[ipv6]:port", "unix:/path" or "systemd:NAME""#;
        let dir = r#"must be the absolute path of a directory, like "/var/lib/fencepost""#;
        let exposed = "10.0.0.1:1 is not on this machine alone: it needs tls with client_ca, so that only those who \
                       have a certificate can ask; dangerous_unprotected = true lets anybody";
        for (flag, value, problem) in [
            ("--listen", None, "missing: at least one address where requests are accepted"),
            ("--listen", Some("unix"), &format!("{address}, not \"unix\"")),
            (
                "--etcd",
                None,
                r#"missing: a member of the etcd cluster, like "http://127.0.0.1:2379""#,
            ),
            ("--upstream", None, r#"missing: the worker, like "http://127.0.0.1:9000""#),
            ("--lock", None, r#"missing: the key of the lock, like "/shards/2/lock""#),
            ("--lock", Some(""), "a lock key cannot be empty"),
            ("--lock", Some("\\\"\u{7}"), r#"must be without control characters, not "\\\"\u{7}""#),
            ("--lock", Some("/{n}"), r#"{n} is not a capture of the path: "/" captures nothing"#),
            ("--layout", Some("x"), r#"must be "key", "election" or "mutex", not "x""#),
            ("--threads", Some("x"), "must be an integer, not a string"),
            ("--threads", Some("0"), "must be 1 to 1024, not 0"),
            ("--max-age", Some("1ms"), r#"must be "500ms" to "1h", not "1ms""#),
            ("--freshness", Some("x"), r#"must be "cached" or "linearizable", not "x""#),
            (
                "--group",
                Some("a b"),
                "a name has 1 to 64 of A-Z, a-z, 0-9, _ and -: it is part of the keys in etcd",
            ),
            ("--state-dir", Some("x"), &format!("{dir}, not \"x\"")),
            ("--admin", Some("10.0.0.1:1"), exposed),
        ] {
            let (mut flags, value) = (flags(), value.map(str::to_owned));
            match flag {
                "--listen" => flags.listen = value.into_iter().collect(),
                "--etcd" => flags.etcd = value.into_iter().collect(),
                "--upstream" => flags.upstream = value,
                "--lock" => flags.lock = value,
                "--layout" => flags.layout = value,
                "--threads" => flags.threads = value,
                "--max-age" => flags.max_age = value,
                "--freshness" => flags.freshness = value,
                "--group" => flags.group = value,
                "--state-dir" => flags.state_dir = value,
                _ => flags.admin = value,
            }
            assert_eq!(
                Config::from_flags(flags).unwrap_err().to_string(),
                format!("{flag}: {problem}")
            );
        }
    }

    #[test]
    fn all_flags_are_looked_at() {
        let (upstream, lock) = (Some("x".to_owned()), Some(String::new()));
        let flags = Flags { listen: vec!["x".to_owned()], upstream, lock, ..flags() };
        assert_eq!(Config::from_flags(flags).unwrap_err().iter().count(), 3);
    }
}
