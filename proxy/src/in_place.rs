//! Boxes whose contents are made where they stay.

use std::pin::Pin;

/// What `make` makes, behind a pointer.
///
/// `Box::new` has it made on the stack, for the case that there is no memory, and copies it: of a
/// future that is all the room that it will ever need, 1 KiB for a request, twice. With the room
/// there first the compiler writes into that only what there is by then.
///
/// What a closure takes along is copied into it. What is made of something large is written by
/// [`Box::write`] where it is made.
pub(crate) fn boxed<T>(make: impl FnOnce() -> T) -> Box<T> {
    let room = Box::new_uninit();
    Box::write(room, make())
}

/// The future that `make` makes, behind a pointer.
pub(crate) fn pinned<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::into_pin(boxed(make))
}
