//! Bad files, and exactly what is said about each: line, key and text.
//!
//! A case is the good file with some of its lines replaced, and after `=>` what is said about the file. `7| …` is the new
//! line 7, `  | …` is one more line after it, and `0| …` comes before the file. Line 11 is the end of the good file. `# …` is a comment.

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

const NO_STATE_DIR: &str = "f.toml:1: state_dir: without state_dir a start promises nothing about requests that an earlier process left at the worker";

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
    let config = Config::from_toml("f.toml", text).unwrap_or_else(|problems| panic!("{problems}\n{text}"));
    let warnings = config.warnings.iter().map(ToString::to_string);
    warnings.filter(|warning| warning != NO_STATE_DIR).collect()
}

/// Checks each case of a table, and tells all that fail.
fn check(table: &str, what_is_said: fn(&str) -> Vec<String>) {
    const SAYS: &str = "   => ";
    let (mut cases, mut failures) = (0, Vec::new());
    let mut lines = table.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).peekable();
    while lines.peek().is_some() {
        let mut edits: Vec<(usize, String)> = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with(SAYS)) {
            let (number, text) = line.split_once('|').unwrap_or_else(|| panic!("no case has {line:?}"));
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
        let edits: Vec<(usize, &str)> = edits.iter().map(|(number, text)| (*number, text.as_str())).collect();
        let text = edited(&edits);
        let said = what_is_said(&text);
        let said: Vec<&str> = said.iter().map(|said| said.strip_prefix("f.toml:").unwrap()).collect();
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
    check(PROBLEMS, problems);
}

#[test]
fn warnings_have_line_key_and_what_follows() {
    check(WARNINGS, warnings);
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
    let warned = |timeout: &str| warnings(&edited(&[(11, &format!("orphan_timeout = {timeout:?}"))]));
    assert_eq!(warned("1s"), [""; 0]);
    let [warning] = &warned("999ms")[..] else { panic!("one warning") };
    assert!(warning.starts_with("f.toml:11: route.shards.orphan_timeout: below 1s, "), "{warning}");
}

/// A terminal would obey what a key has of control characters.
#[test]
fn key_is_shown_in_one_line_without_control_characters() {
    let said = problems("\"a\\nb\\u001b[31m\" = 1\n[source.\"x\\ny\"]\nkind = \"memory\"\n\"z\\r\" = 1\n");
    for begins in [
        r"f.toml:1: a\nb\u{1b}[31m: unknown key",
        r"f.toml:2: source.x\ny: a name has 1 to 64",
        r"f.toml:4: source.x\ny.z\r: unknown key",
    ] {
        assert!(said.iter().any(|problem| problem.starts_with(begins)), "{begins} in {said:?}");
    }
    assert!(said.iter().all(|problem| !problem.contains(char::is_control)), "{said:?}");
}

const PROBLEMS: &str = r##"
# Wrong types and unknown keys
11| max_agee = "5s"
   => 11: route.shards.max_agee: unknown key; did you mean "max_age"?
11| colour = "red"
   => 11: route.shards.colour: unknown key
11| state_dir = "/var/lib/fencepost"
   => 11: route.shards.state_dir: unknown key; state_dir stands above the first [table] of the file
11| max_age = 5
   => 11: route.shards.max_age: must be a duration, like "250ms", "5s", "2m" or "1h", not an integer
 7| name = 7
   => 7: route[0].name: must be a string, not an integer
11| exempt_methods = "GET"
   => 11: route.shards.exempt_methods: must be a list of strings, not a string
11| exempt_methods = ["GET", 1]
   => 11: route.shards.exempt_methods[1]: must be a string, not an integer
11| stale_status = "412"
   => 11: route.shards.stale_status: must be an integer, not a string
10| lock = "main"
   => 10: route.shards.lock: must be a table, not a string
10| lock = { source = "main", key = "/shards/{shard}/lock", layuot = "key" }
   => 10: route.shards.lock.layuot: unknown key; did you mean "layout"?
