//! Long answers, made as they are read: nobody else waits until all of one is made, and no client
//! that reads slowly has us keep it.

use std::iter::once;

use bytes::Bytes;
use futures_util::stream::{Stream, unfold};
use serde_json::Value;
use tokio::task::yield_now;

/// The least that is written at once.
pub(super) const PIECE_BYTES: usize = 64 * 1024;

/// An object, which has a field, with one more: a list whose items are made as they are asked for.
pub(super) fn with_list<I: Iterator<Item = Value>>(
    object: &Value,
    name: &str,
    separator: &'static str,
    items: I,
) -> impl Iterator<Item = String> + use<I> {
    let object = object.to_string();
    let fields = object.strip_suffix('}').expect("an object ends with a brace");
    let items = items.map(|item| item.to_string());
    once(format!("{fields},\"{name}\":["))
        .chain(separated(separator, items))
        .chain(once("]}".into()))
}

/// With the separator before each but the first.
fn separated(
    separator: &'static str,
    items: impl Iterator<Item = String>,
) -> impl Iterator<Item = String> {
    items
        .enumerate()
        .map(move |(number, item)| if number == 0 { item } else { separator.to_owned() + &item })
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
