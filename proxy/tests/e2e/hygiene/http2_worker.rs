//! Plays the cases before a worker that speaks HTTP/2.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use fencepost_tests::Connection;
use http::{Request, Response};
use tokio::net::{TcpListener, TcpStream};

use super::cases::{cases, http2_cases};
use super::http2::play_cases;
use super::recorder::Message;
use super::{Scene, audit_messages};
use crate::fencepost::Route;

/// A worker of HTTP/2 that keeps every request it gets.
#[derive(Clone, Default)]
struct Http2Recorder(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    whole: Vec<Message>,
    /// The targets of those whose stream was reset.
    cut: Vec<String>,
}

impl Http2Recorder {
    async fn start() -> (Http2Recorder, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let recorder = Http2Recorder::default();
        let serving = recorder.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        (recorder, address)
    }

    async fn serve(self, stream: TcpStream) {
        let Ok(mut connection) = h2::server::handshake(stream).await else { return };
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            let recorder = self.clone();
            tokio::spawn(async move {
                let target = request.uri().path().to_owned();
                match read(request).await {
                    Ok(message) => {
                        recorder.0.lock().unwrap().whole.push(message);
                        if let Ok(mut body) = respond.send_response(Response::new(()), false) {
                            let _ = body.send_data(Bytes::from_static(b"ok"), true);
                        }
                    }
                    Err(_) => recorder.0.lock().unwrap().cut.push(target),
                }
            });
        }
    }
}

/// Reads a request to the end of its stream.
async fn read(request: Request<h2::RecvStream>) -> Result<Message, h2::Error> {
    let (head, mut body) = request.into_parts();
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let listed = |fields: &http::HeaderMap| -> Vec<(String, String)> {
        fields.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
    };
    let mut fields = listed(&head.headers);
    fields.extend(head.uri.authority().map(|authority| ("host".to_owned(), authority.to_string())));
    let mut bytes = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        bytes.extend_from_slice(&piece);
    }
    let trailers = body.trailers().await?.map(|trailers| listed(&trailers)).unwrap_or_default();
    let target = head.uri.path_and_query().map_or_else(String::new, ToString::to_string);
    Ok(Message { target, fields, body: String::from_utf8_lossy(&bytes).into_owned(), trailers })
}

async fn open(limit: &str) -> (Scene, Http2Recorder) {
    let (recorder, address) = Http2Recorder::start().await;
    let route = Route::k();
    (Scene::before(Some(format!("h2c://{address}")), route, limit).await, recorder)
}

/// Ends fencepost, and holds what the worker has against what was to become of the cases.
async fn finish(
    scene: Scene,
    recorder: Http2Recorder,
    names: &[&str],
    bodies: &[Option<&str>],
    wrong: &mut Vec<String>,
) {
    let tenure = scene.tenure.clone();
    assert!(scene.recorded().await.is_empty());
    let kept = recorder.0.lock().unwrap();
    audit_messages(&kept.whole, &kept.cut, &tenure, names, bodies, wrong);
    assert!(wrong.is_empty(), "{} wrong of {}:\n{}", wrong.len(), names.len(), wrong.join("\n"));
}

#[tokio::test]
async fn ambiguous_requests_reach_an_http2_worker_clean_or_not() {
    for limit in ["", "buffer_body_max = 0"] {
        let (scene, recorder) = open(limit).await;
        let mut wrong = Vec::new();
        let cases = cases();
        for (index, (name, template, fate)) in cases.iter().enumerate() {
            let mut client = Connection::open(scene.fence.listener.clone()).await.unwrap();
            client.send(scene.honest(&format!("/before/{index}"))).await.unwrap();
            assert_eq!(client.final_response().await.unwrap().status, 200);
            let request = scene.filled(template, &format!("/case/{index}"));
            client
                .send([request, scene.honest(&format!("/after/{index}"))].concat())
                .await
                .unwrap();
            let expected = fate.status();
            match client.final_response().await {
                Ok(answer) if answer.status == expected => {}
                other => wrong.push(format!("{name}: {other:?} instead of {expected}")),
            }
            let mut other = Connection::open(scene.fence.listener.clone()).await.unwrap();
            other.send(scene.honest(&format!("/other/{index}"))).await.unwrap();
            assert_eq!(other.final_response().await.unwrap().status, 200);
        }
        let bodies: Vec<Option<&str>> = cases.iter().map(|(_, _, fate)| fate.body()).collect();
        let names: Vec<&str> = cases.iter().map(|(name, ..)| *name).collect();
        finish(scene, recorder, &names, &bodies, &mut wrong).await;
    }
}

#[tokio::test]
async fn ambiguous_http2_requests_reach_an_http2_worker_clean_or_not() {
    for limit in ["", "buffer_body_max = 0"] {
        let (scene, recorder) = open(limit).await;
        let mut wrong = play_cases(&scene).await;
        let cases = http2_cases();
        let bodies: Vec<Option<&str>> = cases.iter().map(|case| case.arrives).collect();
        let names: Vec<&str> = cases.iter().map(|case| case.name).collect();
        finish(scene, recorder, &names, &bodies, &mut wrong).await;
    }
}
