//! What the README says of this crate is so.

fn document(name: &str) -> String {
    std::fs::read_to_string(format!("{}/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// What is between ```` ```language ```` and the end of that block.
fn sample(text: &str, language: &str) -> String {
    let begin = text.split(&format!("```{language}\n")).nth(1).expect("there is such a sample");
    begin.split("```").next().unwrap_or_default().to_owned()
}

#[test]
fn the_code_of_the_readme_is_that_of_the_crate_which_is_compiled() {
    let (readme, crate_docs) = (document("../README.md"), document("src/lib.rs"));
    for line in sample(&readme, "rust").lines() {
        assert!(crate_docs.contains(&format!("//! {line}\n")), "{line:?} is not in the docs of the crate");
    }
}

#[test]
fn the_command_that_runs_the_example_is_the_same_in_readme_and_crate() {
    let command =
        "cargo run --package fencepost-fence --example server -- http://127.0.0.1:2379 /shards/2/lock 127.0.0.1:8080";
    for name in ["../README.md", "src/lib.rs"] {
        assert!(document(name).contains(command), "{name}");
    }
}
