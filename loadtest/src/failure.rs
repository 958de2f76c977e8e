//! What went wrong, in words.

use std::error::Error;

use etcd_client::Error as EtcdError;

/// An error with its causes. etcd's library keeps its causes to itself, and tells of them in Rust's debug form.
pub(crate) fn in_words(error: &anyhow::Error) -> String {
    let all = error.chain().map(|cause| match cause.downcast_ref::<EtcdError>() {
        Some(EtcdError::GRpcStatus(status)) if status.message().is_empty() => {
            with_causes(status.code().description(), status.source())
        }
        Some(EtcdError::GRpcStatus(status)) => with_causes(status.message(), status.source()),
        Some(EtcdError::TransportError(error)) => with_causes(&error.to_string(), error.source()),
        _ => cause.to_string(),
    });
    all.collect::<Vec<_>>().join(": ")
}

/// The last cause is what helps.
fn with_causes(said: &str, mut cause: Option<&(dyn Error + 'static)>) -> String {
    let mut text = said.to_owned();
    while let Some(error) = cause {
        let addition = error.to_string();
        // The latter is how the library calls whatever is beneath it.
        if !text.contains(&addition) && addition != "transport error" {
            text.push_str(": ");
            text.push_str(&addition);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;
    use tonic::Status;

    fn check(error: anyhow::Error, expected: &str) {
        assert_eq!(in_words(&error.context("etcd does not answer")), expected);
    }

    #[test]
    fn a_failed_call_to_etcd_is_told_of_in_words_and_each_cause_once() {
        let with_cause = |message: &str| {
            let mut status = Status::unavailable(message);
            status.set_source(std::sync::Arc::new(std::io::Error::other("Connection refused (os error 111)")));
            EtcdError::GRpcStatus(status).into()
        };
        let refused = "etcd does not answer: tcp connect error: Connection refused (os error 111)";
        check(with_cause("tcp connect error"), refused);
        check(with_cause("tcp connect error: Connection refused (os error 111)"), refused);
        let denied = EtcdError::GRpcStatus(Status::permission_denied("etcdserver: permission denied"));
        check(denied.into(), "etcd does not answer: etcdserver: permission denied");
        let wordless = EtcdError::GRpcStatus(Status::deadline_exceeded(""));
        check(wordless.into(), "etcd does not answer: Deadline expired before operation could complete");
    }

    #[test]
    fn whatever_else_went_wrong_is_told_of_with_its_causes() {
        check(anyhow!("b").context("a"), "etcd does not answer: a: b");
    }
}
