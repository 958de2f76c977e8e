use super::*;
use crate::path_template::PathMatch;
use proptest::prelude::*;

const PATH: &str = "/{a}/{b}/";

fn template(written: &str) -> LockTemplate {
    LockTemplate::parse(written, &PathTemplate::parse(PATH).unwrap(), true).unwrap()
}

fn with_captures<T>(path: &str, look: impl FnOnce(&Captures<'_>) -> T) -> T {
    match PathTemplate::parse(PATH).unwrap().matches(path) {
        PathMatch::Yes(captures) => look(&captures),
        PathMatch::No | PathMatch::BadCapture => panic!("{path} is not taken"),
    }
}

#[test]
fn a_key_is_rendered_from_what_the_path_captured() {
    for (written, key) in [
        ("/k", "/k"),
        ("/locks/{a}/lock", "/locks/x/lock"),
        ("{b}", "Y"),
        ("/locks/shard-{b}.lock/{a}", "/locks/shard-Y.lock/x"),
        ("/{a}/{a}", "/x/x"),
        ("//{a}/", "//x/"),
    ] {
        let mut rendered = String::new();
        with_captures("/x/%59/", |captures| template(written).render_into(captures, &mut rendered))
            .unwrap();
        assert_eq!(rendered, key, "{written}");
    }
    let unbound = with_captures("/x/y/", |captures| {
        template("/{z}").render_into(captures, &mut String::new())
    });
    assert_eq!(unbound, Err(fmt::Error));
}

#[test]
fn a_key_matches_if_each_placeholder_stands_for_one_segment() {
    let shards = template("/shards/{z}/lock");
    for key in ["/shards/2/lock", "/shards/a.b_c~d-E/lock", "/shards/.../lock"] {
        assert!(shards.matches_key(key), "{key}");
    }
    let wrong = "\
        /shards//lock | /shards/2/lock/ | /shards/2/3/lock | /shards/../lock | /shards/./lock | \
        /shards/2 | "
        .split(" | ");
    let odd = "\
        /shards/a b/lock | /shards/%32/lock | /shards/ü/lock | shards/2/lock | \
        //shards/2/lock | /shards/{z}/lock | /Shards/2/lock"
        .split(" | ");
    for key in wrong.into_iter().chain(odd) {
        assert!(!shards.matches_key(key), "{key}");
    }
    assert!(template("/s-{z}-x").matches_key("/s-2-x"));
    assert!(!template("/s-{z}-x").matches_key("/s--x"));
    assert!(
        !template("/s-{z}-s-").matches_key("/s-"),
        "what is before and what is after do not share letters"
    );
    assert!(
        !template("/{z}").matches_key(&format!("/{}", "k".repeat(1024))),
        "too long for a lock key"
    );
}

#[test]
fn one_placeholder_has_one_value() {
    assert!(template("/{z}/x/{z}").matches_key("/1/x/1"));
    assert!(!template("/{z}/x/{z}").matches_key("/1/x/2"));
}

#[test]
fn a_caller_cannot_name_the_lock_of_another_path() {
    let matches = |key| {
        with_captures("/2/y/", |captures| {
            template("/shards/{a}/{z}").named_on_path(key, captures).is_some()
        })
    };
    assert!(matches("/shards/2/anything"));
    assert!(!matches("/shards/3/anything"));
    assert!(!matches("/shards/2/"));
}

/// Keys with other characters could not be named at all.
#[test]
fn a_key_is_named_as_it_is_or_percent_encoded() {
    let named =
        |written: &str, presented: &str| template(written).named(presented).map(Cow::into_owned);
    for (written, presented, key) in [
        ("/k", "/k", Some("/k")),
        ("/ü x/lock", "/ü x/lock", Some("/ü x/lock")),
        ("/ü x/lock", "/%C3%BC%20x/lock", Some("/ü x/lock")),
        ("/ü x/lock", "/%c3%bc%20x/lock", None),
        ("/ü x/lock", "/ü%20x/lock", None),
        ("/ü/{z}/lock-{y} x", "/%C3%BC/2/lock-a x", None),
        ("/ü/{z}/lock-{y} x", "/%C3%BC/2/lock-a%20x", Some("/ü/2/lock-a x")),
        ("/ü/{z}/lock-{y} x", "/ü/2/lock-a x", Some("/ü/2/lock-a x")),
        ("/ü/{z}/{z}", "/%C3%BC/2/3", None),
        ("/a%20b", "/a%20b", Some("/a%20b")),
        ("/a%20b", "/a b", None),
        ("/{z}", "/%C3%BC", None),
        ("/k", "/%6B", None),
    ] {
        assert_eq!(named(written, presented).as_deref(), key, "{written} {presented}");
    }
    let long = format!("/{}", "ü".repeat(511));
    assert_eq!(named(&long, &format!("/{}", "%C3%BC".repeat(511))), Some(long));
    let too_long = format!("/{}/{}", "%C3%BC".repeat(500), "k".repeat(23));
    assert_eq!(named(&format!("/{}/{{z}}", "ü".repeat(500)), &too_long), None);
    let on_path = |presented| {
        with_captures("/2/y/", |captures| {
            template("/ü/{a}").named_on_path(presented, captures).is_some()
        })
    };
    assert!(on_path("/%C3%BC/2"));
    assert!(!on_path("/%C3%BC/3"), "of another path");
}

#[test]
fn templates_have_twins_if_two_keys_may_be_presented_alike() {
    for (one, other, have_twins) in [
        ("/a b", "/a%20b", true),
        ("/a b", "/a b", false),
        ("/a b", "/a c", false),
        ("/a b", "/a%20c", false),
        ("/a b", "/a%20b/c", false),
        ("/a b/{x}", "/a%20b/c", true),
        ("/a b/{x}", "/a b/{y}", false),
        ("/a b/c%", "/a b/c%", false),
        ("/%2{x}", "/ ", true),
        ("/ {x}", "/%20{y}", true),
        ("/{x}%20z", "/q {y}", true),
        ("/{x}", "/a b", false),
        ("/ü", "/%C3%BC", true),
        ("/ü", "/%c3%bc", false),
    ] {
        assert_eq!(template(one).has_twin_in(&template(other)), have_twins, "{one} {other}");
        assert_eq!(template(other).has_twin_in(&template(one)), have_twins, "{other} {one}");
    }
}

#[test]
fn only_a_template_without_placeholders_is_static() {
    assert_eq!(template("/k").static_key(), Some(&LockKey::new("/k").unwrap()));
    assert_eq!(template("/{a}").static_key(), None);
    for (written, prefix) in
        [("/k", "/k"), ("/shards/{a}/lock", "/shards/"), ("/s-{a}", "/s-"), ("{a}", "")]
    {
        assert_eq!(template(written).literal_prefix(), prefix);
    }
}

#[test]
fn a_placeholder_is_a_capture_unless_the_caller_names_the_lock() {
    let path = PathTemplate::parse(PATH).unwrap();
    assert!(LockTemplate::parse("/{a}", &path, false).is_ok());
    assert!(LockTemplate::parse("/{z}", &path, false).is_err());
    assert!(LockTemplate::parse("/{z}", &path, true).is_ok());
    let texts = "\
        /{ | /} | /{} | /{A} | /{1} | /{a}{b} | /{a}-{b} | /{{a}} | /{a}} | /a\n | /{a | /a} | ";
    for wrong in texts.split(" | ") {
        assert!(LockTemplate::parse(wrong, &path, true).is_err(), "{wrong:?}");
    }
    assert!(LockTemplate::parse(&"k".repeat(1025), &path, true).is_err());
    let nine: String = (0..9).map(|n| format!("/{{p{n}}}")).collect();
    assert!(LockTemplate::parse(&nine, &path, true).is_err());
}

#[test]
fn templates_overlap_if_one_key_may_be_both() {
    for (one, other, overlap) in [
        ("/a", "/a", true),
        ("/a", "/b", false),
        ("/a", "/{x}", true),
        ("/..", "/{x}", false),
        ("/a/b", "/{x}", false),
        ("/{x}/b", "/a/{y}", true),
        ("/{x}/b", "/a/c", false),
        ("/s-{x}", "/s-2", true),
        ("/s-{x}", "/t-{x}", false),
        ("/s-{x}", "/s{x}", true),
        ("/{x}-s", "/{x}-t", false),
    ] {
        assert_eq!(template(one).overlaps(&template(other)), overlap, "{one} {other}");
        assert_eq!(template(other).overlaps(&template(one)), overlap, "{other} {one}");
    }
}

#[test]
fn a_template_is_above_what_may_lie_below_its_keys() {
    for (above, below, is_above) in [
        ("a", "a/b", true),
        ("a", "ab", false),
        ("a", "a", false),
        ("a/b", "a", false),
        ("/a", "/{x}/b", true),
        ("/{x}", "/a/b/c", true),
        ("/s-{x}", "/t-1/a", false),
    ] {
        assert_eq!(template(above).is_above(&template(below)), is_above, "{above} {below}");
    }
}

proptest! {
    #[test]
    fn a_rendered_key_matches_its_template(a in "[A-Za-z0-9_~-]{1,8}", b in "[A-Za-z0-9_~-]{1,8}") {
        let template = template("/x/{a}/y-{b}.z/{a}");
        let mut key = String::new();
        let matches = with_captures(&format!("/{a}/{b}/"), |captures| {
            template.render_into(captures, &mut key).unwrap();
            template.named_on_path(&key, captures).is_some_and(|named| named == key)
        });
        prop_assert!(matches, "{key}");
    }

    #[test]
    fn a_static_key_is_above_those_that_go_on_with_a_slash(one in "[ab/]{1,6}", other in "[ab/]{1,6}") {
        let goes_on = other.strip_prefix(&one).is_some_and(|rest| rest.starts_with('/'));
        prop_assert_eq!(template(&one).is_above(&template(&other)), goes_on);
    }
}
