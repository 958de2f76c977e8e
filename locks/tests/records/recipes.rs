//! The SQL of the book's recipes, as it stands there.

const PAGE: &str = include_str!("../../../docs/sql.md");

/// The statements of the block that a comment of that name stands before.
pub(crate) fn recipe(name: &str) -> &'static str {
    let marker = format!("<!-- recipe: {name} -->\n\n```sql\n");
    let (_, rest) = PAGE.split_once(&marker).unwrap_or_else(|| panic!("docs/sql.md has no {name}"));
    rest.split_once("```").expect("a block ends").0
}

/// The query of the source in a block of that name.
pub(crate) fn query(name: &str) -> String {
    recipe(name).trim().to_owned()
}
