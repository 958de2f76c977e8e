//! Whom a record in the store names.

use bytes::Bytes;
use fencepost_locks::RecordFormat;
use fencepost_policy::{Content, Layout, Owner};
use serde::de::IgnoredAny;
use serde_json::Value;

/// A value of a lock's key.
pub(crate) fn run(input: &[u8]) {
    let value = Bytes::copy_from_slice(input);
    let free_values = vec![Bytes::from_static(b"none"), Bytes::new()];
    let plain =
        RecordFormat { free_values: free_values.clone(), ..RecordFormat::plain(Layout::Key) };
    let is_free = free_values.contains(&value);
    let expected = if is_free { Content::Free } else { Content::Owner(Owner::new(input)) };
    assert_eq!(plain.content(&value), Ok(expected), "without a field the value is the owner");

    let fielded = RecordFormat { owner_field: Some("owner".to_owned()), ..plain };
    match fielded.content(&value) {
        Ok(Content::Owner(owner)) => {
            assert!(is_json(input), "it is JSON");
            // Numbers that are too large for it, this reader does not take.
            let named = named_owner(input);
            assert!(
                named.as_deref().is_none_or(|named| named.as_bytes() == owner.as_bytes()),
                "{named:?}, not {owner}"
            );
            assert!(
                !free_values.iter().any(|free| **free == *owner.as_bytes()),
                "nobody is called free"
            );
            assert!(
                fielded.content(&naming_another(input)).is_err(),
                "an owner that is named twice is nobody"
            );
        }
        Ok(Content::Free) => {
            let owner = named_owner(input);
            let names_nobody =
                is_json(input) && matches!(owner.as_deref(), Some("" | "none") | None);
            assert!(is_free || names_nobody, "held by {owner:?}");
        }
        Ok(Content::Unreadable) => unreachable!("what cannot be read is told as an error"),
        Err(problem) => {
            // It goes to the log and to operators.
            assert!(!problem.chars().any(char::is_control), "{problem:?}");
            assert!(problem.len() < 200, "{problem:?}");
        }
    }
}

fn is_json(value: &[u8]) -> bool {
    std::str::from_utf8(value).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
}

/// The owner, as a reader of JSON has it that takes the last of several.
fn named_owner(json: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(json).ok()?;
    value.as_object()?.get("owner")?.as_str().map(str::to_owned)
}

/// Puts an `owner` field with another owner in front of the object's fields.
fn naming_another(object: &[u8]) -> Bytes {
    let brace =
        object.iter().position(|byte| *byte == b'{').expect("an object begins with a brace");
    [&object[..=brace], br#""owner":"another","#, &object[brace + 1..]].concat().into()
}