10| lock = { source = "main", key = "/shards/{shard}/lock", from_header = "yes" }
   => 10: route.shards.lock.from_header: must be true or false, not a string
 0| state_dir = false
   => 1: state_dir: must be a string, not true or false
 0| theads = 4
   => 1: theads: unknown key; did you mean "threads"?
 0| threads = 0
   => 1: threads: must be 1 to 1024, not 0
 0| threads = 99999999999999999999
   => 1: threads: 99999999999999999999 does not fit into 64 bits
 0| threads = 1.5
   => 1: threads: must be an integer, not a float
 0| limits = 1979-05-27
   => 1: limits: must be a table, not a date or time
 1| [listener]
   => 1: listener: must be a list of tables, each begun with [[listener]], not a table
 3| [source]
   => 4: source.kind: must be a table, not a string
   => 5: source.endpoints: must be a table, not a list
   => 10: route.shards.lock.source: there is no source "main": [source.main] is missing
 6| [route]
   => 6: route: must be a list of tables, each begun with [[route]], not a table
 1| listener = ["127.0.0.1:8080"]
 2|
   => 1: listener[0]: must be a table, not a string
# Missing keys
 1|
 2|
 3|
 4|
 5|
 6|
 7|
 8|
 9|
10|
   => 1: listener: missing: at least one address where requests are accepted
   => 1: route: missing: at least one route, which says which requests go where
 2|
   => 1: listener[0].address: missing: the address where requests are accepted
 4|
   => 3: source.main.kind: missing: "etcd" or "memory"
 5|
   => 3: source.main.endpoints: missing: a member of the etcd cluster, like "http://127.0.0.1:2379"
 7|
   => 6: route[0].name: missing: the name of the route, a metric label
 8|
   => 6: route.shards.path: missing: the paths that the route takes, like "/" or "/shards/{shard}/"
 9|
   => 6: route.shards.upstream: missing: the worker, like "http://127.0.0.1:9000"
10|
   => 6: route.shards.lock: missing: the lock that guards the route (only mode = "off" needs none)
10| lock = {}
   => 10: route.shards.lock.source: missing: the name of the source that keeps the lock
   => 10: route.shards.lock.key: missing: the key of the lock, like "/shards/2/lock"
10| mode = "shadow"
   => 6: route.shards.lock: missing: the lock that guards the route (only mode = "off" needs none)
# Who may claim to be whom
 2| address = "127.0.0.1:8080"
  | tls = { certificate = "/t/a.pem", key = "/t/a.key", client_ca = "/t/ca.pem" }
11| identity = {}
   => 12: route.shards.identity: must have one of uri, dns and common_name, not 0
 2| address = "127.0.0.1:8080"
  | tls = { certificate = "/t/a.pem", key = "/t/a.key", client_ca = "/t/ca.pem" }
11| identity = { take_owner = true }
   => 12: route.shards.identity: must have one of uri, dns and common_name, not 0
 2| address = "127.0.0.1:8080"
  | tls = { certificate = "/t/a.pem", key = "/t/a.key", client_ca = "/t/ca.pem" }
11| identity = { uri = "x:{owner}", dns = "{owner}/", common_name = 1 }
   => 12: route.shards.identity: must have one of uri, dns and common_name, not 3
   => 12: route.shards.identity.dns: must be a DNS name, like "{owner}.masters.example.org", not "{owner}/"
   => 12: route.shards.identity.common_name: must be a string, not an integer
 2| address = "127.0.0.1:8080"
  | tls = { certificate = "/t/a.pem", key = "/t/a.key", client_ca = "/t/ca.pem" }
11| identity = { uri = "spiffe://example.org/{shard}" }
   => 12: route.shards.identity.uri: must have exactly one {owner} and no other braces, not be "spiffe://example.org/{shard}"
 2| address = "127.0.0.1:8080"
  | tls = { certificate = "/t/a.pem", key = "/t/a.key", client_ca = "/t/ca.pem" }
11| identity = { uri = "{owner}", takeowner = true }
   => 12: route.shards.identity.uri: must be a URI with its scheme before {owner}, like "spiffe://example.org/shard/{owner}", not "{owner}"
   => 12: route.shards.identity.takeowner: unknown key; did you mean "take_owner"?
 2| address = "127.0.0.1:8080"
  | tls = { certificate = "/t/a.pem", key = "/t/a.key", client_ca = "/t/ca.pem" }
10| lock = { source = "main", key = "/shards/{shard}/lock", layout = "mutex" }
11| mode = "off"
  | identity = { common_name = "{owner}" }
   => 13: route.shards.identity: is not for layout = "mutex": there the owner is the full name of the contender's own key, with the id of its lease, and no certificate names that
11| identity = { common_name = "{owner}" }
   => 11: route.shards.identity: needs client certificates, but listener 127.0.0.1:8080 has no tls with client_ca
 2| address = "127.0.0.1:8080"
  | tls = { certificate = "/t/a.pem", key = "/t/a.key" }
  | [[listener]]
  | address = "unix:/run/f.sock"
