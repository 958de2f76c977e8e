//! Bad files, and exactly what is said about each: line, key and text.
//!
//! Each case is the good file below with some of its lines replaced (by nothing, or by several); line 11 is its end. What is
//! said of a missing `state_dir` has tests of its own.

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

struct Case {
    edits: &'static [(usize, &'static str)],
    says: &'static [&'static str],
}

/// Types and unknown keys.
const TYPES_AND_UNKNOWN_KEYS: &[Case] = &[
    Case {
        edits: &[(11, r#"max_agee = "5s""#)],
        says: &[r#"f.toml:11: route.shards.max_agee: unknown key; did you mean "max_age"?"#],
    },
    Case { edits: &[(11, r#"colour = "red""#)], says: &["f.toml:11: route.shards.colour: unknown key"] },
    Case {
        edits: &[(11, r#"state_dir = "/var/lib/fencepost""#)],
        says: &["f.toml:11: route.shards.state_dir: unknown key; state_dir stands above the first [table] of the file"],
    },
    Case {
        edits: &[(11, "max_age = 5")],
        says: &[
            r#"f.toml:11: route.shards.max_age: must be a duration, like "250ms", "5s", "2m" or "1h", not an integer"#,
        ],
    },
    Case { edits: &[(7, "name = 7")], says: &["f.toml:7: route[0].name: must be a string, not an integer"] },
    Case {
        edits: &[(11, r#"exempt_methods = "GET""#)],
        says: &["f.toml:11: route.shards.exempt_methods: must be a list of strings, not a string"],
    },
    Case {
        edits: &[(11, r#"exempt_methods = ["GET", 1]"#)],
        says: &["f.toml:11: route.shards.exempt_methods[1]: must be a string, not an integer"],
    },
    Case {
        edits: &[(11, r#"stale_status = "412""#)],
        says: &["f.toml:11: route.shards.stale_status: must be an integer, not a string"],
    },
    Case { edits: &[(10, r#"lock = "main""#)], says: &["f.toml:10: route.shards.lock: must be a table, not a string"] },
    Case {
        edits: &[(10, r#"lock = { source = "main", key = "/shards/{shard}/lock", layuot = "key" }"#)],
        says: &[r#"f.toml:10: route.shards.lock.layuot: unknown key; did you mean "layout"?"#],
    },
    Case {
        edits: &[(10, r#"lock = { source = "main", key = "/shards/{shard}/lock", from_header = "yes" }"#)],
        says: &["f.toml:10: route.shards.lock.from_header: must be true or false, not a string"],
    },
    Case {
        edits: &[(
            1,
            r#"state_dir = false
[[listener]]"#,
        )],
        says: &["f.toml:1: state_dir: must be a string, not true or false"],
    },
    Case {
        edits: &[(
            1,
            r#"theads = 4
[[listener]]"#,
        )],
        says: &[r#"f.toml:1: theads: unknown key; did you mean "threads"?"#],
    },
    Case {
        edits: &[(
            1,
            r#"threads = 0
[[listener]]"#,
        )],
        says: &["f.toml:1: threads: must be 1 to 1024, not 0"],
    },
    Case {
        edits: &[(
            1,
            r#"threads = 99999999999999999999
[[listener]]"#,
        )],
        says: &["f.toml:1: threads: 99999999999999999999 does not fit into 64 bits"],
    },
    Case {
        edits: &[(
            1,
            r#"threads = 1.5
[[listener]]"#,
        )],
        says: &["f.toml:1: threads: must be an integer, not a float"],
    },
    Case {
        edits: &[(
            1,
            r#"limits = 1979-05-27
[[listener]]"#,
        )],
        says: &["f.toml:1: limits: must be a table, not a date or time"],
    },
    Case {
        edits: &[(1, "[listener]")],
        says: &["f.toml:1: listener: must be a list of tables, each begun with [[listener]], not a table"],
    },
    Case {
        edits: &[(3, "[source]")],
        says: &[
            "f.toml:4: source.kind: must be a table, not a string",
            "f.toml:5: source.endpoints: must be a table, not a list",
            r#"f.toml:10: route.shards.lock.source: there is no source "main": [source.main] is missing"#,
        ],
    },
    Case {
        edits: &[(6, "[route]")],
        says: &["f.toml:6: route: must be a list of tables, each begun with [[route]], not a table"],
    },
    Case {
        edits: &[(1, r#"listener = ["127.0.0.1:8080"]"#), (2, "")],
        says: &["f.toml:1: listener[0]: must be a table, not a string"],
    },
];

/// Missing keys.
const MISSING_KEYS: &[Case] = &[
    Case {
        edits: &[(1, ""), (2, ""), (3, ""), (4, ""), (5, ""), (6, ""), (7, ""), (8, ""), (9, ""), (10, "")],
        says: &[
            "f.toml:1: listener: missing: at least one address where requests are accepted",
            "f.toml:1: route: missing: at least one route, which says which requests go where",
        ],
    },
    Case {
        edits: &[(2, "")],
        says: &["f.toml:1: listener[0].address: missing: the address where requests are accepted"],
    },
    Case { edits: &[(4, "")], says: &[r#"f.toml:3: source.main.kind: missing: "etcd" or "memory""#] },
    Case {
        edits: &[(5, "")],
        says: &[
            r#"f.toml:3: source.main.endpoints: missing: the members of the etcd cluster, like ["http://127.0.0.1:2379"]"#,
        ],
    },
    Case { edits: &[(7, "")], says: &["f.toml:6: route[0].name: missing: the name of the route, a metric label"] },
    Case {
        edits: &[(8, "")],
        says: &[
            r#"f.toml:6: route.shards.path: missing: the paths that the route takes, like "/" or "/shards/{shard}/""#,
        ],
    },
    Case {
        edits: &[(9, "")],
        says: &[r#"f.toml:6: route.shards.upstream: missing: the worker, like "http://127.0.0.1:9000""#],
    },
    Case {
        edits: &[(10, "")],
        says: &[
            r#"f.toml:6: route.shards.lock: missing: the lock that guards the route (only mode = "off" needs none)"#,
        ],
    },
    Case {
        edits: &[(10, "lock = {}")],
        says: &[
            "f.toml:10: route.shards.lock.source: missing: the name of the source that keeps the lock",
            r#"f.toml:10: route.shards.lock.key: missing: the key of the lock, like "/shards/{shard}/lock""#,
        ],
    },
    Case {
        edits: &[(10, r#"mode = "shadow""#)],
        says: &[
            r#"f.toml:6: route.shards.lock: missing: the lock that guards the route (only mode = "off" needs none)"#,
        ],
    },
];

/// A listener that asks for client certificates, in two lines: the good file's end is line 12 then.
const WITH_CLIENT_CA: (usize, &str) = (
    2,
    r#"address = "127.0.0.1:8080"
tls = { certificate = "/t/a.pem", key = "/t/a.key", client_ca = "/t/ca.pem" }"#,
);

/// Who may claim to be whom.
const IDENTITIES: &[Case] = &[
    Case {
        edits: &[WITH_CLIENT_CA, (11, "identity = {}")],
        says: &["f.toml:12: route.shards.identity: must have one of uri, dns and common_name, not 0"],
    },
    Case {
        edits: &[WITH_CLIENT_CA, (11, r#"identity = { take_owner = true }"#)],
        says: &["f.toml:12: route.shards.identity: must have one of uri, dns and common_name, not 0"],
    },
    Case {
        edits: &[WITH_CLIENT_CA, (11, r#"identity = { uri = "x:{owner}", dns = "{owner}/", common_name = 1 }"#)],
        says: &[
            "f.toml:12: route.shards.identity.common_name: must be a string, not an integer",
            "f.toml:12: route.shards.identity: must have one of uri, dns and common_name, not 3",
            r#"f.toml:12: route.shards.identity.dns: must be a DNS name, like "{owner}.masters.example.org", not "{owner}/""#,
        ],
    },
    Case {
        edits: &[WITH_CLIENT_CA, (11, r#"identity = { uri = "spiffe://example.org/{shard}" }"#)],
        says: &[
            r#"f.toml:12: route.shards.identity.uri: must have exactly one {owner} and no other braces, not be "spiffe://example.org/{shard}""#,
        ],
    },
    Case {
        edits: &[WITH_CLIENT_CA, (11, r#"identity = { uri = "{owner}", takeowner = true }"#)],
        says: &[
            r#"f.toml:12: route.shards.identity.takeowner: unknown key; did you mean "take_owner"?"#,
            r#"f.toml:12: route.shards.identity.uri: must be a URI with its scheme before {owner}, like "spiffe://example.org/shard/{owner}", not "{owner}""#,
        ],
    },
    Case {
        edits: &[
            WITH_CLIENT_CA,
            (10, r#"lock = { source = "main", key = "/shards/{shard}/lock", layout = "mutex" }"#),
            (11, "mode = \"off\"\nidentity = { common_name = \"{owner}\" }"),
        ],
        says: &[
            r#"f.toml:13: route.shards.identity: is not for layout = "mutex": there the owner is the full name of the contender's own key, with the id of its lease, and no certificate names that"#,
        ],
    },
    // Wherever a request may come in over a listener that asks for no certificates.
    Case {
        edits: &[(11, r#"identity = { common_name = "{owner}" }"#)],
        says: &[
            "f.toml:11: route.shards.identity: needs client certificates, but listener 127.0.0.1:8080 has no tls with client_ca",
        ],
    },
    Case {
        edits: &[
            (
                2,
                "address = \"127.0.0.1:8080\"\ntls = { certificate = \"/t/a.pem\", key = \"/t/a.key\" }\n[[listener]]\naddress = \"unix:/run/f.sock\"",
            ),
            (11, "mode = \"shadow\"\nidentity = { common_name = \"{owner}\" }"),
        ],
        says: &[
            "f.toml:15: route.shards.identity: needs client certificates, but listener 127.0.0.1:8080 has no tls with client_ca",
            "f.toml:15: route.shards.identity: needs client certificates, but listener unix:/run/f.sock has no tls with client_ca",
        ],
    },
];

/// Listeners and admin.
const LISTENERS_AND_ADMIN: &[Case] = &[
    Case {
        edits: &[(2, r#"address = "localhost:80""#)],
        says: &[
            r#"f.toml:2: listener[0].address: must be "ip:port", "[ipv6]:port", "unix:/path" or "systemd:NAME", not "localhost:80""#,
        ],
    },
    Case {
        edits: &[(2, r#"address = "unix:run.sock""#)],
        says: &[
            r#"f.toml:2: listener[0].address: the path of a unix socket must be absolute and name a file, not "run.sock""#,
        ],
    },
    Case {
        edits: &[(
            2,
            r#"address = "127.0.0.1:8080"
[[listener]]
address = "127.0.0.1:8080""#,
        )],
        says: &["f.toml:4: listener[1].address: 127.0.0.1:8080 is listened on already"],
    },
    Case {
        edits: &[(2, "address = \"0.0.0.0:8080\"\n[[listener]]\naddress = \"127.0.0.1:8080\"")],
        says: &["f.toml:4: listener[1].address: 127.0.0.1:8080 is listened on already, as 0.0.0.0:8080"],
    },
    Case {
        edits: &[(2, "address = \"[::1]:8080\"\n[[listener]]\naddress = \"[::]:8080\"")],
        says: &["f.toml:4: listener[1].address: [::]:8080 is listened on already, as [::1]:8080"],
    },
    Case {
        edits: &[(2, "address = \"[::]:9901\"")],
        says: &["f.toml:2: listener[0].address: [::]:9901 is the address of the admin listener, 127.0.0.1:9901, too"],
    },
    Case {
        edits: &[(2, r#"address = "127.0.0.1:9901""#)],
        says: &["f.toml:2: listener[0].address: 127.0.0.1:9901 is the address of the admin listener"],
    },
    Case {
        edits: &[(
            1,
            r#"[admin]
listen = "0.0.0.0:9901"
[[listener]]"#,
        )],
        says: &[
            "f.toml:2: admin.listen: 0.0.0.0:9901 is not on this machine alone: it needs tls with client_ca, so that only those who have a certificate can ask; dangerous_unprotected = true lets anybody",
        ],
    },
    Case {
        edits: &[(2, r#"address = "systemd:a:b""#)],
        says: &[
            r#"f.toml:2: listener[0].address: must be "systemd:" and the FileDescriptorName= of a socket unit, 1 to 255 of A-Z, a-z, 0-9, _, -, . and @, not "a:b""#,
        ],
    },
    Case {
        edits: &[(2, "address = \"systemd:http\"\n[[listener]]\naddress = \"systemd:http\"")],
        says: &["f.toml:4: listener[1].address: systemd:http is listened on already"],
    },
    Case {
        edits: &[(
            1,
            r#"[admin]
listen = "systemd:admin"
[[listener]]"#,
        )],
        says: &[
            "f.toml:2: admin.listen: systemd:admin is not on this machine alone: it needs tls with client_ca, so that only those who have a certificate can ask; dangerous_unprotected = true lets anybody",
        ],
    },
    Case {
        edits: &[(
            1,
            r#"[admin]
listen = "none"
[[listener]]"#,
        )],
        says: &[
            r#"f.toml:2: admin.listen: must be "ip:port", "[ipv6]:port", "unix:/path" or "systemd:NAME", not "none""#,
        ],
    },
    Case {
        edits: &[(
            1,
            r#"[admin]
lsten = "off"
[[listener]]"#,
        )],
        says: &[r#"f.toml:2: admin.lsten: unknown key; did you mean "listen"?"#],
    },
    Case {
        edits: &[(1, "listener = []"), (2, "")],
        says: &["f.toml:1: listener: missing: at least one address where requests are accepted"],
    },
];

/// The directory of the state.
const STATE_DIR: &[Case] = &[
    Case {
        edits: &[(
            1,
            r#"state_dir = ""
[[listener]]"#,
        )],
        says: &[r#"f.toml:1: state_dir: must be the absolute path of a directory, like "/var/lib/fencepost", not """#],
    },
    Case {
        edits: &[(
            1,
            r#"state_dir = "var/lib"
[[listener]]"#,
        )],
        says: &[
            r#"f.toml:1: state_dir: must be the absolute path of a directory, like "/var/lib/fencepost", not "var/lib""#,
        ],
    },
    Case {
        edits: &[(
            1,
            r#"state_dir = "/a\u0000b"
[[listener]]"#,
        )],
        says: &[
            r#"f.toml:1: state_dir: must be the absolute path of a directory, like "/var/lib/fencepost", not "/a\0b""#,
        ],
    },
];

/// Limits.
const LIMITS: &[Case] = &[
    Case {
        edits: &[(
            1,
            r#"[limits]
connections_max = 0
header_bytes_max = "1KiB"
header_timeout = "1ms"
idle_timeout = "2h"
buffer_body_max = -1
drain_delay = "11m"
[[listener]]"#,
        )],
        says: &[
            "f.toml:2: limits.connections_max: must be 1 to 1000000, not 0",
            r#"f.toml:3: limits.header_bytes_max: must be "8KiB" to "1MiB", not "1KiB""#,
            r#"f.toml:4: limits.header_timeout: must be "100ms" to "10m", not "1ms""#,
            r#"f.toml:5: limits.idle_timeout: must be "100ms" to "1h", not "2h""#,
            r#"f.toml:6: limits.buffer_body_max: must be 0 to "16MiB", not -1"#,
            r#"f.toml:7: limits.drain_delay: must be "0s" to "10m", not "11m""#,
        ],
    },
    Case {
        edits: &[(
            1,
            r#"[limits]
header_bytes_max = "64KB"
buffer_body_max = true
body_timeout = "30"
connect_timout = "1s"
h2_streams_max = "128"
[[listener]]"#,
        )],
        says: &[
            r#"f.toml:2: limits.header_bytes_max: must be one number and one unit (B, KiB, MiB or GiB), like "64KiB", or an integer of bytes, not "64KB""#,
            r#"f.toml:3: limits.buffer_body_max: must be a size, like "64KiB", or an integer of bytes, not true or false"#,
            r#"f.toml:4: limits.body_timeout: must be one number and one unit, like "250ms", "5s", "2m" or "1h", not "30""#,
            r#"f.toml:5: limits.connect_timout: unknown key; did you mean "connect_timeout"?"#,
            "f.toml:6: limits.h2_streams_max: must be an integer, not a string",
        ],
    },
];

/// Sources.
const SOURCES: &[Case] = &[
    Case {
        edits: &[(4, r#"kind = "zookeeper""#)],
        says: &[r#"f.toml:4: source.main.kind: must be "etcd" or "memory", not "zookeeper""#],
    },
    Case {
        edits: &[(4, r#"kind = "memory""#)],
        says: &[
            r#"f.toml:5: source.main.endpoints: a source of kind "memory" is in this process and connects to nothing: leave it out"#,
        ],
    },
    Case {
        edits: &[(5, "endpoints = []")],
        says: &[
            r#"f.toml:5: source.main.endpoints: must have at least one member of the etcd cluster, like "http://127.0.0.1:2379""#,
        ],
    },
    Case {
        edits: &[(5, r#"endpoints = ["http://a:1", "a:1", "http://a:1/v3", "http://a", "http://a:0"]"#)],
        says: &[
            r#"f.toml:5: source.main.endpoints[1]: must be "http://host:port" or "https://host:port", not "a:1""#,
            r#"f.toml:5: source.main.endpoints[2]: must end after the port: "/v3" after "a:1" would be ignored"#,
            r#"f.toml:5: source.main.endpoints[3]: must name a host and a port from 1 to 65535, like "127.0.0.1:9000", not "a""#,
            r#"f.toml:5: source.main.endpoints[4]: must name a host and a port from 1 to 65535, like "127.0.0.1:9000", not "a:0""#,
        ],
    },
    Case {
        edits: &[(
            5,
            r#"endpoints = [
  "http://127.0.0.1:2379",
  "http://127.0.0.1:2379",
]"#,
        )],
        says: &["f.toml:7: source.main.endpoints[1]: 127.0.0.1:2379 is in the list already"],
    },
    Case {
        edits: &[(
            5,
            r#"endpoints = ["http://127.0.0.1:2379"]
cluster_id = "xyz""#,
        )],
        says: &[
            r#"f.toml:6: source.main.cluster_id: must be 1 to 16 hexadecimal digits, like "cdf818194e3a8c32", not "xyz""#,
        ],
    },
    Case {
        edits: &[(
            5,
            r#"endpoints = ["http://127.0.0.1:2379"]
username = """#,
        )],
        says: &[
            "f.toml:3: source.main.password_file: missing: the file of the user's password",
            r#"f.toml:6: source.main.username: must be the name of a user of etcd, not """#,
        ],
    },
    Case {
        edits: &[(
            5,
            r#"endpoints = ["http://127.0.0.1:2379"]
password = "secret"
password_file = "secret""#,
        )],
        says: &[
            "f.toml:3: source.main.username: missing: whose password_file it is",
            "f.toml:6: source.main.password: unknown key",
            r#"f.toml:7: source.main.password_file: must be the absolute path of a file, like "/etc/fencepost/tls.pem", not "secret""#,
        ],
    },
    Case {
        edits: &[(5, r#"endpoints = ["https://a:1", "http://a:2"]"#)],
        says: &[
            r#"f.toml:3: source.main.tls: missing: with https:// endpoints, at least tls = { ca = "/path" } in a file"#,
            "f.toml:5: source.main.endpoints[1]: must begin as the others do: all of them with http:// or all with https://",
        ],
    },
    Case {
        edits: &[(
            5,
            r#"endpoints = ["http://a:1"]
tls = { ca = "/ca.pem" }"#,
        )],
        says: &["f.toml:6: source.main.tls: means nothing with http:// endpoints: write https://, or leave it out"],
    },
    Case {
        edits: &[(
            5,
            r#"endpoints = ["https://a:1"]
tls = { certificate = "/c.pem" }"#,
        )],
        says: &[
            "f.toml:6: source.main.tls.ca: missing: the file of the authorities that are believed",
            "f.toml:6: source.main.tls.key: missing: the file of the certificate's private key",
        ],
    },
    Case {
        edits: &[(3, r#"[source."main etcd"]"#), (10, r#"lock = { source = "main etcd", key = "/k" }"#)],
        says: &["f.toml:3: source.main etcd: a name has 1 to 64 of A-Z, a-z, 0-9, _ and -: it is a metric label"],
    },
];

/// Routes.
const ROUTES: &[Case] = &[
    Case {
        edits: &[(2, r#"address = "0.0.0.0:9000""#)],
        says: &[
            "f.toml:9: route.shards.upstream: http://127.0.0.1:9000 leads to fencepost itself: listener 0.0.0.0:9000",
        ],
    },
    Case {
        edits: &[(7, r#"name = "a b""#)],
        says: &["f.toml:7: route[0].name: a name has 1 to 64 of A-Z, a-z, 0-9, _ and -: it is a metric label"],
    },
    Case {
        edits: &[(8, r#"path = "shards""#)],
        says: &[r#"f.toml:8: route.shards.path: must begin with "/", not be "shards""#],
    },
    Case {
        edits: &[(8, r#"path = "/shards/{Shard}/""#), (10, r#"mode = "off""#)],
        says: &[r#"f.toml:8: route.shards.path: {Shard} is no capture: a name is like "shard_2", of a-z, 0-9 and _"#],
    },
    Case {
        edits: &[(8, r#"path = "/shards/x{shard}/""#), (10, r#"mode = "off""#)],
        says: &[
            r#"f.toml:8: route.shards.path: "x{shard}" is neither text nor a capture: {name} stands for one whole segment"#,
        ],
    },
    Case {
        edits: &[(8, r#"path = "/{a}/{a}/""#), (10, r#"mode = "off""#)],
        says: &["f.toml:8: route.shards.path: captures {a} twice"],
    },
    Case {
        edits: &[(8, r#"path = "/a//b""#), (10, r#"mode = "off""#)],
        says: &[r#"f.toml:8: route.shards.path: has an empty segment: workers take "//" for "/""#],
    },
    Case {
        edits: &[(8, r#"path = "/a/../b""#), (10, r#"mode = "off""#)],
        says: &[r#"f.toml:8: route.shards.path: has a segment "..": workers remove it"#],
    },
    Case {
        edits: &[(8, r#"path = "/a%20b""#), (10, r#"mode = "off""#)],
        says: &[
            r#"f.toml:8: route.shards.path: has '%' in the segment "a%20b": paths are compared decoded, so write the character itself"#,
        ],
    },
    Case {
        edits: &[(8, r#"path = "/{a}/{b}/{c}/{d}/{e}/{f}/{g}/{h}/{i}""#), (10, r#"mode = "off""#)],
        says: &["f.toml:8: route.shards.path: has at most 8 captures, not 9"],
    },
    Case {
        edits: &[(9, r#"upstream = "https://127.0.0.1:9000""#)],
        says: &[
            r#"f.toml:6: route.shards.upstream_tls: missing: it says whose certificates are believed of an https upstream, as in { ca = "/etc/fencepost/worker-ca.pem" }"#,
        ],
    },
    Case {
        edits: &[(
            9,
            r#"upstream = "https://127.0.0.1:9000"
upstream_tls = { ca = "ca.pem", certificate = "/c.pem", name = "worker" }"#,
        )],
        says: &[
            r#"f.toml:10: route.shards.upstream_tls.name: unknown key"#,
            r#"f.toml:10: route.shards.upstream_tls.ca: must be the absolute path of a file, like "/etc/fencepost/tls.pem", not "ca.pem""#,
            "f.toml:10: route.shards.upstream_tls.key: missing: the file of the certificate's private key",
        ],
    },
    Case {
        edits: &[(11, r#"upstream_tls = { ca = "/ca.pem" }"#)],
        says: &["f.toml:11: route.shards.upstream_tls: means nothing to a worker that is spoken to in cleartext"],
    },
    Case {
        edits: &[(
            9,
            r#"upstream = "unix+https:/run/worker.sock"
upstream_tls = { ca = "/ca.pem" }"#,
        )],
        says: &[
            "f.toml:10: route.shards.upstream_tls.server_name: missing: the name in the certificate of a worker behind a unix socket",
        ],
    },
    Case {
        edits: &[
            (
                5,
                r#"endpoints = ["https://etcd-1:2379", "https://etcd-.a:2379"]
tls = { ca = "/ca.pem" }"#,
            ),
            (
                9,
                r#"upstream = "https://1.2.3:9000"
upstream_tls = { ca = "/ca.pem" }"#,
            ),
        ],
        says: &[
            r#"f.toml:5: source.main.endpoints[1]: no certificate can be for "etcd-.a": write another host, or server_name"#,
            r#"f.toml:10: route.shards.upstream: no certificate can be for "1.2.3": write another host, or server_name"#,
        ],
    },
    Case {
        edits: &[(
            9,
            r#"upstream = "https://1.2.3:9000"
upstream_tls = { ca = "/ca.pem", server_name = "a..b" }"#,
        )],
        says: &[
            r#"f.toml:10: route.shards.upstream_tls.server_name: must be a host name or an IP address, like "worker.example", not "a..b""#,
        ],
    },
    Case {
        edits: &[(9, r#"upstream = "http://127.0.0.1:9000/base""#)],
        says: &[
            r#"f.toml:9: route.shards.upstream: must end after the port: "/base" after "127.0.0.1:9000" would be ignored"#,
        ],
    },
    Case {
        edits: &[(9, r#"upstream = "127.0.0.1:9000""#)],
        says: &[
            r#"f.toml:9: route.shards.upstream: must be "http://host:port", "https://host:port", "h2c://host:port", "unix:/path", "unix+https:/path" or "unix+h2c:/path", not "127.0.0.1:9000""#,
        ],
    },
    Case {
        edits: &[(9, r#"upstream = "unix:worker.sock""#)],
        says: &[
            r#"f.toml:9: route.shards.upstream: the path of a unix socket must be absolute and name a file, not "worker.sock""#,
        ],
    },
    Case {
        edits: &[(11, r#"host = "worker:80""#)],
        says: &[
            r#"f.toml:11: route.shards.host: must be a host without a port, like "worker.example", not "worker:80""#,
        ],
    },
    Case {
        edits: &[(11, r#"mode = "enforced""#)],
        says: &[r#"f.toml:11: route.shards.mode: must be "enforce", "shadow" or "off", not "enforced""#],
    },
    Case {
        edits: &[(11, r#"freshness = "fresh""#)],
        says: &[r#"f.toml:11: route.shards.freshness: must be "cached" or "linearizable", not "fresh""#],
    },
    Case {
        edits: &[(11, r#"max_age = "499ms""#)],
        says: &[r#"f.toml:11: route.shards.max_age: must be "500ms" to "1h", not "499ms""#],
    },
    Case {
        edits: &[(11, r#"max_age = "61m""#)],
        says: &[r#"f.toml:11: route.shards.max_age: must be "500ms" to "1h", not "61m""#],
    },
    Case {
        edits: &[(11, r#"request_timeout = "0s""#)],
        says: &[r#"f.toml:11: route.shards.request_timeout: must be "10ms" to "24h", not "0s""#],
    },
    Case {
        edits: &[(11, "stale_status = 410")],
        says: &["f.toml:11: route.shards.stale_status: must be 412 or 409, not 410"],
    },
    Case {
        edits: &[(11, r#"on_unavailable = "admit""#)],
        says: &[r#"f.toml:11: route.shards.on_unavailable: must be "reject" or "dangerous_admit", not "admit""#],
    },
    Case {
        edits: &[(
            11,
            r#"on_handoff_timeout = "proceed"
partial_requests = "ignore"
streaming = "yes""#,
        )],
        says: &[
            r#"f.toml:11: route.shards.on_handoff_timeout: must be "reject" or "dangerous_proceed", not "proceed""#,
            r#"f.toml:12: route.shards.partial_requests: must be "orphans" or "harmless", not "ignore""#,
            "f.toml:13: route.shards.streaming: must be true or false, not a string",
        ],
    },
    Case {
        edits: &[(11, r#"exempt_methods = ["get", "GET", "GET", "G ET"]"#)],
        says: &[
            r#"f.toml:11: route.shards.exempt_methods[0]: must be "GET", not "get": methods are told apart by upper and lower case"#,
            "f.toml:11: route.shards.exempt_methods[2]: GET is in the list already",
            r#"f.toml:11: route.shards.exempt_methods[3]: must be the name of a method, like "GET", not "G ET""#,
        ],
    },
    Case {
        edits: &[(11, r#"owner_header = "Host""#)],
        says: &[
            r#"f.toml:11: route.shards.owner_header: "Host" has a meaning of its own for the connection, the framing or the routing of requests"#,
        ],
    },
    Case {
        edits: &[(11, r#"owner_header = "Fence Owner""#)],
        says: &[r#"f.toml:11: route.shards.owner_header: must be the name of a header, not "Fence Owner""#],
    },
    Case {
        edits: &[(
            11,
            r#"owner_header = "X-Fence"
revision_header = "x-fence""#,
        )],
        says: &[r#"f.toml:12: route.shards.revision_header: "x-fence" is route.shards.owner_header too"#],
    },
    Case {
        edits: &[(11, "owner_header = \"shard_owner\"\nrevision_header = \"Shard-Owner\"")],
        says: &[
            r#"f.toml:12: route.shards.revision_header: "shard-owner" is route.shards.owner_header, "shard_owner", to a worker that folds names"#,
        ],
    },
    Case {
        edits: &[(11, r#"owner_header = "Fence_Lock""#)],
        says: &[
            r#"f.toml:6: route.shards.lock_header: "fence-lock" is route.shards.owner_header, "fence_lock", to a worker that folds names"#,
        ],
    },
    Case {
        edits: &[(11, r#"owner_header = "X_Forwarded-Host""#)],
        says: &[
            r#"f.toml:11: route.shards.owner_header: "X_Forwarded-Host" has a meaning of its own for the connection, the framing or the routing of requests"#,
        ],
    },
    Case {
        edits: &[(11, r#"lock_header = "Fence-Owner""#)],
        says: &[r#"f.toml:11: route.shards.lock_header: "fence-owner" is route.shards.owner_header too"#],
    },
    Case {
        edits: &[(
            11,
            r#"[[route]]
name = "shards"
path = "/"
upstream = "http://127.0.0.1:9000"
mode = "off""#,
        )],
        says: &["f.toml:12: route[1].name: another route (line 7) has this name"],
    },
    Case {
        edits: &[(7, r#"name = "none""#)],
        says: &[r#"f.toml:7: route[0].name: "none" is what requests are counted under that no route takes"#],
    },
];

/// Locks.
const LOCKS: &[Case] = &[
    Case {
        edits: &[(10, r#"lock = { source = "mian", key = "/k" }"#)],
        says: &[r#"f.toml:10: route.shards.lock.source: there is no source "mian"; did you mean "main"?"#],
    },
    Case {
        edits: &[(10, r#"lock = { source = "other", key = "/k" }"#)],
        says: &[r#"f.toml:10: route.shards.lock.source: there is no source "other": [source.other] is missing"#],
    },
    Case {
        edits: &[(10, r#"lock = { source = "main", key = "" }"#)],
        says: &["f.toml:10: route.shards.lock.key: a lock key cannot be empty"],
    },
    Case {
        edits: &[(10, r#"lock = { source = "main", key = "/k\u0000" }"#)],
        says: &[r#"f.toml:10: route.shards.lock.key: must be without control characters, not "/k\0""#],
    },
    Case {
        edits: &[(10, r#"lock = { source = "main", key = "/shards/{n}/lock" }"#)],
        says: &[
            r#"f.toml:10: route.shards.lock.key: {n} is not a capture of the path: "/shards/{shard}/" captures {shard}"#,
        ],
    },
    Case {
        edits: &[(8, r#"path = "/""#)],
        says: &[r#"f.toml:10: route.shards.lock.key: {shard} is not a capture of the path: "/" captures nothing"#],
    },
    Case {
        edits: &[(10, r#"lock = { source = "main", key = "/{shard}-{shard}" }"#)],
        says: &[
            r#"f.toml:10: route.shards.lock.key: "{shard}-{shard}" is no segment of a key: it has text and at most one placeholder, like "shard-{n}""#,
        ],
    },
    Case {
        edits: &[(10, r#"lock = { source = "main", key = "/{shard" }"#)],
        says: &[
            r#"f.toml:10: route.shards.lock.key: "{shard" is no segment of a key: it has text and at most one placeholder, like "shard-{n}""#,
        ],
    },
    Case {
        edits: &[(10, r#"lock = { source = "main", key = "/{}" }"#)],
        says: &[
            r#"f.toml:10: route.shards.lock.key: {} is no placeholder: a name is like "shard_2", of a-z, 0-9 and _"#,
        ],
    },
    Case {
        edits: &[(10, r#"lock = { source = "main", key = "/k", layout = "queue" }"#)],
        says: &[r#"f.toml:10: route.shards.lock.layout: must be "key", "election" or "mutex", not "queue""#],
    },
    Case {
        edits: &[(
            10,
            r#"lock = { source = "main", key = "/k", layout = "mutex", owner_field = "o", free_values = [""] }"#,
        )],
        says: &[
            r#"f.toml:10: route.shards.lock.free_values: is not for layout = "mutex": there the owner is the full name of the contender's own key, since a human name would let a stalled contender that queued earlier pass for its successor of the same name"#,
            r#"f.toml:10: route.shards.lock.owner_field: is not for layout = "mutex": there the owner is the full name of the contender's own key, since a human name would let a stalled contender that queued earlier pass for its successor of the same name"#,
        ],
    },
    Case {
        edits: &[(10, r#"lock = { source = "main", key = "/k", layout = "election", owner_field = "o" }"#)],
        says: &[
            r#"f.toml:10: route.shards.lock.owner_field: is not for layout = "election": there the owner is the value of the leader's key, as it is"#,
        ],
    },
    Case {
        edits: &[(10, r#"lock = { source = "main", key = "/k", free_values = ["-", "-"], owner_field = "" }"#)],
        says: &[
            r#"f.toml:10: route.shards.lock.free_values[1]: "-" is in the list already"#,
            "f.toml:10: route.shards.lock.owner_field: must be the name of a field of the JSON object, not empty",
        ],
    },
];

/// Locks of several routes.
const LOCKS_OF_SEVERAL_ROUTES: &[Case] = &[
    Case {
        edits: &[(
            11,
            r#"[[route]]
name = "other"
path = "/other/{id}/"
upstream = "http://127.0.0.1:9001"
lock = { source = "main", key = "/shards/{id}/lock", layout = "election" }"#,
        )],
        says: &[
            r#"f.toml:15: route.other.lock: the key "/shards/{id}/lock" is read with layout = "election" here, but with layout = "key" in route "shards" (line 10)"#,
        ],
    },
    Case {
        edits: &[(
            11,
            r#"[[route]]
name = "other"
path = "/other/{id}/"
upstream = "http://127.0.0.1:9001"
lock = { source = "main", key = "/shards/7/lock", layout = "mutex" }"#,
        )],
        says: &[
            r#"f.toml:15: route.other.lock: the key "/shards/7/lock" is read with layout = "mutex" here, but with layout = "key" in route "shards" (line 10)"#,
        ],
    },
    Case {
        edits: &[(
            11,
            r#"[[route]]
name = "other"
path = "/other/{id}/"
upstream = "http://127.0.0.1:9001"
lock = { source = "main", key = "/shards/{id}/lock", owner_field = "holder" }"#,
        )],
        says: &[
            r#"f.toml:15: route.other.lock: the key "/shards/{id}/lock" is read with owner_field = "holder" here, but with owner_field = nothing in route "shards" (line 10)"#,
        ],
    },
    Case {
        edits: &[(
            11,
            r#"[[route]]
name = "other"
path = "/other/{id}/"
upstream = "http://127.0.0.1:9001"
lock = { source = "main", key = "/shards/{id}/lock", free_values = [""] }"#,
        )],
        says: &[
            r#"f.toml:15: route.other.lock: the key "/shards/{id}/lock" is read with free_values = [""] here, but with free_values = [] in route "shards" (line 10)"#,
        ],
    },
    Case {
        edits: &[(
            11,
            r#"[[route]]
name = "other"
path = "/other/{id}/"
upstream = "http://127.0.0.1:9001"
lock = { source = "backup", key = "/shards/{id}/lock" }
[source.backup]
kind = "memory""#,
        )],
        says: &[
            r#"f.toml:15: route.other.lock: the key "/shards/{id}/lock" is read with source = "backup" here, but with source = "main" in route "shards" (line 10)"#,
        ],
    },
    Case {
        edits: &[
            (10, r#"lock = { source = "main", key = "/a", layout = "mutex" }"#),
            (
                11,
                r#"[[route]]
name = "other"
path = "/other/{id}/"
upstream = "http://127.0.0.1:9001"
lock = { source = "main", key = "/a/b", layout = "mutex" }"#,
            ),
        ],
        says: &[
            r#"f.toml:15: route.other.lock: "/a/b" and "/a" lie one below the other, so that they block each other in etcd; the other is the lock of route "shards" (line 10)"#,
        ],
    },
    Case {
        edits: &[
            (10, r#"lock = { source = "main", key = "/a b/{shard}" }"#),
            (
                11,
                r#"[[route]]
name = "other"
path = "/other/{id}/"
upstream = "http://127.0.0.1:9001"
lock = { source = "main", key = "/a%20b/{id}" }"#,
            ),
        ],
        says: &[
            r#"f.toml:15: route.other.lock: "/a%20b/{id}" and "/a b/{shard}" are the same where a request names its lock percent-encoded; the other is the lock of route "shards" (line 10)"#,
        ],
    },
    Case {
        edits: &[
            (10, r#"lock = { source = "main", key = "/a/b/c", layout = "election" }"#),
            (
                11,
                r#"[[route]]
name = "other"
path = "/other/{id}/"
upstream = "http://127.0.0.1:9001"
lock = { source = "main", key = "/a/{id}", layout = "election" }"#,
            ),
        ],
        says: &[
            r#"f.toml:15: route.other.lock: "/a/{id}" and "/a/b/c" lie one below the other, so that they block each other in etcd; the other is the lock of route "shards" (line 10)"#,
        ],
    },
    Case {
        edits: &[
            (10, r#"lock = { source = "main", key = "/a", layout = "mutex" }"#),
            (
                11,
                r#"[[route]]
name = "other"
path = "/other/{id}/"
upstream = "http://127.0.0.1:9001"
lock = { source = "main", key = "/a/b" }"#,
            ),
        ],
        says: &[
            r#"f.toml:15: route.other.lock: "/a/b" and "/a" lie one below the other, so that they block each other in etcd; the other is the lock of route "shards" (line 10)"#,
        ],
    },
    Case {
        edits: &[
            (10, r#"lock = { source = "main", key = "/a" }"#),
            (
                11,
                r#"[[route]]
name = "other"
path = "/other/{id}/"
upstream = "http://127.0.0.1:9001"
lock = { source = "main", key = "/a/b", layout = "mutex" }"#,
            ),
        ],
        says: &[],
    },
];

/// Everything at once.
const EVERYTHING_AT_ONCE: &[Case] = &[Case {
    edits: &[
        (2, r#"address = "localhost""#),
        (4, r#"kind = "etc""#),
        (7, r#"name = "sh ards""#),
        (8, r#"path = "shards""#),
        (9, r#"upstream = "ftp://x""#),
        (10, r#"lock = { source = "mein", key = "{", lyout = 1 }"#),
        (
            11,
            r#"max_age = "1y"
modus = 1"#,
        ),
    ],
    says: &[
        r#"f.toml:2: listener[0].address: must be "ip:port", "[ipv6]:port", "unix:/path" or "systemd:NAME", not "localhost""#,
        r#"f.toml:4: source.main.kind: must be "etcd" or "memory", not "etc""#,
        "f.toml:7: route[0].name: a name has 1 to 64 of A-Z, a-z, 0-9, _ and -: it is a metric label",
        r#"f.toml:8: route[0].path: must begin with "/", not be "shards""#,
        r#"f.toml:9: route[0].upstream: must be "http://host:port", "https://host:port", "h2c://host:port", "unix:/path", "unix+https:/path" or "unix+h2c:/path", not "ftp://x""#,
        r#"f.toml:10: route[0].lock.lyout: unknown key; did you mean "layout"?"#,
        r#"f.toml:10: route[0].lock.source: there is no source "mein"; did you mean "main"?"#,
        r#"f.toml:10: route[0].lock.key: "{" is no segment of a key: it has text and at most one placeholder, like "shard-{n}""#,
        r#"f.toml:11: route[0].max_age: must be one number and one unit, like "250ms", "5s", "2m" or "1h", not "1y""#,
        r#"f.toml:12: route[0].modus: unknown key; did you mean "mode"?"#,
    ],
}];

/// Not TOML.
const NOT_TOML: &[Case] = &[
    Case { edits: &[(7, "name = ")], says: &["f.toml:7:8: string values must be quoted, expected literal string"] },
    Case { edits: &[(7, r#"name = "shards"#)], says: &[r#"f.toml:7:15: invalid basic string, expected `"`"#] },
    Case {
        edits: &[(
            7,
            r#"name = "a"
name = "b""#,
        )],
        says: &["f.toml:8:1: duplicate key: name"],
    },
    Case { edits: &[(3, "[source.main")], says: &["f.toml:3:13: unclosed table, expected `]`"] },
    Case {
        edits: &[(2, r#"address = "é", x"#)],
        says: &["f.toml:2:14: unexpected key or value, expected newline, `#`"],
    },
];

/// Warnings.
const WARNINGS: &[Case] = &[
    Case {
        edits: &[(9, r#"upstream = "http://127.0.0.1:9901""#)],
        says: &[
            "f.toml:9: route.shards.upstream: http://127.0.0.1:9901 leads to the admin listener: whoever the route takes can change what that offers (routes for /livez, /readyz, /metrics alone only tell)",
        ],
    },
    Case {
        edits: &[(
            11,
            r#"[[route]]
name = "livez"
path = "/livez"
upstream = "http://127.0.0.1:9901"
mode = "off""#,
        )],
        says: &[],
    },
    Case {
        edits: &[(8, r#"path = "/shards/:shard/**""#), (10, r#"lock = { source = "main", key = "/k" }"#)],
        says: &[
            r#"f.toml:8: route.shards.path: ":shard" stands for itself alone: {name} takes any one segment, and whatever is below its path a route takes anyway"#,
        ],
    },
    Case {
        edits: &[(8, r#"path = "/shards/*""#), (10, r#"lock = { source = "main", key = "/k" }"#)],
        says: &[
            r#"f.toml:8: route.shards.path: "*" stands for itself alone: {name} takes any one segment, and whatever is below its path a route takes anyway"#,
        ],
    },
    // Whatever it speaks there, it is the same worker.
    Case {
        edits: &[(
            11,
            "[[route]]\nname = \"health\"\npath = \"/health\"\nupstream = \"h2c://127.0.0.1:9000\"\nmode = \"off\"",
        )],
        says: &[
            r#"f.toml:13: route.health.path: forwards requests unjudged, with whatever token they bring, to the worker of route "shards" (line 8)"#,
        ],
    },
    Case {
        edits: &[(
            11,
            "[[route]]\nname = \"health\"\npath = \"/health\"\nupstream = \"http://127.0.0.1:9001\"\nmode = \"off\"",
        )],
        says: &[],
    },
    Case {
        edits: &[(11, r#"mode = "shadow""#)],
        says: &[r#"f.toml:11: route.shards.mode: refuses nothing: it only records what "enforce" would have done"#],
    },
    Case {
        edits: &[(11, r#"on_unavailable = "dangerous_admit""#)],
        says: &[
            "f.toml:11: route.shards.on_unavailable: forwards requests unjudged, an ended holder's too, while the lock store cannot be asked",
        ],
    },
    Case {
        edits: &[(11, r#"on_handoff_timeout = "dangerous_proceed""#)],
        says: &[
            "f.toml:11: route.shards.on_handoff_timeout: forwards requests of a new holder after handoff_timeout, while those of an earlier one may still be at the worker",
        ],
    },
    Case {
        edits: &[(11, r#"partial_requests = "harmless""#)],
        says: &[
            "f.toml:11: route.shards.partial_requests: takes the worker's word that it does nothing with a request that it gets only a part of: the next holder does not wait for one that was cut",
        ],
    },
    // A route that is off asks for nothing, of its listeners either.
    Case {
        edits: &[(11, "mode = \"off\"\nidentity = { common_name = \"{owner}\" }")],
        says: &["f.toml:12: route.shards.identity: nobody is asked for it while the route is off"],
    },
    Case {
        edits: &[
            WITH_CLIENT_CA,
            (
                11,
                "identity = { common_name = \"{owner}\" }\n[[route]]\nname = \"other\"\npath = \"/other/{shard}/\"\nupstream = \"http://127.0.0.1:9000\"\nlock = { source = \"main\", key = \"/shards/{shard}/lock\" }",
            ),
        ],
        says: &[
            r#"f.toml:15: route.other.path: takes the holder's token from any sender, though route "shards" (line 9) with the same lock asks for its identity"#,
        ],
    },
    Case {
        edits: &[(11, r#"exempt_methods = ["GET", "PUT"]"#)],
        says: &["f.toml:11: route.shards.exempt_methods[1]: PUT requests pass without a token, an ended holder's too"],
    },
    Case {
        edits: &[(
            11,
            r#"[source.spare]
kind = "memory""#,
        )],
        says: &["f.toml:11: source.spare: no route uses this source"],
    },
    Case {
        edits: &[(
            11,
            r#"[[route]]
name = "two"
path = "/shards/2/"
upstream = "http://127.0.0.1:9000"
mode = "off""#,
        )],
        says: &[r#"f.toml:13: route.two.path: never matches: all its paths meet route "shards" (line 8) first"#],
    },
    Case {
        edits: &[(
            11,
            r#"[[route]]
name = "rest"
path = "/"
upstream = "http://127.0.0.1:9001"
mode = "off""#,
        )],
        says: &[
            r#"f.toml:8: route.shards.path: "/shards/{shard}", without the slash, goes to route "rest" (line 13): a path "/shards/{shard}" takes both"#,
        ],
    },
    Case {
        edits: &[(
            11,
            r#"[[route]]
name = "bare"
path = "/shards/{shard}"
upstream = "http://127.0.0.1:9000"
lock = { source = "main", key = "/shards/{shard}/lock" }"#,
        )],
        says: &[],
    },
    Case {
        edits: &[
            (
                6,
                r#"[[route]]
name = "all"
path = "/"
upstream = "http://127.0.0.1:9001"
mode = "off"
[[route]]"#,
            ),
            (
                11,
                r#"[[route]]
name = "rest"
path = "/"
upstream = "http://127.0.0.1:9001"
mode = "off""#,
            ),
        ],
        says: &[
            r#"f.toml:13: route.shards.path: never matches: all its paths meet route "all" (line 8) first"#,
            r#"f.toml:18: route.rest.path: never matches: all its paths meet route "all" (line 8) first"#,
        ],
    },
    Case {
        edits: &[(
            11,
            r#"[[route]]
name = "rest"
path = "/"
host = "static.example"
upstream = "http://127.0.0.1:9001"
mode = "off""#,
        )],
        says: &[],
    },
];

const NO_STATE_DIR: &str = "f.toml:1: state_dir: without state_dir a start promises nothing about requests that an earlier process left at the worker";

fn edited(edits: &[(usize, &str)]) -> String {
    let mut lines: Vec<&str> = GOOD.lines().chain([""]).collect();
    for (number, text) in edits {
        lines[number - 1] = text;
    }
    lines.join("\n")
}

/// One problem was two lines, and a terminal obeyed what stood in it.
#[test]
fn a_key_is_named_in_one_line_and_without_control_characters() {
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

fn check(cases: &[Case], what_is_said: impl Fn(&str) -> Vec<String>) {
    for Case { edits, says } in cases {
        let text = edited(edits);
        assert_eq!(what_is_said(&text), *says, "about\n{text}");
    }
}

#[test]
fn the_good_file_is_good() {
    assert_eq!(problems(&edited(&[])), [""; 0]);
    assert_eq!(warnings(&edited(&[])), [""; 0]);
}

#[test]
fn a_wrong_type_or_an_unknown_key_is_named() {
    check(TYPES_AND_UNKNOWN_KEYS, problems);
}

#[test]
fn a_missing_key_is_named_where_it_would_stand() {
    check(MISSING_KEYS, problems);
}

#[test]
fn the_identity_of_senders_is_checked() {
    check(IDENTITIES, problems);
}

#[test]
fn addresses_are_checked() {
    check(LISTENERS_AND_ADMIN, problems);
}

#[test]
fn the_directory_of_the_state_has_an_absolute_path() {
    check(STATE_DIR, problems);
}

#[test]
fn a_missing_state_dir_is_a_warning_while_a_route_enforces() {
    let warned = |edits: &[(usize, &str)]| {
        let config = Config::from_toml("f.toml", &edited(edits)).unwrap();
        config.warnings.iter().any(|warning| warning.to_string() == NO_STATE_DIR)
    };
    assert!(warned(&[]));
    assert!(!warned(&[(1, "state_dir = \"/var/lib/fencepost\"\n[[listener]]")]));
    assert!(!warned(&[(11, "mode = \"shadow\"")]));
    assert!(!warned(&[(11, "mode = \"off\"")]));
}

#[test]
fn limits_are_within_their_ranges() {
    check(LIMITS, problems);
}

#[test]
fn sources_are_checked() {
    check(SOURCES, problems);
}

#[test]
fn routes_are_checked() {
    check(ROUTES, problems);
}

#[test]
fn the_lock_of_a_route_is_checked() {
    check(LOCKS, problems);
}

#[test]
fn locks_of_several_routes_are_held_against_each_other() {
    check(LOCKS_OF_SEVERAL_ROUTES, problems);
}

#[test]
fn all_problems_are_reported_at_once() {
    check(EVERYTHING_AT_ONCE, problems);
}

#[test]
fn a_syntax_error_is_named_with_line_and_column() {
    check(NOT_TOML, problems);
}

#[test]
fn what_works_but_should_be_known_is_a_warning() {
    check(WARNINGS, warnings);
}

#[test]
fn short_orphan_timeouts_are_warned_of() {
    let warned = |timeout: &str| warnings(&edited(&[(11, &format!("orphan_timeout = {timeout:?}"))]));
    assert_eq!(warned("1s"), [""; 0]);
    let [warning] = &warned("999ms")[..] else { panic!("one warning") };
    assert!(warning.starts_with("f.toml:11: route.shards.orphan_timeout: below 1s, "), "{warning}");
}
