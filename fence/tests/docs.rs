//! What docs/embedding.md has of this crate is true.

fn document(name: &str) -> String {
    std::fs::read_to_string(format!("{}/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// What is between ```` ```language ```` and the end of that block.
fn sample(text: &str, language: &str) -> String {
    let begin = text.split(&format!("```{language}\n")).nth(1).expect("there is such a sample");
    begin.split("```").next().unwrap_or_default().to_owned()
}

#[test]
fn code_of_the_book_is_compiled_with_the_crate() {
    let (page, crate_docs) = (document("../docs/embedding.md"), document("README.md"));
    for line in sample(&page, "rust").lines() {
        assert!(
            crate_docs.contains(&format!("{line}\n")),
            "{line:?} is not in the docs of the crate"
        );
    }
}

#[test]
fn command_of_the_example_is_in_book_and_crate() {
    let command = "cargo run --package fencepost-fence --example server -- http://127.0.0.1:2379 /shards/2/lock 127.0.0.1:8080";
    for name in ["../docs/embedding.md", "README.md"] {
        assert!(document(name).contains(command), "{name}");
    }
}