11| mode = "shadow"
  | identity = { common_name = "{owner}" }
   => 15: route.shards.identity: needs client certificates, but listener 127.0.0.1:8080 has no tls with client_ca
   => 15: route.shards.identity: needs client certificates, but listener unix:/run/f.sock has no tls with client_ca
# Listeners and admin
 2| address = "localhost:80"
   => 2: listener[0].address: must be "ip:port", "[ipv6]:port", "unix:/path" or "systemd:NAME", not "localhost:80"
 2| address = "unix:run.sock"
   => 2: listener[0].address: the path of a unix socket must be absolute and name a file, not "run.sock"
 2| address = "127.0.0.1:8080"
  | [[listener]]
  | address = "127.0.0.1:8080"
   => 4: listener[1].address: 127.0.0.1:8080 is listened on already
 2| address = "0.0.0.0:8080"
  | [[listener]]
  | address = "127.0.0.1:8080"
   => 4: listener[1].address: 127.0.0.1:8080 is listened on already, as 0.0.0.0:8080
 2| address = "[::1]:8080"
  | [[listener]]
  | address = "[::]:8080"
   => 4: listener[1].address: [::]:8080 is listened on already, as [::1]:8080
 2| address = "[::]:9901"
   => 2: listener[0].address: [::]:9901 is the address of the admin listener, 127.0.0.1:9901, too
 2| address = "127.0.0.1:9901"
   => 2: listener[0].address: 127.0.0.1:9901 is the address of the admin listener
 0| [admin]
  | listen = "0.0.0.0:9901"
   => 2: admin.listen: 0.0.0.0:9901 is not on this machine alone: it needs tls with client_ca, so that only those who have a certificate can ask; dangerous_unprotected = true lets anybody
 2| address = "systemd:a:b"
   => 2: listener[0].address: must be "systemd:" and the FileDescriptorName= of a socket unit, 1 to 255 of A-Z, a-z, 0-9, _, -, . and @, not "a:b"
 2| address = "systemd:http"
  | [[listener]]
  | address = "systemd:http"
   => 4: listener[1].address: systemd:http is listened on already
 0| [admin]
  | listen = "systemd:admin"
   => 2: admin.listen: systemd:admin is not on this machine alone: it needs tls with client_ca, so that only those who have a certificate can ask; dangerous_unprotected = true lets anybody
 0| [admin]
  | listen = "none"
   => 2: admin.listen: must be "ip:port", "[ipv6]:port", "unix:/path" or "systemd:NAME", not "none"
 0| [admin]
  | lsten = "off"
   => 2: admin.lsten: unknown key; did you mean "listen"?
 1| listener = []
 2|
   => 1: listener: missing: at least one address where requests are accepted
# The directory of the state
 0| state_dir = ""
   => 1: state_dir: must be the absolute path of a directory, like "/var/lib/fencepost", not ""
 0| state_dir = "var/lib"
   => 1: state_dir: must be the absolute path of a directory, like "/var/lib/fencepost", not "var/lib"
 0| state_dir = "/a\u0000b"
   => 1: state_dir: must be the absolute path of a directory, like "/var/lib/fencepost", not "/a\0b"
# Limits
 0| [limits]
  | connections_max = 0
  | header_bytes_max = "1KiB"
  | header_timeout = "1ms"
  | idle_timeout = "2h"
  | buffer_body_max = -1
  | drain_delay = "11m"
   => 2: limits.connections_max: must be 1 to 1000000, not 0
   => 3: limits.header_bytes_max: must be "8KiB" to "1MiB", not "1KiB"
   => 4: limits.header_timeout: must be "100ms" to "10m", not "1ms"
   => 5: limits.idle_timeout: must be "100ms" to "1h", not "2h"
   => 6: limits.buffer_body_max: must be 0 to "16MiB", not -1
   => 7: limits.drain_delay: must be "0s" to "10m", not "11m"
 0| [limits]
  | header_bytes_max = "64KB"
  | buffer_body_max = true
  | body_timeout = "30"
  | connect_timout = "1s"
  | h2_streams_max = "128"
   => 2: limits.header_bytes_max: must be one number and one unit (B, KiB, MiB or GiB), like "64KiB", or an integer of bytes, not "64KB"
   => 3: limits.buffer_body_max: must be a size, like "64KiB", or an integer of bytes, not true or false
   => 4: limits.body_timeout: must be one number and one unit, like "250ms", "5s", "2m" or "1h", not "30"
   => 5: limits.connect_timout: unknown key; did you mean "connect_timeout"?
   => 6: limits.h2_streams_max: must be an integer, not a string
