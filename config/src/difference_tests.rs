use super::*;

const FILE: &str = r#"
    [[listener]]
    address = "127.0.0.1:8080"
    [[listener]]
    address = "127.0.0.1:8081"
    [source.main]
    kind = "etcd"
    endpoints = ["http://127.0.0.1:2379"]
    [[route]]
    name = "one"
    path = "/one/"
    upstream = "http://127.0.0.1:9000"
    mode = "shadow"
    lock = { source = "main", key = "/one" }
    [[route]]
    name = "two"
    path = "/two/"
    upstream = "http://127.0.0.1:9000"
    mode = "off"
"#;

fn config(text: &str) -> Config {
    Config::from_toml("f.toml", text).unwrap_or_else(|problems| panic!("{problems}"))
}

#[track_caller]
fn check(edits: &[(&str, &str)], expected: &str) {
    let edited = edits.iter().fold(FILE.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    });
    assert_eq!(Difference::between(&config(FILE), &config(&edited)).to_string(), expected);
}

#[test]
fn every_setting_in_force_is_told_with_its_table() {
    let config = config(FILE);
    let value = |table, key| {
        config.settings().find(|(of, name, _)| *of == table && *name == key).map(|found| found.2)
    };
    assert_eq!(value("limits", "connections_max").as_deref(), Some("10000"));
    assert_eq!(value("route.one", "mode").as_deref(), Some("shadow"));
    assert_eq!(value("route.one", "lock.key").as_deref(), Some("/one"));
    assert_eq!(value("", "state_dir").as_deref(), Some(NONE));
    assert_eq!(value("", "listener.address").as_deref(), Some("[127.0.0.1:8080, 127.0.0.1:8081]"));
    assert_eq!(value("route.two", "lock.key"), None);
}

#[test]
fn what_is_only_written_in_another_way_makes_no_difference() {
    check(&[("name = \"one\"", "# a comment\nname = 'one'\nmax_age = \"5000ms\"")], "");
    check(&[("8080", "x"), ("8081", "8080"), ("x", "8081")], "");
}

#[test]
fn every_change_is_named_with_what_was_and_what_is() {
    check(&[("shadow", "enforce")], "route.one.mode: shadow → enforce");
    check(
        &[("mode = \"off\"", "mode = \"off\"\nrequest_timeout = \"1m\"\nstale_status = 409")],
        "route.two.request_timeout: none → 1m; route.two.stale_status: 412 → 409",
    );
    check(
        &[("2379\"", "2379\", \"http://127.0.0.1:4001\"")],
        "source.main.endpoints: [http://127.0.0.1:2379] → [http://127.0.0.1:2379, http://127.0.0.1:4001]",
    );
    let access = "https://127.0.0.1:2379\"]\ntls = { ca = \"/ca\", server_name = \"etcd\" }\n\
                  username = \"fencepost\"\npassword_file = \"/password\"";
    check(
        &[("http://127.0.0.1:2379\"]", access)],
        "source.main.endpoints: [http://127.0.0.1:2379] → [https://127.0.0.1:2379]; source.main.tls.ca: none → /ca; \
         source.main.tls.server_name: none → etcd; source.main.username: none → fencepost; \
         source.main.password_file: none → /password",
    );
    check(&[("name = \"two\"", "name = \"three\"")], "route.three: added; route.two: removed");
}

/// A route whose `host` was written or taken out was said to be unchanged, and not followed.
#[test]
fn a_name_that_reads_like_nothing_is_told_from_nothing() {
    check(
        &[("mode = \"off\"", "mode = \"off\"\nhost = \"none\"")],
        "route.two.host: none → \"none\"",
    );
    let access = "2379\"]\nusername = \"none\"\npassword_file = \"/password\"";
    check(
        &[("2379\"]", access)],
        "source.main.username: none → \"none\"; source.main.password_file: none → /password",
    );
}

