//! Which paths a template takes, refuses and passes by.

use super::*;
use proptest::prelude::*;

/// What a template says of a path: `no`, `bad`, or its captures, joined with `,`.
fn check(template: &str, path: &str, says: &str) {
    let template = PathTemplate::parse(template).unwrap();
    let said = match template.matches(path) {
        PathMatch::No => "no".to_owned(),
        PathMatch::BadCapture => "bad".to_owned(),
        PathMatch::Yes(captures) => {
            captures.iter().map(|capture| capture.to_string()).collect::<Vec<_>>().join(",")
        }
    };
    assert_eq!(said, says, "{template} {path}");
}

#[test]
fn a_template_takes_whole_segments() {
    for (template, path, says) in [
        ("/", "/", ""),
        ("/", "/a/b", ""),
        ("/", "//", ""),
        ("/", "", "no"),
        ("/", "*", "no"),
        ("/", "a", "no"),
        ("/a", "/a", ""),
        ("/a", "/a/", ""),
        ("/a", "/a/b", ""),
        ("/a", "/ab", "no"),
        ("/a", "/b/a", "no"),
        ("/a", "/", "no"),
        ("/a/", "/a", "no"),
        ("/a/", "/a/", ""),
        ("/a/", "/a/b", ""),
        ("/a/", "/ab/", "no"),
        ("/a/b", "/a", "no"),
        ("/a/b", "/a/", "no"),
        ("/a/b", "/a/b", ""),
        ("/shards/{shard}/", "/shards/2/x", "2"),
        ("/shards/{shard}/", "/shards/2/", "2"),
        ("/shards/{shard}/", "/shards/2", "no"),
        ("/shards/{shard}/", "/shards/", "no"),
        ("/shards/{shard}/", "/shards", "no"),
        ("/shards/{shard}/", "/other/2/", "no"),
        ("/shards/{shard}", "/shards/2", "2"),
        ("/shards/{shard}", "/shards/2/x", "2"),
        ("/{a}/x/{b}", "/1/x/2/3", "1,2"),
        ("/{a}/x/{b}", "/1/y/2", "no"),
    ] {
        check(template, path, says);
    }
}

#[test]
fn a_path_is_compared_as_it_reads_decoded() {
    for (template, path, says) in [
        ("/shards/{shard}/", "/%73hards/2/", "2"),
        ("/shards/{shard}/", "/%73%68ards/%32/", "2"),
        ("/shards/{shard}/", "/shards/%41-b_c.d~/", "A-b_c.d~"),
        ("/münchen/", "/m%C3%BCnchen/", ""),
        ("/münchen/", "/münchen/", ""),
        ("/a b/", "/a%20b/", ""),
    ] {
        check(template, path, says);
    }
}

#[test]
fn a_capture_that_may_not_stand_in_a_lock_key_is_refused() {
    let shards = "/shards/{shard}/";
    let texts = "\
        %20 | a%20b | a+b | a:b | a@b | m%C3%BC | mü | %ff | %0a | {x} | a* | a=b | a,b | a!";
    for capture in texts.split(" | ") {
        check(shards, &format!("/shards/{capture}/x"), "bad");
    }
    for capture in ["...", "a..", "..a", "-", "~", "_", "0", "A.b"] {
        check(shards, &format!("/shards/{capture}/x"), capture);
    }
}

#[test]
fn what_a_worker_may_normalise_does_not_slip_past() {
    let shards = "/shards/{shard}/";
    for (_what, paths) in [
        ("dots", "/shards/../x | /x/../shards/2/ | /./shards/2/ | /shards/2/../3/x"),
        ("encoded dots", "/shards/2/%2e%2e/3/ | /shards/2/.%2e/3/"),
        ("encoded slashes", "/shards%2f2/ | /shards%2F2%2Fx/ | /shards/2%2f/ | /%2fshards/2/"),
        ("both", "/shards/2%2f..%2f3/ | /shards/2/..%2f3/"),
        (
            "backslashes",
            r"/shards\2/ | /shards%5c2/x | /shards/2/..\3/ | /shards/2\..\3/ | /\shards/2/",
        ),
        ("empty segments", "//shards/2/ | /shards//2/ | ///shards/2/ | // | //other"),
        (
            "parameters",
            "/shards;x/2/ | /shards/2;x/ | /;/shards/2/ | /shards%3bx/2/ | /shards/..;/x",
        ),
        ("encoded twice", "/%2573hards/2/ | /shards/%2532/ | /shards/2/%252e%252e/3/"),
        ("broken", "/shards/%/ | /shards/2/%zz | /%7/shards | /shards/2/%00 | /shards%00/2/"),
        ("cases", "/Shards/2/ | /SHARDS/2/ | /%53hards/2/"),
        ("others", "/shards%3fx/2/ | /shards%23/2/ | /shards%0a/2/ | /shards%09/2/"),
    ] {
        paths.split(" | ").for_each(|path| check(shards, path, "bad"));
    }
}

