//! `fencepost ready`: asks the admin listener of a running process whether it is ready for
//! requests. Speaks no TLS, because a user with a client certificate for the listener has another
//! client.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use fencepost_config::{Address, Config};
use http::header::HOST;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::output::print;

/// How long a process may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// How much of its answer is shown.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Where an admin listener is.
#[derive(Debug, PartialEq, Eq)]
pub enum AdminPlace {
    /// A host and a port.
    Tcp(String),
    /// A unix socket.
    Unix(PathBuf),
}

impl AdminPlace {
    /// Where that configuration has it.
    ///
    /// # Errors
    /// If it has none, or none that can be asked.
    pub fn of(config: &Config) -> Result<AdminPlace, String> {
        let Some(admin) = &config.admin else {
            return Err("admin.listen is \"off\": there is nobody to ask".to_owned());
        };
        if admin.tls.is_some() {
            let says = "the admin listener speaks TLS: ask its /readyz with a client that has a certificate";
            return Err(says.to_owned());
        }
        match &admin.address {
            Address::Tcp(address) if address.port() == 0 => {
                Err("admin.listen has port 0: give the URL that the log has".to_owned())
            }
            Address::Tcp(address) => Ok(AdminPlace::Tcp(address.to_string())),
            Address::Unix(path) => Ok(AdminPlace::Unix(path.clone())),
            Address::Systemd(_) => {
                Err("systemd has the address of the admin listener: give its URL".to_owned())
            }
        }
    }

    /// Reads `http://host:port` or `unix:/path`; the former without its scheme, too.
    ///
    /// # Errors
    /// If it is something else.
    pub fn parse(text: &str) -> Result<AdminPlace, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(AdminPlace::Unix(path.into()));
        }
        let wrong = || format!("must be \"http://127.0.0.1:9901\" or \"unix:/path\", not {text:?}");
        let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let url: Uri = url.parse().map_err(|_| wrong())?;
        let path_is_known = matches!(url.path(), "/" | "/readyz") && url.query().is_none();
        match url.authority() {
            Some(place) if path_is_known && url.scheme_str() == Some("http") => {
                let port = if place.port().is_some() { "" } else { ":80" };
                Ok(AdminPlace::Tcp(format!("{place}{port}")))
            }
            Some(_) | None => Err(wrong()),
        }
    }
}

/// Prints that the process there is ready.
///
/// # Errors
/// If it is not ready or does not answer, with what it says.
pub async fn ask(place: &AdminPlace) -> anyhow::Result<()> {
    let answered = timeout(PATIENCE, async {
        match place {
            AdminPlace::Tcp(place) => get(TcpStream::connect(place).await?, place).await,
            AdminPlace::Unix(path) => get(UnixStream::connect(path).await?, "localhost").await,
        }
    });
    let shown = match place {
        AdminPlace::Tcp(place) => format!("http://{place}"),
        AdminPlace::Unix(path) => format!("unix:{}", path.display()),
    };
    let (status, text) = answered
        .await
        .with_context(|| format!("{shown} did not answer within {PATIENCE:?}"))?
        .with_context(|| format!("{shown} cannot be asked"))?;
    let text = text.trim_end();
    match status {
        StatusCode::OK if text == "ready" => Ok(print(text)?),
        StatusCode::SERVICE_UNAVAILABLE if text.starts_with("not ready") => bail!("{text}"),
        status => bail!("{shown} answered {status}: it is no admin listener of fencepost"),
    }
}

/// Asks for `/readyz`.
async fn get(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    host: &str,
) -> anyhow::Result<(StatusCode, String)> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection); // Its error is that of the request, too.
    let request = Request::get("/readyz").header(HOST, host).body(Empty::<Bytes>::new())?;
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(anyhow::Error::from_boxed)?.to_bytes();
    Ok((head.status, String::from_utf8_lossy(&body).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_as_people_write_them() {
        for (text, place) in [
            ("http://127.0.0.1:9901", "127.0.0.1:9901"),
            ("http://127.0.0.1:9901/", "127.0.0.1:9901"),
            ("http://localhost:9901/readyz", "localhost:9901"),
            ("localhost:9901", "localhost:9901"),
            ("[::1]:9901", "[::1]:9901"),
            ("http://admin", "admin:80"),
        ] {
            assert_eq!(AdminPlace::parse(text), Ok(AdminPlace::Tcp(place.to_owned())), "{text}");
        }
        let path = AdminPlace::Unix("/run/admin.sock".into());
        assert_eq!(AdminPlace::parse("unix:/run/admin.sock"), Ok(path));
        for text in ["", "https://127.0.0.1:9901", "http://127.0.0.1:9901/locks", "a b"] {
            assert!(AdminPlace::parse(text).is_err(), "{text:?}");
        }
    }
}
