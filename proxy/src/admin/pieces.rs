//! Long answers, made as they are read: nobody else waits until all of one is made, and no client
//! that reads slowly has us keep it.

use std::iter::once;

use bytes::Bytes;
use futures_util::stream::{Stream, unfold};
use serde_json::Value;
use tokio::task::yield_now;

/// The least that is written at once.
pub(super) const PIECE_BYTES: usize = 64 * 1024;

/// What stands in the place of a list of locks until that is written. Nothing else has it: within a
/// text, quotes are escaped.
pub(super) const NO_LOCKS: &str = r#""locks": []"#;

/// The same where a document stands on one line.
pub(super) const NO_LOCKS_ON_ONE_LINE: &str = r#""locks":[]"#;

/// The list of these locks, `indent` into the document; `none`: there is none to ask for.
pub(super) fn list(
    locks: impl Iterator<Item = Value>,
    none: bool,
    indent: &'static str,
) -> impl Iterator<Item = String> {
    let end = if none { "]".to_owned() } else { format!("\n{indent}]") };
    let locks = with_commas(
        locks.map(move |lock| format!("\n{lock:#}").replace('\n', &format!("\n{indent}  "))),
    );
    once(r#""locks": ["#.to_owned()).chain(locks).chain(once(end))
}

/// The same on one line.
pub(super) fn list_on_one_line(locks: impl Iterator<Item = Value>) -> impl Iterator<Item = String> {
    once(r#""locks":["#.to_owned())
        .chain(with_commas(locks.map(|lock| lock.to_string())))
        .chain(once("]".to_owned()))
}

/// With a comma before each but the first.
fn with_commas(items: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    items.enumerate().map(|(number, item)| if number == 0 { item } else { format!(",{item}") })
}

/// These parts in few pieces. Between any two of them others have their turn, however fast they are
/// taken.
pub(super) fn in_pieces(parts: impl Iterator<Item = String>) -> impl Stream<Item = Bytes> {
    unfold(parts, |mut parts| async {
        yield_now().await;
        let mut piece = String::new();
        while piece.len() < PIECE_BYTES
            && let Some(part) = parts.next()
        {
            piece.push_str(&part);
        }
        (!piece.is_empty()).then(|| (Bytes::from(piece), parts))
    })
}
