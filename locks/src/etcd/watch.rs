//! A watch on one endpoint.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use etcd_client::{Client, WatchOptions, WatchRequestSender, WatchResponse, WatchResponseStream};
use fencepost_policy::Revision;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::endpoint::Connection;
use super::endpoints::Endpoints;
use super::failure::Failure;
use super::query::{end, key_value, revision, signed};
use crate::store::{Event, RangeWatch, StoreError, Watch, WatchNews};

/// How long all endpoints together may take to begin a watch, beside what each may take for its
/// ranges.
pub(super) const WATCH_TIMEOUT: Duration = Duration::from_secs(3);

/// How long an endpoint may take to answer the first request of a store's watch: a stopped member
/// never does.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_millis(500);

/// How much longer it may take for each range.
const CREATE_TIMEOUT_PER_RANGE: Duration = Duration::from_millis(2);

/// The largest message that is taken: a transaction may delete many keys.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// How long etcd may take to tell the past of a watch. It looks at watches that are behind every
/// 100 ms, at so many at a time, and does not say when one has caught up: 3.4.23 and 3.5.1 answer a
/// request for progress at once. Until then events come late.
const CATCH_UP_TIME: Duration = Duration::from_millis(200);
const CAUGHT_UP_AT_A_TIME: usize = 512;

/// A running watch of [`super::EtcdStore`], on one endpoint: it ends when that is suspect, to be
/// begun anew on another.
#[derive(Debug)]
pub struct EtcdWatch {
    endpoints: Arc<Endpoints>,
    index: usize,
    /// `None` until it has begun.
    connection: Option<Arc<Connection>>,
    /// Kept, so that the stream stays open in this direction too.
    requests: WatchRequestSender,
    responses: WatchResponseStream,
    /// Changes when the endpoint becomes suspect. A watch on a member that was stopped or cut off
    /// stays silent for ever, so it can't find out by itself.
    suspicions: watch::Receiver<u64>,
    /// For each range, the first revision whose events are still to come. etcd before 3.4.38 and
    /// 3.5.22 can send older ones again, after a snapshot or on a watch from the future; they are
    /// left out. It never spreads a revision over two messages, unless asked to.
    next: Vec<Revision>,
    /// Read from the stream, not told yet.
    news: VecDeque<WatchNews>,
    /// When all ranges have caught up, until that has been told.
    catches_up_at: Option<Instant>,
    ended: Option<StoreError>,
}

impl EtcdWatch {
    /// Starts a watch on one endpoint or another, by the deadline.
    ///
    /// # Errors
    /// [`Failure::Denied`] or [`Failure::Store`].
    pub(super) async fn begin(
        endpoints: &Arc<Endpoints>,
        ranges: &[RangeWatch],
        open_timeout: Duration,
        deadline: Instant,
    ) -> Result<EtcdWatch, Failure> {
        endpoints
            .rotate(false, deadline, |index| {
                EtcdWatch::start(endpoints, index, ranges, open_timeout)
            })
            .await
    }

    /// Starts a watch on an endpoint; returns once all ranges are confirmed.
    async fn start(
        endpoints: &Arc<Endpoints>,
        index: usize,
        ranges: &[RangeWatch],
        open_timeout: Duration,
    ) -> Result<EtcdWatch, Failure> {
        let watches = &endpoints.get(index).watches;
        let limit = open_timeout
            + CREATE_TIMEOUT_PER_RANGE * u32::try_from(ranges.len()).unwrap_or(u32::MAX);
        let create = |client| EtcdWatch::create(endpoints, index, client, ranges);
        let (connection, outcome) = watches.call(limit, create).await;
        match outcome {
            Ok(watch) => {
                endpoints.watched(index);
                Ok(EtcdWatch { connection: Some(connection), ..watch })
            }
            Err(failure) => {
                endpoints.failed(index, watches, &connection, &failure);
                Err(failure)
            }
        }
    }

    async fn create(
        endpoints: &Arc<Endpoints>,
        index: usize,
        client: Client,
        ranges: &[RangeWatch],
    ) -> Result<EtcdWatch, Failure> {
        let suspicions = endpoints.get(index).suspicions();
        let (requests, responses) = open(client, ranges).await?;
        let mut watch = EtcdWatch {
            endpoints: Arc::clone(endpoints),
            index,
            connection: None,
            requests,
            responses,
            suspicions,
            next: ranges.iter().map(|range| range.from).collect(),
            news: VecDeque::new(),
            catches_up_at: None,
            ended: None,
        };
        watch.create_rest(ranges).await?;
        let rounds = u32::try_from(1 + ranges.len() / CAUGHT_UP_AT_A_TIME).unwrap_or(u32::MAX);
        watch.catches_up_at = Some(Instant::now() + CATCH_UP_TIME.saturating_mul(rounds));
        Ok(watch)
    }

    /// Asks for all ranges but the first, and reads what comes meanwhile: with thousands of ranges,
    /// neither direction has room for all of it.
    async fn create_rest(&mut self, ranges: &[RangeWatch]) -> Result<(), Failure> {
        let mut asked = 1;
        let mut confirmed = 0;
        while confirmed < ranges.len() {
            tokio::select! {
                response = self.responses.message() => {
                    let response = response?.ok_or_else(stream_ended)?;
                    confirmed += usize::from(response.created());
                    self.take(&response)?;
                }
                _ = self.suspicions.changed() => return Err(suspect()),
                sent = ask(&mut self.requests, asked, ranges), if asked < ranges.len() => {
                    // Why the stream takes no more, only its other direction tells.
                    asked = if sent.is_ok() { asked + 1 } else { ranges.len() };
                }
            }
        }
        Ok(())
    }

