//! Options that are whole numbers: each says what it may be, and is never more than a run can have.

use std::num::{NonZeroU64, NonZeroUsize};

use anyhow::{Context, ensure};
use hyper::StatusCode;

/// A generator that is asked for more requests a second could not count its schedule, and none sends as many.
pub(crate) const RATE_MAX: u64 = 10_000_000;
/// Connections, or streams of all of them together: each takes some kilobytes here.
pub(crate) const CONNECTIONS_MAX: u64 = 1_000_000;
/// Connections to what is compared: what stands beside fencepost is configured for so many, each of which may need another to the worker, and a
/// process mostly has 20,000 descriptors at most.
pub(crate) const COMPARED_CONNECTIONS_MAX: u64 = 9_900;
/// Locks are taken one hundred at a time, and kept in mind.
pub(crate) const LOCKS_MAX: u64 = 1_000_000;
/// Threads that send.
pub(crate) const THREADS_MAX: u64 = 1024;
/// Rounds, takeovers, requests on a connection.
pub(crate) const TIMES_MAX: u64 = 1_000_000_000;
/// Seconds of a day.
pub(crate) const SECONDS_MAX: u64 = 86_400;
/// Bytes of a body, of which there is one in memory.
pub(crate) const BODY_MAX: u64 = 1 << 30;
/// etcd's revisions are signed.
const REVISION_MAX: u64 = i64::MAX as u64;

fn whole(text: &str, least: u64, most: u64) -> anyhow::Result<u64> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.with_context(|| format!("it is a whole number from {least} to {most}"))
}

/// A number that is not 0.
pub(crate) fn number<const MAX: u64>(text: &str) -> anyhow::Result<NonZeroU64> {
    Ok(NonZeroU64::new(whole(text, 1, MAX)?).expect("the least is 1"))
}

/// How many of something there are.
pub(crate) fn count<const MAX: u64>(text: &str) -> anyhow::Result<NonZeroUsize> {
    Ok(number::<MAX>(text)?.try_into()?)
}

/// How long a body is.
pub(crate) fn body(text: &str) -> anyhow::Result<usize> {
    Ok(whole(text, 0, BODY_MAX)?.try_into()?)
}

/// A revision of etcd's.
pub(crate) fn revision(text: &str) -> anyhow::Result<i64> {
    Ok(whole(text, 1, REVISION_MAX)?.try_into()?)
}

/// The status of an answer.
pub(crate) fn status(text: &str) -> anyhow::Result<StatusCode> {
    StatusCode::from_bytes(text.as_bytes()).context("it is a status from 100 to 999")
}

/// That all connections together have no more streams than can be had.
pub(crate) fn check_streams(connections: NonZeroUsize, streams: NonZeroUsize) -> Result<(), String> {
    let all = (connections.get() as u64).saturating_mul(streams.get() as u64);
    if all > CONNECTIONS_MAX {
        return Err(format!("--connections with --streams each are {all} streams, of {CONNECTIONS_MAX} at most"));
    }
    Ok(())
}

/// That no thread is without a connection.
pub(crate) fn check_threads(threads: NonZeroUsize, connections: NonZeroUsize) -> Result<(), String> {
    if threads > connections {
        return Err("each of --threads needs at least one of --connections".to_owned());
    }
    Ok(())
}

/// An owner, as a header takes it.
pub(crate) fn owner(text: &str) -> anyhow::Result<String> {
    ensure!(!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()), "an owner is visible ASCII here");
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_within_its_bounds_or_is_told_them() {
        assert_eq!([number::<7>("1").unwrap().get(), number::<7>("7").unwrap().get()], [1, 7]);
        for wrong in ["0", "8", "-1", "", "x", "1.5", "99999999999999999999"] {
            let error = count::<7>(wrong).unwrap_err().to_string();
            assert_eq!(error, "it is a whole number from 1 to 7", "{wrong:?}");
        }
        assert_eq!((body("0").unwrap(), revision("9223372036854775807").unwrap()), (0, i64::MAX));
        assert!(body("1073741825").is_err() && revision("9223372036854775808").is_err() && revision("0").is_err());
        assert!(status("99").is_err() && status("1000").is_err() && status("503").is_ok());
    }
}
