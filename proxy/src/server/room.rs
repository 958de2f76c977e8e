//! What a connection and a request keep of memory, hyper's buffers aside: a process has tens of
//! thousands of the ones, and an HTTP/2 client hundreds of the others.

use std::convert::Infallible;

use http::{Request, Response};
use hyper::body::Incoming;
use tower::Service;

use super::answer::AnswerBody;
use super::request_body::ClientBody;
use super::serve_connection::serve_connection;
use super::service::{ConnectionService, answer};
use crate::stack::stack;

/// In bytes.
struct Room {
    /// The task of a connection.
    connection: usize,
    /// What hyper keeps beside it, whether or not there is a request.
    request_kept: usize,
    /// A request, from its head to that of its response.
    request: usize,
}

impl Room {
    fn with<A, S, B>(_stack: impl Fn(A) -> S) -> Room
    where
        S: Service<Box<Request<ClientBody>>, Response = Response<B>, Error = Infallible>
            + Clone
            + 'static,
        B: AnswerBody + Unpin,
    {
        Room {
            connection: of_connection(serve_connection::<S, B>),
            request_kept: of_future(ConnectionService::<S>::new),
            request: of_request(answer::<S, B>),
        }
    }
}

fn of_connection<A, B, C, F>(_: impl Fn(A, B, C) -> F) -> usize {
    size_of::<F>()
}

fn of_request<A, B, C, D, F>(_: impl Fn(A, B, C, D) -> F) -> usize {
    size_of::<F>()
}

fn of_future<A, B, C, S: hyper::service::Service<Request<Incoming>>>(
    _: impl Fn(A, B, C) -> S,
) -> usize {
    size_of::<S::Future>()
}

/// What the runtime keeps with each task.
const RUNTIMES_OWN: usize = 112;

/// The allocator's next size is 1,792.
#[test]
fn idle_connection_keeps_room_for_hyper_and_little_else() {
    let connection = Room::with(stack).connection;
    assert!(connection + RUNTIMES_OWN <= 1_536, "{connection} bytes, of which 640 are hyper's");
}

#[test]
fn idle_connection_keeps_no_room_for_a_request() {
    assert!(Room::with(stack).request_kept <= 2 * size_of::<usize>(), "no more than a pointer");
}

#[test]
fn request_keeps_no_room_for_rare_things() {
    let request = Room::with(stack).request;
    assert!(request <= 2_000, "{request} bytes");
}