# Sources
 4| kind = "zookeeper"
   => 4: source.main.kind: must be "etcd" or "memory", not "zookeeper"
 4| kind = "memory"
   => 5: source.main.endpoints: a source of kind "memory" is in this process and connects to nothing: leave it out
 5| endpoints = []
   => 5: source.main.endpoints: missing: a member of the etcd cluster, like "http://127.0.0.1:2379"
 5| endpoints = ["http://a:1", "a:1", "http://a:1/v3", "http://a", "http://a:0"]
   => 5: source.main.endpoints[1]: must be "http://host:port" or "https://host:port", not "a:1"
   => 5: source.main.endpoints[2]: must end after the port: "/v3" after "a:1" would be ignored
   => 5: source.main.endpoints[3]: must name a host and a port from 1 to 65535, like "127.0.0.1:9000", not "a"
   => 5: source.main.endpoints[4]: must name a host and a port from 1 to 65535, like "127.0.0.1:9000", not "a:0"
 5| endpoints = [
  |   "http://127.0.0.1:2379",
  |   "http://127.0.0.1:2379",
  | ]
   => 7: source.main.endpoints[1]: "http://127.0.0.1:2379" is in the list already
 5| endpoints = ["http://127.0.0.1:2379"]
  | cluster_id = "xyz"
   => 6: source.main.cluster_id: must be 1 to 16 hexadecimal digits, like "cdf818194e3a8c32", not "xyz"
 5| endpoints = ["http://127.0.0.1:2379"]
  | username = ""
   => 3: source.main.password_file: missing: the file of the user's password
   => 6: source.main.username: must be the name of a user of etcd, not ""
 5| endpoints = ["http://127.0.0.1:2379"]
  | password = "secret"
  | password_file = "secret"
   => 3: source.main.username: missing: whose password_file it is
   => 6: source.main.password: unknown key
   => 7: source.main.password_file: must be the absolute path of a file, like "/etc/fencepost/tls.pem", not "secret"
 5| endpoints = ["https://a:1", "http://a:2"]
   => 3: source.main.tls: missing: with https:// endpoints, at least tls = { ca = "/path" } in a file
   => 5: source.main.endpoints[1]: must begin as the others do: all of them with http:// or all with https://
 5| endpoints = ["http://a:1"]
  | tls = { ca = "/ca.pem" }
   => 6: source.main.tls: means nothing with http:// endpoints: write https://, or leave it out
 5| endpoints = ["https://a:1"]
  | tls = { certificate = "/c.pem" }
   => 6: source.main.tls.ca: missing: the file of the authorities that are believed
   => 6: source.main.tls.key: missing: the file of the certificate's private key
 3| [source."main etcd"]
10| lock = { source = "main etcd", key = "/k" }
   => 3: source.main etcd: a name has 1 to 64 of A-Z, a-z, 0-9, _ and -: it is a metric label
# Routes
 2| address = "0.0.0.0:9000"
   => 9: route.shards.upstream: http://127.0.0.1:9000 leads to fencepost itself: listener 0.0.0.0:9000
 7| name = "a b"
   => 7: route[0].name: a name has 1 to 64 of A-Z, a-z, 0-9, _ and -: it is a metric label
 8| path = "shards"
   => 8: route.shards.path: must begin with "/", not be "shards"
 8| path = "/shards/{Shard}/"
10| mode = "off"
   => 8: route.shards.path: {Shard} is no capture: a name is like "shard_2", of a-z, 0-9 and _
 8| path = "/shards/x{shard}/"
10| mode = "off"
   => 8: route.shards.path: "x{shard}" is neither text nor a capture: {name} stands for one whole segment
 8| path = "/{a}/{a}/"
10| mode = "off"
   => 8: route.shards.path: captures {a} twice
 8| path = "/a//b"
10| mode = "off"
   => 8: route.shards.path: has an empty segment: workers take "//" for "/"
 8| path = "/a/../b"
10| mode = "off"
   => 8: route.shards.path: has a segment "..": workers remove it
 8| path = "/a%20b"