    /// Takes in one message.
    fn take(&mut self, response: &WatchResponse) -> Result<(), Failure> {
        if response.created() && response.canceled() {
            let failure = Failure::of_canceled(response.cancel_reason());
            if let Failure::Endpoint(why) = failure {
                return Err(Failure::Store(StoreError::Refused(why)));
            }
            return Err(failure);
        }
        let index =
            usize::try_from(response.watch_id() - 1).ok().filter(|&index| index < self.next.len());
        let range = index.ok_or_else(|| {
            // See `member_check`.
            match response.created() {
                true => Failure::NoMember,
                false => Failure::endpoint("news of a watch that nobody asked for"),
            }
        })?;
        if response.created() {
            let header =
                response.header().ok_or_else(|| Failure::endpoint("a watch without a header"))?;
            self.endpoints.check_cluster(header.cluster_id())?;
        }
        if response.canceled() {
            // A compaction is told with a header of revision 0; only this number tells it from
            // other reasons.
            if response.compact_revision() > 0 {
                self.news.push_back(WatchNews::Compacted { range });
                return Ok(());
            }
            return Err(Failure::of_canceled(response.cancel_reason()));
        }
        let mut events = response.events().iter().map(event).collect::<Result<Vec<_>, _>>()?;
        events.retain(|event| event.revision() >= self.next[range]);
        if let Some(last) = events.last() {
            self.next[range] = Revision::new(last.revision().get() + 1).unwrap_or(Revision::MAX);
            self.news.push_back(WatchNews::Events { range, events });
        }
        Ok(())
    }

    /// The next message, or why there will be none; `None` once all ranges have caught up, which
    /// comes behind the messages that are here.
    async fn receive(&mut self) -> Result<Option<WatchResponse>, Failure> {
        let catches_up = async {
            match self.catches_up_at {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            response = self.responses.message() => response?.map(Some).ok_or_else(stream_ended),
            _ = self.suspicions.changed() => Err(suspect()),
            () = catches_up => Ok(None),
        }
    }

    fn end(&mut self, failure: Failure) -> StoreError {
        let endpoint = self.endpoints.get(self.index);
        if let Some(connection) = &self.connection {
            self.endpoints.failed(self.index, &endpoint.watches, connection, &failure);
        }
        let error = failure.at(&endpoint.address);
        self.ended = Some(error.clone());
        error
    }
}

impl Watch for EtcdWatch {
    async fn next(&mut self) -> Result<WatchNews, StoreError> {
        loop {
            if let Some(news) = self.news.pop_front() {
                return Ok(news);
            }
            if let Some(error) = &self.ended {
                return Err(error.clone());
            }
            let taken = match self.receive().await {
                Ok(Some(response)) => self.take(&response),
                Ok(None) => {
                    self.catches_up_at = None;
                    return Ok(WatchNews::CaughtUp);
                }
                Err(failure) => Err(failure),
            };
            if let Err(failure) = taken {
                return Err(self.end(failure));
            }
        }
    }
}

/// Opens a stream with the watch of the first range.
async fn open(
    client: Client,
    ranges: &[RangeWatch],
) -> Result<(WatchRequestSender, WatchResponseStream), Failure> {
    let mut client = client.watch_client().max_decoding_message_size(MESSAGE_BYTES_MAX);
    let stream = client.watch(ranges[0].range.first_key(), Some(options(0, &ranges[0]))).await?;
    Ok(stream.split())
}

/// Asks for the watch of one more range.
async fn ask(
    requests: &mut WatchRequestSender,
    index: usize,
    ranges: &[RangeWatch],
) -> Result<(), Failure> {
    let Some(range) = ranges.get(index) else { return Ok(()) };
    Ok(requests.watch(range.range.first_key(), Some(options(index, range))).await?)
}

/// The watch's id is its place among the ranges, from 1: 0 would let etcd choose.
fn options(index: usize, range: &RangeWatch) -> WatchOptions {
    let id = i64::try_from(index + 1).expect("there are fewer ranges than that");
    // One earlier, and what happened then is left out. A watch that etcd before 3.4.36 and 3.5.18
    // begins at the very revision up to which it has compacted is not told of what was deleted
    // there (etcd-io/etcd#19179); this one is told that it is compacted.
    let start = range.from.before().unwrap_or(Revision::MIN);
    let options = WatchOptions::new().with_watch_id(id).with_start_revision(signed(start));
    match end(&range.range) {
        Some(end) => options.with_range(end),
        None => options,
    }
}

/// An event as etcd tells it.
fn event(told: &etcd_client::Event) -> Result<Event, Failure> {
    let told = told.kv().ok_or_else(|| Failure::endpoint("an event without a key"))?;
    // A key that exists was written at least once. The library's `event_type` panics on a kind that
    // it does not know.
    if told.version() > 0 {
        return key_value(told.clone()).map(Event::Put);
    }
    Ok(Event::Delete {
        key: Bytes::copy_from_slice(told.key()),
        revision: revision(told.mod_revision())?,
    })
}

fn suspect() -> Failure {
    Failure::endpoint("it no longer answers in time")
}

fn stream_ended() -> Failure {
    Failure::endpoint("the watch's stream ended")
}
