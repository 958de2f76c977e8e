//! Bad files, and exactly what is said about each: line, key and text. The cases are in `said/`.
//!
//! A case is the good file with some of its lines replaced, and after `=>` what is said about the
//! file. `7| …` is the new line 7, `  | …` is one more line after it, and `0| …` comes before the
//! file. Line 11 is the end of the good file. `# …` is a comment.

use fencepost_config::Config;

const GOOD: &str = r#"[[listener]]
address = "127.0.0.1:8080"
[source.main]
kind = "etcd"
endpoints = ["http://127.0.0.1:2379"]
[[route]]
name = "shards"
path = "/shards/{shard}/"
upstream = "http://127.0.0.1:9000"
lock = { source = "main", key = "/shards/{shard}/lock" }
"#;

const NO_STATE_DIR: &str = "f.toml:1: state_dir: without it, a start knows nothing of requests that a killed process left at the worker; set it, for example to \"/var/lib/fencepost\"";

fn edited(edits: &[(usize, &str)]) -> String {
    let mut lines: Vec<&str> = GOOD.lines().chain([""]).collect();
    for (number, text) in edits.iter().filter(|(number, _)| *number > 0) {
        lines[number - 1] = text;
    }
    let before = edits.iter().filter(|(number, _)| *number == 0).map(|(_, text)| *text);
    before.chain(lines).collect::<Vec<_>>().join("\n")
}

fn problems(text: &str) -> Vec<String> {
    match Config::from_toml("f.toml", text) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

fn warnings(text: &str) -> Vec<String> {
    let config =
        Config::from_toml("f.toml", text).unwrap_or_else(|problems| panic!("{problems}\n{text}"));
    let warnings = config.warnings.iter().map(ToString::to_string);
    warnings.filter(|warning| warning != NO_STATE_DIR).collect()
}

/// Checks each case of a table, and tells all that fail.
fn check(table: &str, what_is_said: fn(&str) -> Vec<String>) {
    const SAYS: &str = "   => ";
    let (mut cases, mut failures) = (0, Vec::new());
    let mut lines =
        table.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).peekable();
    while lines.peek().is_some() {
        let mut edits: Vec<(usize, String)> = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with(SAYS)) {
            let (number, text) =
                line.split_once('|').unwrap_or_else(|| panic!("no case has {line:?}"));
            let text = text.strip_prefix(' ').unwrap_or_default();
            match number.trim().parse() {
                Ok(number) => edits.push((number, text.to_owned())),
                Err(_) => edits.last_mut().unwrap().1 += &format!("\n{text}"),
            }
        }
        let mut expected = Vec::new();
        while let Some(line) = lines.next_if(|line| line.starts_with(SAYS)) {
            expected.extend(Some(&line[SAYS.len()..]).filter(|said| *said != "nothing"));
        }
        let edits: Vec<(usize, &str)> =
            edits.iter().map(|(number, text)| (*number, text.as_str())).collect();
        let text = edited(&edits);
        let said = what_is_said(&text);
        let said: Vec<&str> =
            said.iter().map(|said| said.strip_prefix("f.toml:").unwrap()).collect();
        if said != expected {
            failures.push(format!("about\n{text}\nis said {said:#?}\nand not {expected:#?}\n"));
        }
        cases += 1;
    }
    assert!(cases > 10 && failures.is_empty(), "{}", failures.concat());
}

#[test]
fn good_file_is_good() {
    assert_eq!(problems(GOOD), [""; 0]);
    assert_eq!(warnings(GOOD), [""; 0]);
}

#[test]
fn problems_have_line_key_and_what_to_write() {
    check(include_str!("said/problems.txt"), problems);
}

#[test]
fn warnings_have_line_key_and_what_follows() {
    check(include_str!("said/warnings.txt"), warnings);
}

#[test]
fn missing_state_dir_is_a_warning_while_a_route_enforces() {
    let warned = |edits: &[(usize, &str)]| {
        let config = Config::from_toml("f.toml", &edited(edits)).unwrap();
        config.warnings.iter().any(|warning| warning.to_string() == NO_STATE_DIR)
    };
    assert!(warned(&[]));
    assert!(!warned(&[(0, "state_dir = \"/var/lib/fencepost\"")]));
    assert!(!warned(&[(11, "mode = \"shadow\"")]));
    assert!(!warned(&[(11, "mode = \"off\"")]));
}

#[test]
fn short_orphan_timeout_is_a_warning() {
    let warned =
        |timeout: &str| warnings(&edited(&[(11, &format!("orphan_timeout = {timeout:?}"))]));
    assert_eq!(warned("1s"), [""; 0]);
    let [warning] = &warned("999ms")[..] else { panic!("one warning") };
    assert!(warning.starts_with("f.toml:11: route.shards.orphan_timeout: below 1s, "), "{warning}");
}

#[test]
fn key_is_shown_in_one_line_without_control_characters() {
    let said =
        problems("\"a\\nb\\u001b[31m\" = 1\n[source.\"x\\ny\"]\nkind = \"memory\"\n\"z\\r\" = 1\n");
    for begins in [
        r"f.toml:1: a\nb\u{1b}[31m: unknown key",
        r"f.toml:2: source.x\ny: a name has 1 to 64",
        r"f.toml:4: source.x\ny.z\r: unknown key",
    ] {
        assert!(said.iter().any(|problem| problem.starts_with(begins)), "{begins} in {said:?}");
    }
    assert!(said.iter().all(|problem| !problem.contains(char::is_control)), "{said:?}");
}