10| mode = "off"
   => 8: route.shards.path: has '%' in the segment "a%20b": paths are compared decoded, so write the character itself
 8| path = "/{a}/{b}/{c}/{d}/{e}/{f}/{g}/{h}/{i}"
10| mode = "off"
   => 8: route.shards.path: has at most 8 captures, not 9
 9| upstream = "https://127.0.0.1:9000"
   => 6: route.shards.upstream_tls: missing: it says whose certificates are believed of an https upstream, as in { ca = "/etc/fencepost/worker-ca.pem" }
 9| upstream = "https://127.0.0.1:9000"
  | upstream_tls = { ca = "ca.pem", certificate = "/c.pem", name = "worker" }
   => 10: route.shards.upstream_tls.ca: must be the absolute path of a file, like "/etc/fencepost/tls.pem", not "ca.pem"
   => 10: route.shards.upstream_tls.key: missing: the file of the certificate's private key
   => 10: route.shards.upstream_tls.name: unknown key
11| upstream_tls = { ca = "/ca.pem" }
   => 11: route.shards.upstream_tls: means nothing to a worker that is spoken to in cleartext
 9| upstream = "unix+https:/run/worker.sock"
  | upstream_tls = { ca = "/ca.pem" }
   => 10: route.shards.upstream_tls.server_name: missing: the name in the certificate of a worker behind a unix socket
 5| endpoints = ["https://etcd-1:2379", "https://etcd-.a:2379"]
  | tls = { ca = "/ca.pem" }
 9| upstream = "https://1.2.3:9000"
  | upstream_tls = { ca = "/ca.pem" }
   => 5: source.main.endpoints[1]: no certificate can be for "etcd-.a": write another host, or server_name
   => 10: route.shards.upstream: no certificate can be for "1.2.3": write another host, or server_name
 9| upstream = "https://1.2.3:9000"
  | upstream_tls = { ca = "/ca.pem", server_name = "a..b" }
   => 10: route.shards.upstream_tls.server_name: must be a host name or an IP address, like "worker.example", not "a..b"
 9| upstream = "http://127.0.0.1:9000/base"
   => 9: route.shards.upstream: must end after the port: "/base" after "127.0.0.1:9000" would be ignored
 9| upstream = "127.0.0.1:9000"
   => 9: route.shards.upstream: must be "http://host:port", "https://host:port", "h2c://host:port", "unix:/path", "unix+https:/path" or "unix+h2c:/path", not "127.0.0.1:9000"
 9| upstream = "unix:worker.sock"
   => 9: route.shards.upstream: the path of a unix socket must be absolute and name a file, not "worker.sock"
11| host = "worker:80"
   => 11: route.shards.host: must be a host without a port, like "worker.example", not "worker:80"
11| mode = "enforced"
   => 11: route.shards.mode: must be "enforce", "shadow" or "off", not "enforced"
11| freshness = "fresh"
   => 11: route.shards.freshness: must be "cached" or "linearizable", not "fresh"
11| max_age = "499ms"
   => 11: route.shards.max_age: must be "500ms" to "1h", not "499ms"
11| max_age = "61m"
   => 11: route.shards.max_age: must be "500ms" to "1h", not "61m"
11| request_timeout = "0s"
   => 11: route.shards.request_timeout: must be "10ms" to "24h", not "0s"
11| stale_status = 410
   => 11: route.shards.stale_status: must be 412 or 409, not 410
11| on_unavailable = "admit"
   => 11: route.shards.on_unavailable: must be "reject" or "dangerous_admit", not "admit"
11| on_handoff_timeout = "proceed"
  | partial_requests = "ignore"
  | streaming = "yes"
   => 11: route.shards.on_handoff_timeout: must be "reject" or "dangerous_proceed", not "proceed"
   => 12: route.shards.partial_requests: must be "orphans" or "harmless", not "ignore"
   => 13: route.shards.streaming: must be true or false, not a string
11| exempt_methods = ["get", "GET", "GET", "G ET"]
   => 11: route.shards.exempt_methods[0]: must be "GET", not "get": methods are told apart by upper and lower case
   => 11: route.shards.exempt_methods[2]: "GET" is in the list already
   => 11: route.shards.exempt_methods[3]: must be the name of a method, like "GET", not "G ET"
11| owner_header = "Host"
   => 11: route.shards.owner_header: "Host" has a meaning of its own for the connection, the framing or the routing of requests
11| owner_header = "Fence Owner"
   => 11: route.shards.owner_header: must be the name of a header, not "Fence Owner"