#[test]
fn lists_that_read_alike_are_told_apart() {
    let two = FILE.replace("127.0.0.1:8080", "unix:/a").replace("127.0.0.1:8081", "unix:/b");
    let one = two
        .replace("\n    [[listener]]\n    address = \"unix:/b\"", "")
        .replace("unix:/a", "unix:/a, unix:/b");
    let difference = Difference::between(&config(&two), &config(&one));
    assert_eq!(
        difference.to_string(),
        "listener.address: [unix:/a, unix:/b] → [\"unix:/a, unix:/b\"]"
    );
    assert!(difference.iter().all(|change| !change.follows), "listeners take a restart");
    let tls = "https://worker:9000\"\nupstream_tls = { ca = \"/ca\" }";
    let named = tls.replace("/ca\"", "/ca\", server_name = \"worker\"");
    let [tls, named] =
        [tls, &named].map(|worker| config(&FILE.replacen("http://127.0.0.1:9000\"", worker, 1)));
    let difference = Difference::between(&tls, &named);
    assert!(
        !difference.is_empty() && difference.iter().all(|change| change.follows),
        "{difference}"
    );
    assert!(Difference::between(&named, &named).is_empty());
}

#[test]
fn a_reload_follows_whom_a_route_asks_for_what() {
    let tls = r#"tls = { certificate = "/t/a.pem", key = "/t/a.key", client_ca = "/t/ca.pem" }"#;
    let with = |identity: &str| {
        let listeners = FILE
            .replace(":8080\"", &format!(":8080\"\n{tls}"))
            .replace(":8081\"", &format!(":8081\"\n{tls}"));
        config(&listeners.replace("mode = \"shadow\"", &format!("mode = \"shadow\"\n{identity}")))
    };
    let [none, uri, taken, dns] = [
        "",
        r#"identity = { uri = "x:/{owner}" }"#,
        r#"identity = { uri = "x:/{owner}", take_owner = true }"#,
        r#"identity = { dns = "{owner}.x" }"#,
    ]
    .map(with);
    for (old, new, expected) in [
        (
            &none,
            &uri,
            "route.one.identity.uri: none → x:/{owner}; route.one.identity.take_owner: none → false",
        ),
        (&uri, &taken, "route.one.identity.take_owner: false → true"),
        (
            &uri,
            &dns,
            "route.one.identity.uri: x:/{owner} → none; route.one.identity.dns: none → {owner}.x",
        ),
    ] {
        let difference = Difference::between(old, new);
        assert_eq!(difference.to_string(), expected);
        assert!(difference.iter().all(|change| change.follows));
    }
}

#[test]
fn routes_in_another_order_are_another_configuration() {
    let swapped = [("\"one\"", "\"x\""), ("\"two\"", "\"one\""), ("\"x\"", "\"two\"")];
    let swapped = swapped.iter().fold(FILE.to_owned(), |text, (from, to)| text.replace(from, to));
    let difference = Difference::between(&config(FILE), &config(&swapped)).to_string();
    assert!(difference.ends_with("; route: reordered"), "{difference}");
}

#[test]
fn added_source_changes_no_route_of_the_others() {
    check(&[("[source.main]", "[source.a]\nkind = \"memory\"\n[source.main]")], "source.a: added");
}

#[test]
fn what_takes_a_restart_is_told_from_what_does_not() {
    let limits = "[limits]\nidle_timeout = \"9s\"\ndrain_delay = \"1s\"\n[source.main]";
    let edited = FILE.replace("8081", "8082").replace("[source.main]", limits);
    let edited = format!("state_dir = \"/s\"\nthreads = 3\n{edited}");
    let difference = Difference::between(&config(FILE), &config(&edited));
    let of = |follows| -> Vec<&str> {
        difference
            .iter()
            .filter(|one| one.follows == follows)
            .map(|one| one.what.as_str())
            .collect()
    };
    assert_eq!(of(false), ["state_dir", "threads", "listener.address", "limits.idle_timeout"]);
    assert_eq!(of(true), ["limits.drain_delay"]);
}
