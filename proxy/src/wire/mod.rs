//! What both sides of the proxy are built on: a socket that can be looked at while hyper owns it, a timer that is
//! cheap to move, and a way to run futures that stay on their thread.

mod alarm;
mod background;
mod nested;
mod socket;
mod stream;
mod tls;
mod transport;

pub use alarm::Alarm;
pub use background::Background;
pub(crate) use background::LocalExecutor;
pub(crate) use nested::Nested;
pub use socket::Socket;
pub use transport::Transport;