11| owner_header = "X-Fence"
  | revision_header = "x-fence"
   => 12: route.shards.revision_header: "x-fence" is route.shards.owner_header too
11| owner_header = "shard_owner"
  | revision_header = "Shard-Owner"
   => 12: route.shards.revision_header: "shard-owner" is route.shards.owner_header, "shard_owner", to a worker that folds names
11| owner_header = "Fence_Lock"
   => 6: route.shards.lock_header: "fence-lock" is route.shards.owner_header, "fence_lock", to a worker that folds names
11| owner_header = "X_Forwarded-Host"
   => 11: route.shards.owner_header: "X_Forwarded-Host" has a meaning of its own for the connection, the framing or the routing of requests
11| lock_header = "Fence-Owner"
   => 11: route.shards.lock_header: "fence-owner" is route.shards.owner_header too
11| [[route]]
  | name = "shards"
  | path = "/"
  | upstream = "http://127.0.0.1:9000"
  | mode = "off"
   => 12: route[1].name: another route (line 7) has this name
 7| name = "none"
   => 7: route[0].name: "none" is what requests are counted under that no route takes
# Locks
10| lock = { source = "mian", key = "/k" }
   => 10: route.shards.lock.source: there is no source "mian"; did you mean "main"?
10| lock = { source = "other", key = "/k" }
   => 10: route.shards.lock.source: there is no source "other": [source.other] is missing
10| lock = { source = "main", key = "" }
   => 10: route.shards.lock.key: a lock key cannot be empty
10| lock = { source = "main", key = "/k\u0000" }
   => 10: route.shards.lock.key: must be without control characters, not "/k\0"
10| lock = { source = "main", key = "/shards/{n}/lock" }
   => 10: route.shards.lock.key: {n} is not a capture of the path: "/shards/{shard}/" captures {shard}
 8| path = "/"
   => 10: route.shards.lock.key: {shard} is not a capture of the path: "/" captures nothing
10| lock = { source = "main", key = "/{shard}-{shard}" }
   => 10: route.shards.lock.key: "{shard}-{shard}" is no segment of a key: it has text and at most one placeholder, like "shard-{n}"
10| lock = { source = "main", key = "/{shard" }
   => 10: route.shards.lock.key: "{shard" is no segment of a key: it has text and at most one placeholder, like "shard-{n}"
10| lock = { source = "main", key = "/{}" }
   => 10: route.shards.lock.key: {} is no placeholder: a name is like "shard_2", of a-z, 0-9 and _
10| lock = { source = "main", key = "/k", layout = "queue" }
   => 10: route.shards.lock.layout: must be "key", "election" or "mutex", not "queue"
10| lock = { source = "main", key = "/k", layout = "mutex", owner_field = "o", free_values = [""] }
   => 10: route.shards.lock.free_values: is not for layout = "mutex": there the owner is the full name of the contender's own key, since a human name would let a stalled contender that queued earlier pass for its successor of the same name
   => 10: route.shards.lock.owner_field: is not for layout = "mutex": there the owner is the full name of the contender's own key, since a human name would let a stalled contender that queued earlier pass for its successor of the same name
10| lock = { source = "main", key = "/k", layout = "election", owner_field = "o" }
   => 10: route.shards.lock.owner_field: is not for layout = "election": there the owner is the value of the leader's key, as it is
10| lock = { source = "main", key = "/k", free_values = ["-", "-"], owner_field = "" }
   => 10: route.shards.lock.free_values[1]: "-" is in the list already
   => 10: route.shards.lock.owner_field: must be the name of a field of the JSON object, not empty
# Locks of several routes
11| [[route]]
  | name = "other"
  | path = "/other/{id}/"
  | upstream = "http://127.0.0.1:9001"
  | lock = { source = "main", key = "/shards/{id}/lock", layout = "election" }
   => 15: route.other.lock: the key "/shards/{id}/lock" is read with layout = "election" here, but with layout = "key" in route "shards" (line 10)
11| [[route]]
  | name = "other"
  | path = "/other/{id}/"
  | upstream = "http://127.0.0.1:9001"
  | lock = { source = "main", key = "/shards/7/lock", layout = "mutex" }
   => 15: route.other.lock: the key "/shards/7/lock" is read with layout = "mutex" here, but with layout = "key" in route "shards" (line 10)
