//! What both sides of the proxy are built on: a socket that can be looked at while hyper owns it, a
//! timer that is cheap to move, and a way to run futures that stay on their thread.

mod alarm;
mod background;
mod group_writes;
mod socket;
mod transport;

pub use alarm::Alarm;
pub(crate) use alarm::{PatientTimer, caught_up};
pub use background::Background;
pub(crate) use background::BackgroundGuard;
#[cfg(test)]
pub(crate) use group_writes::tests::Member;
pub use socket::Socket;
pub(crate) use socket::WeakSocket;
pub use transport::Transport;
pub(crate) use transport::{keep_alive, write_little_ahead};

/// The most that hyper reads ahead or writes ahead of a message on one HTTP/1.1 connection.
///
/// A body of 64 KiB, the largest that is read whole by default, fits in with its head: it comes by
/// one read and is copied nowhere. With room for 64 KiB alone, a second read would bring what the
/// head left out, and both pieces would have to be put together.
pub(crate) const HTTP1_BUFFER_BYTES: usize = 80 * 1024;
