//! What is asked of etcd in one request, and its answer.

use std::sync::Arc;

use bytes::Bytes;
use etcd_client::{
    Client, Compare, CompareOp, GetOptions, GetResponse, ResponseHeader, Txn, TxnOp, TxnOpResponse,
};
use fencepost_policy::Revision;

use super::failure::Failure;
use crate::store::{
    Answerer, KeyRange, KeyValue, READ_BYTES_MAX, RangeAnswer, RangeRead, Swap, Swapped, Wanted,
};

/// The most operations that etcd takes in one transaction (`--max-txn-ops`).
pub(super) const QUERY_RANGES_MAX: usize = 128;

/// Ranges to read in one request: at one revision, by quorum.
#[derive(Debug, Clone)]
pub(super) struct Query(Arc<[Get]>);

/// One of them.
#[derive(Debug, Clone)]
struct Get {
    range: KeyRange,
    key: Vec<u8>,
    options: GetOptions,
}

/// What etcd answers.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) by: Answerer,
    /// The store's revision when it answered.
    pub(super) revision: Revision,
    /// One for each range asked for.
    pub(super) ranges: Vec<RangeAnswer>,
}

impl Query {
    /// What these ranges are: now, or at a revision.
    pub(super) fn ranges(reads: &[RangeRead], at: Option<Revision>) -> Query {
        debug_assert!((1..=QUERY_RANGES_MAX).contains(&reads.len()));
        Query(reads.iter().map(|read| Get::new(read, at)).collect())
    }

    /// No range. Needs neither a quorum nor a permission; a status needs root's role in 3.5.28 and
    /// 3.6, until etcd-io/etcd#21666.
    pub(super) fn of_nothing() -> Query {
        Query([].into())
    }

    /// What a key was at a revision.
    pub(super) fn key_at(key: &[u8], at: Revision) -> Query {
        let options = GetOptions::new().with_revision(signed(at));
        let range = KeyRange::Key(key.into());
        Query([Get { range, key: key.to_vec(), options }].into())
    }

    /// The first of the ranges.
    pub(super) fn first_range(&self) -> KeyRange {
        self.0[0].range.clone()
    }

    /// Asks.
    pub(super) async fn send(&self, client: Client) -> Result<Answer, Failure> {
        let mut client = client.kv_client().max_decoding_message_size(READ_BYTES_MAX);
        if let [get] = &*self.0 {
            let mut response = client.get(get.key.clone(), Some(get.options.clone())).await?;
            let header = response.take_header();
            return Answer::new(header.as_ref(), vec![range_answer(response)?]);
        }
        let gets: Vec<TxnOp> = self
            .0
            .iter()
            .map(|get| TxnOp::get(get.key.clone(), Some(get.options.clone())))
            .collect();
        let response = client.txn(Txn::new().and_then(gets)).await?;
        let ranges = response.op_responses().into_iter().map(|response| match response {
            TxnOpResponse::Get(response) => range_answer(response),
            TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_) => {
                Err(malformed())
            }
        });
        let ranges = ranges.collect::<Result<Vec<_>, _>>()?;
        if ranges.len() == self.0.len() {
            Answer::new(response.header(), ranges)
        } else {
            Err(malformed())
        }
    }
}

impl Answer {
    fn new(header: Option<&ResponseHeader>, ranges: Vec<RangeAnswer>) -> Result<Answer, Failure> {
        let header = header.ok_or_else(malformed)?;
        let by = Answerer {
            cluster: header.cluster_id(),
            member: header.member_id(),
            term: header.raft_term(),
        };
        Ok(Answer { by, revision: revision(header.revision())?, ranges })
    }
}

impl Get {
    fn new(read: &RangeRead, at: Option<Revision>) -> Get {
        let mut options = GetOptions::new();
        if let Some(end) = end(&read.range) {
            options = options.with_range(end);
        }
        if let Some(at) = at {
            options = options.with_revision(signed(at));
        }
        options = match read.wanted {
            Wanted::All => options,
            Wanted::Count => options.with_count_only(),
        };
        Get { range: read.range.clone(), key: read.range.first_key().to_vec(), options }
    }
}

/// Writes a key on a condition.
pub(super) async fn swap(client: Client, swap: &Swap) -> Result<(u64, Swapped), Failure> {
    let expected = swap.expected.map_or(0, signed);
    let is_as_expected = Compare::mod_revision(&*swap.key, CompareOp::Equal, expected);
    let names = || {
        let options = end(&swap.read).into_iter().fold(GetOptions::new(), GetOptions::with_range);
        TxnOp::get(swap.read.first_key(), Some(options.with_keys_only()))
    };
    let write = match &swap.value {
        Some(value) => TxnOp::put(&*swap.key, &**value, None),
        None => TxnOp::delete(&*swap.key, None),
    };
    let txn = Txn::new().when([is_as_expected]).and_then([write, names()]).or_else([names()]);
    let response = client.kv_client().txn(txn).await?;
    let Some(TxnOpResponse::Get(read)) = response.op_responses().pop() else {
        return Err(malformed());
    };
    let Answer { by, revision, mut ranges } =
        Answer::new(response.header(), vec![range_answer(read)?])?;
    let names = ranges.swap_remove(0).keys.into_iter().map(|found| found.key).collect();
    let is_written = response.succeeded();
    Ok((by.cluster, Swapped { is_written, revision, names, by: Some(by) }))
}

/// What etcd answers for one range.
fn range_answer(mut response: GetResponse) -> Result<RangeAnswer, Failure> {
    let count = u64::try_from(response.count()).map_err(|_| malformed())?;
    let keys = response.take_kvs().into_iter().map(key_value).collect::<Result<_, _>>()?;
    Ok(RangeAnswer { keys, count })
}

/// Where a range ends, as etcd has it: the first key beyond the range, `\0` for a range without
/// end, nothing for a single key.
pub(super) fn end(range: &KeyRange) -> Option<Vec<u8>> {
    let KeyRange::Prefix(prefix) = range else { return None };
    // Bytes that can't be raised fall away: what begins with `a\xff` ends before `b`.
    let Some(raised) = prefix.iter().rposition(|&byte| byte < u8::MAX) else {
        return Some(vec![0]);
    };
    let mut end = prefix[..=raised].to_vec();
    end[raised] += 1;
    Some(end)
}

/// A key as etcd tells it.
pub(super) fn key_value(read: etcd_client::KeyValue) -> Result<KeyValue, Failure> {
    let (created, modified) = (revision(read.create_revision())?, revision(read.mod_revision())?);
    let version = u64::try_from(read.version()).map_err(|_| malformed())?;
    let (key, value) = read.into_key_value();
    Ok(KeyValue { key: Bytes::from(key), value: Bytes::from(value), created, modified, version })
}

/// A revision as etcd tells it.
pub(super) fn revision(number: i64) -> Result<Revision, Failure> {
    u64::try_from(number).ok().and_then(Revision::new).ok_or_else(malformed)
}

/// A revision as etcd is told it.
pub(super) fn signed(revision: Revision) -> i64 {
    i64::try_from(revision.get()).expect("a revision fits etcd's signed numbers")
}

/// It speaks gRPC, but not as etcd does.
fn malformed() -> Failure {
    Failure::endpoint("an answer that etcd would not give")
}