11| [[route]]
  | name = "other"
  | path = "/other/{id}/"
  | upstream = "http://127.0.0.1:9001"
  | lock = { source = "main", key = "/shards/{id}/lock", owner_field = "holder" }
   => 15: route.other.lock: the key "/shards/{id}/lock" is read with owner_field = "holder" here, but with owner_field = nothing in route "shards" (line 10)
11| [[route]]
  | name = "other"
  | path = "/other/{id}/"
  | upstream = "http://127.0.0.1:9001"
  | lock = { source = "main", key = "/shards/{id}/lock", free_values = [""] }
   => 15: route.other.lock: the key "/shards/{id}/lock" is read with free_values = [""] here, but with free_values = [] in route "shards" (line 10)
11| [[route]]
  | name = "other"
  | path = "/other/{id}/"
  | upstream = "http://127.0.0.1:9001"
  | lock = { source = "backup", key = "/shards/{id}/lock" }
  | [source.backup]
  | kind = "memory"
   => 15: route.other.lock: the key "/shards/{id}/lock" is read with source = "backup" here, but with source = "main" in route "shards" (line 10)
10| lock = { source = "main", key = "/a", layout = "mutex" }
11| [[route]]
  | name = "other"
  | path = "/other/{id}/"
  | upstream = "http://127.0.0.1:9001"
  | lock = { source = "main", key = "/a/b", layout = "mutex" }
   => 15: route.other.lock: "/a/b" and "/a" lie one below the other, so that they block each other in etcd; the other is the lock of route "shards" (line 10)
10| lock = { source = "main", key = "/a b/{shard}" }
11| [[route]]
  | name = "other"
  | path = "/other/{id}/"
  | upstream = "http://127.0.0.1:9001"
  | lock = { source = "main", key = "/a%20b/{id}" }
   => 15: route.other.lock: "/a%20b/{id}" and "/a b/{shard}" are the same where a request names its lock percent-encoded; the other is the lock of route "shards" (line 10)
10| lock = { source = "main", key = "/a/b/c", layout = "election" }
11| [[route]]
  | name = "other"
  | path = "/other/{id}/"
  | upstream = "http://127.0.0.1:9001"
  | lock = { source = "main", key = "/a/{id}", layout = "election" }
   => 15: route.other.lock: "/a/{id}" and "/a/b/c" lie one below the other, so that they block each other in etcd; the other is the lock of route "shards" (line 10)
10| lock = { source = "main", key = "/a", layout = "mutex" }
11| [[route]]
  | name = "other"
  | path = "/other/{id}/"
  | upstream = "http://127.0.0.1:9001"
  | lock = { source = "main", key = "/a/b" }
   => 15: route.other.lock: "/a/b" and "/a" lie one below the other, so that they block each other in etcd; the other is the lock of route "shards" (line 10)
10| lock = { source = "main", key = "/a" }
11| [[route]]
  | name = "other"
  | path = "/other/{id}/"
  | upstream = "http://127.0.0.1:9001"
  | lock = { source = "main", key = "/a/b", layout = "mutex" }
   => nothing
# Everything at once
 2| address = "localhost"
 4| kind = "etc"
 7| name = "sh ards"
 8| path = "shards"
 9| upstream = "ftp://x"
10| lock = { source = "mein", key = "{", lyout = 1 }
11| max_age = "1y"
  | modus = 1
   => 2: listener[0].address: must be "ip:port", "[ipv6]:port", "unix:/path" or "systemd:NAME", not "localhost"
   => 4: source.main.kind: must be "etcd" or "memory", not "etc"
   => 7: route[0].name: a name has 1 to 64 of A-Z, a-z, 0-9, _ and -: it is a metric label
   => 8: route[0].path: must begin with "/", not be "shards"
   => 9: route[0].upstream: must be "http://host:port", "https://host:port", "h2c://host:port", "unix:/path", "unix+https:/path" or "unix+h2c:/path", not "ftp://x"
   => 10: route[0].lock.source: there is no source "mein"; did you mean "main"?
   => 10: route[0].lock.key: "{" is no segment of a key: it has text and at most one placeholder, like "shard-{n}"
   => 10: route[0].lock.lyout: unknown key; did you mean "layout"?
   => 11: route[0].max_age: must be one number and one unit, like "250ms", "5s", "2m" or "1h", not "1y"
   => 12: route[0].modus: unknown key; did you mean "mode"?
