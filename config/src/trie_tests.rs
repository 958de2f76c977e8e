use super::*;

/// A segment that ends with `*` begins with what is before that.
fn steps(written: &str) -> Vec<Step> {
    let step = |segment: &str| match segment.strip_suffix('*') {
        Some(beginning) => Step::BeginsWith(beginning.to_owned()),
        None => Step::Text(segment.to_owned()),
    };
    written.split('/').map(step).collect()
}

fn trie(all: &[&str]) -> Trie {
    let mut trie = Trie::default();
    all.iter().enumerate().for_each(|(number, written)| trie.insert(number, &steps(written)));
    trie
}

#[test]
fn what_begins_otherwise_is_not_found() {
    let trie = trie(&["a", "a/b", "a/bc/d", "a/*", "a/b*/x", "b/a", "*/c", "a/b"]);
    for (written, alike, covering) in [
        ("a", &[0, 1, 2, 3, 4, 6, 7][..], &[0][..]),
        ("a/b", &[0, 1, 3, 4, 7], &[0, 1, 3, 7]),
        ("a/bc", &[0, 2, 3, 4], &[0, 3]),
        ("a/b/x", &[0, 1, 3, 4, 7], &[0, 1, 3, 4, 7]),
        ("a/bc*", &[0, 2, 3, 4], &[0, 3]),
        ("a/b*/x", &[0, 1, 3, 4, 7], &[0, 3, 4]),
        ("*/d", &[0, 3], &[]),
        ("ä*/c", &[6], &[6]),
        ("c", &[6], &[]),
    ] {
        assert_eq!(
            (&trie.alike(&steps(written))[..], &trie.covering(&steps(written))[..]),
            (alike, covering),
            "{written}"
        );
    }
}

#[test]
fn of_many_that_are_different_each_finds_itself_alone() {
    for (before, after) in
        [("locks/", ""), ("*/", "/x"), ("locks/*/", ""), ("locks/", "-*"), ("", "/*/lock")]
    {
        let written: Vec<String> =
            (100..1000).map(|number| format!("{before}{number}{after}")).collect();
        let trie = trie(&written.iter().map(String::as_str).collect::<Vec<_>>());
        for (number, written) in written.iter().enumerate() {
            let steps = steps(written);
            assert_eq!(
                (trie.alike(&steps), trie.covering(&steps)),
                (vec![number], vec![number]),
                "{written}"
            );
        }
    }
}

/// Each step was a call within the one before.
#[test]
fn a_template_of_a_million_segments_is_found_by_its_first() {
    let long = vec!["a"; 1_000_000].join("/");
    let trie = trie(&["a", &long, "b"]);
    assert_eq!((trie.alike(&steps("a")), trie.alike(&steps(&long))), (vec![0, 1], vec![0, 1]));
    assert_eq!((trie.covering(&steps("a")), trie.covering(&steps(&long))), (vec![0], vec![0, 1]));
}