/// A worker that folds cases goes by Unicode: to it a Kelvin sign is a `k`, and a long `s` an `s`.
#[test]
fn path_in_other_case_is_refused_in_every_script() {
    for (template, path) in [
        ("/büro/", "/B%C3%9CRO/x"),
        ("/büro/", "/bÜro/x"),
        ("/ΟΔΟΣ/", "/οδος/x"),
        ("/lock/", "/loc%E2%84%AA/x"),
        ("/loc\u{212a}/", "/lock/x"),
        ("/shards/{shard}/", "/%C5%BFhards/2/"),
        ("/straße/", "/STRASSE/x"),
    ] {
        check(template, path, "bad");
    }
    // Neither another letter nor bytes that are no text.
    for (template, path) in [
        ("/büro/", "/buro/x"),
        ("/büro/", "/b%C3%B6ro/x"),
        ("/büro/", "/b%FCro/x"),
        ("/lock/", "/loc%E2%84/x"),
        ("/lock/", "/loc%E2%84%AB/x"),
    ] {
        check(template, path, "no");
    }
    check("/büro/", "/b%C3%BCro/x", "");
    check("/{a}/", "/B%C3%9CRO/x", "bad");
}

#[test]
fn behind_the_prefix_everything_else_may_stand() {
    let listed = "\
        %2f | a%2Fb | // | a//b | ;v=1 | A;v=1/%5Cb | a%20b | %25 | %2525 | ... | a..b | .a | \
        %C3%BC | ?%3f";
    for rest in listed.split(" | ") {
        check("/shards/{shard}/", &format!("/shards/2/{rest}"), "2");
    }
}

#[test]
fn a_path_that_differs_before_is_another_path() {
    let texts = "\
        /other//2/ | /other/2;x/ | /other/Shards/a%2fb/ | /o%20ther/x | /shardss/2/ | /shard/2/ | \
        /m%C3%BC/2/";
    for path in texts.split(" | ") {
        check("/shards/{shard}/", path, "no");
    }
}

#[test]
fn a_route_covers_what_never_gets_past_it() {
    let covers = |first: &str, second: &str| {
        PathTemplate::parse(first).unwrap().covers(&PathTemplate::parse(second).unwrap())
    };
    for (first, second) in [
        ("/", "/"),
        ("/", "/a"),
        ("/a", "/a"),
        ("/a", "/a/"),
        ("/a", "/a/b"),
        ("/{x}/", "/a/"),
        ("/{x}", "/{y}/z"),
        ("/a/", "/A/"),
        ("/ü/", "/Ü/"),
        ("/a/", "/a/b"),
    ] {
        assert!(covers(first, second), "{first} {second}");
    }
    for (first, second) in [
        ("/a", "/"),
        ("/a/", "/a"),
        ("/a", "/ab"),
        ("/a/b", "/a"),
        ("/a/", "/{x}/"),
        ("/{x}/a", "/{y}/b"),
    ] {
        assert!(!covers(first, second), "{first} {second}");
    }
}

proptest! {
    #[test]
    fn no_path_that_normalises_into_a_template_slips_past_it(
        before in "(/|/\\.|/x/\\.\\.|/;y|\\\\|%2f|/%2e){0,2}",
        shards in "(/|/|/|\\\\|%5c|%2F)(shards|shards|%73hards|shard%73|Shards|%53HARDS)(;y|%3by|)",
        shard in "(/|/|//|/\\./|/y/%2e%2e/|\\\\|%2f)(2|2|%32|2;y)",
        behind in "(/|/|/|\\\\|%2f|%5C)(x|X;y|\\.\\.\\.|%2f|//|)",
    ) {
        let template = PathTemplate::parse("/shards/{shard}/").unwrap();
        let path = [before, shards, shard, behind].concat();
        prop_assert!(normalised(&path).starts_with("/shards/2/"), "{path} is {}", normalised(&path));
        if path.starts_with('/') {
            prop_assert_ne!(template.matches(&path), PathMatch::No, "{}", path);
        }
    }

    #[test]
    fn no_path_at_all_slips_past_by_being_normalised(path in "(/|/|//|%2f|\\\\|;|\\.|%2e|shards|%73hards|Shards|2|%32|x|%){1,8}") {
        let template = PathTemplate::parse("/shards/{shard}/").unwrap();
        if path.starts_with('/') && template.matches(&path) == PathMatch::No {
            prop_assert!(!normalised(&path).starts_with("/shards/2/"), "{path} is {}", normalised(&path));
        }
    }

    #[test]
    fn what_was_captured_is_what_the_path_says(shard in "[A-Za-z0-9_~-]{1,9}", rest in "[a-z/]{0,9}") {
        check("/shards/{shard}/", &format!("/shards/{shard}/{rest}"), &shard);
    }

    #[test]
    fn no_template_and_no_path_panic(template in ".{0,20}|/[a-z{}/%.]{0,20}", path in "[/%.;a-z0-9é]{0,24}|.{0,24}") {
        if let Ok(template) = PathTemplate::parse(&template) {
            let _ = template.matches(&path);
        }
    }
}

/// What a worker that normalises everything makes of a path: decoded, `\` as `/`, without
/// parameters, dots and empty segments, in lower case.
fn normalised(path: &str) -> String {
    let bytes: Vec<u8> = decoded(path).map(|byte| byte.to_ascii_lowercase()).collect();
    let text = String::from_utf8_lossy(&bytes).replace('\\', "/");
    let mut segments: Vec<&str> = Vec::new();
    for segment in text.split('/').map(|segment| segment.split(';').next().unwrap()) {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            other => segments.push(other),
        }
    }
    let last_slash = if text.ends_with('/') { "/" } else { "" };
    format!("/{}{last_slash}", segments.join("/"))
}