# Not TOML, with the column
 7| name =
   => 7:7: string values must be quoted, expected literal string
 7| name = "shards
   => 7:15: invalid basic string, expected `"`
 7| name = "a"
  | name = "b"
   => 8:1: duplicate key: name
 3| [source.main
   => 3:13: unclosed table, expected `]`
 2| address = "é", x
   => 2:14: unexpected key or value, expected newline, `#`
"##;

const WARNINGS: &str = r##"
 9| upstream = "http://127.0.0.1:9901"
   => 9: route.shards.upstream: http://127.0.0.1:9901 leads to the admin listener: whoever the route takes can change what that offers (routes for /livez, /readyz, /metrics alone only tell)
11| [[route]]
  | name = "livez"
  | path = "/livez"
  | upstream = "http://127.0.0.1:9901"
  | mode = "off"
   => nothing
 8| path = "/shards/:shard/**"
10| lock = { source = "main", key = "/k" }
   => 8: route.shards.path: ":shard" stands for itself alone: {name} takes any one segment, and whatever is below its path a route takes anyway
 8| path = "/shards/*"
10| lock = { source = "main", key = "/k" }
   => 8: route.shards.path: "*" stands for itself alone: {name} takes any one segment, and whatever is below its path a route takes anyway
11| [[route]]
  | name = "health"
  | path = "/health"
  | upstream = "h2c://127.0.0.1:9000"
  | mode = "off"
   => 13: route.health.path: forwards requests unjudged, with whatever token they bring, to the worker of route "shards" (line 8)
11| [[route]]
  | name = "health"
  | path = "/health"
  | upstream = "http://127.0.0.1:9001"
  | mode = "off"
   => nothing
11| mode = "shadow"
   => 11: route.shards.mode: refuses nothing: it only records what "enforce" would have done
11| on_unavailable = "dangerous_admit"
   => 11: route.shards.on_unavailable: forwards requests unjudged, an ended holder's too, while the lock store cannot be asked
11| on_handoff_timeout = "dangerous_proceed"
   => 11: route.shards.on_handoff_timeout: forwards requests of a new holder after handoff_timeout, while those of an earlier one may still be at the worker
11| partial_requests = "harmless"
   => 11: route.shards.partial_requests: takes the worker's word that it does nothing with a request that it gets only a part of: the next holder does not wait for one that was cut
11| mode = "off"
  | identity = { common_name = "{owner}" }
   => 12: route.shards.identity: nobody is asked for it while the route is off
 2| address = "127.0.0.1:8080"
  | tls = { certificate = "/t/a.pem", key = "/t/a.key", client_ca = "/t/ca.pem" }
11| identity = { common_name = "{owner}" }
  | [[route]]
  | name = "other"
  | path = "/other/{shard}/"
  | upstream = "http://127.0.0.1:9000"
  | lock = { source = "main", key = "/shards/{shard}/lock" }
   => 15: route.other.path: takes the holder's token from any sender, though route "shards" (line 9) with the same lock asks for its identity
11| exempt_methods = ["GET", "PUT"]
   => 11: route.shards.exempt_methods[1]: PUT requests pass without a token, an ended holder's too
11| [source.spare]
  | kind = "memory"
   => 11: source.spare: no route uses this source
11| [[route]]
  | name = "two"
  | path = "/shards/2/"
  | upstream = "http://127.0.0.1:9000"
  | mode = "off"
   => 13: route.two.path: never matches: all its paths meet route "shards" (line 8) first
11| [[route]]
  | name = "rest"
  | path = "/"
  | upstream = "http://127.0.0.1:9001"
  | mode = "off"
   => 8: route.shards.path: "/shards/{shard}", without the slash, goes to route "rest" (line 13): a path "/shards/{shard}" takes both
11| [[route]]
  | name = "bare"
  | path = "/shards/{shard}"
  | upstream = "http://127.0.0.1:9000"
  | lock = { source = "main", key = "/shards/{shard}/lock" }
   => nothing
 6| [[route]]
  | name = "all"
  | path = "/"
  | upstream = "http://127.0.0.1:9001"
  | mode = "off"
  | [[route]]
11| [[route]]
  | name = "rest"
  | path = "/"
  | upstream = "http://127.0.0.1:9001"
  | mode = "off"
   => 13: route.shards.path: never matches: all its paths meet route "all" (line 8) first
   => 18: route.rest.path: never matches: all its paths meet route "all" (line 8) first
11| [[route]]
  | name = "rest"
  | path = "/"
  | host = "static.example"
  | upstream = "http://127.0.0.1:9001"
  | mode = "off"
   => nothing
"##;
