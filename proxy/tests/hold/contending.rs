//! Three holders contend for a lock, each with a command that writes through the proxy as fast as it can, while one after
//! the other is paused, killed and robbed of its lease, and etcd with them.

use fencepost_testsupport::{Worker, eventually};
use rustix::process::Signal;

use crate::holder::Holder;
use crate::proxy::Proxy;
use crate::stage::Stage;

/// Writes until it is ended, whatever it is answered.
const WRITER: &str = r#"while :; do
    curl -s -o /dev/null -X POST -H "Fence-Owner: $FENCE_OWNER" -H "Fence-Revision: $FENCE_REVISION" $url/write
done"#;

const OWNERS: [&str; 3] = ["shard-1", "shard-2", "shard-3"];

/// Whoever holds the lock now, by its place among the owners, and the revision of its tenure; later than that one.
async fn holder_after(stage: &Stage, revision: i64) -> (usize, i64) {
    eventually("the lock is held anew", async || {
        let keys = stage.keys().await;
        let record = keys.iter().find(|record| record.key() == crate::stage::LOCK.as_bytes())?;
        let place = OWNERS.iter().position(|owner| owner.as_bytes() == record.value())?;
        (record.create_revision() > revision).then_some((place, record.create_revision()))
    })
    .await
}

/// Waits until a write of this tenure has reached the worker.
async fn until_written(worker: &Worker, revision: i64) {
    let of_tenure = revision.to_string();
    worker
        .wait_until("a write of the tenure", |seen| {
            seen.iter().any(|seen| seen.header("fence-revision") == Some(of_tenure.as_str()))
        })
        .await;
}

#[tokio::test]
async fn tenures_never_interleave_at_the_worker_whatever_happens_to_holders_and_store() {
    let stage = Stage::set().await;
    let worker = Worker::start().await;
    let proxy = Proxy::serve(&stage, &worker).await;
    let script = format!("url={}; {WRITER}", proxy.url());
    let start = |owner: &str| Holder::start(&stage, owner, &["--ttl", "2s", "--queue", "--grace", "200ms"], &script);
    let mut holders = OWNERS.map(start);

    let mut revision = 0;
    for fault in ["holder paused", "lease revoked", "holder killed", "etcd paused", "command paused", "asked to end"] {
        let (place, tenure) = holder_after(&stage, revision).await;
        revision = tenure;
        until_written(&worker, revision).await;
        match fault {
            "holder paused" => {
                holders[place].pause().await;
                let (_, next) = holder_after(&stage, revision).await;
                until_written(&worker, next).await;
                holders[place].resume();
                revision = next - 1;
            }
            "lease revoked" => {
                let record = stage.until_held_by(OWNERS[place]).await;
                stage.client().lease_revoke(record.lease()).await.unwrap();
            }
            "holder killed" => {
                holders[place].kill();
                holders[place] = start(OWNERS[place]);
            }
            "etcd paused" => {
                let times_lost = |holder: &Holder| holder.log().matches("no renewal was confirmed in time").count();
                let before = times_lost(&holders[place]);
                stage.etcd.pause().await;
                eventually("the lock is lost", async || (times_lost(&holders[place]) > before).then_some(())).await;
                stage.etcd.resume();
            }
            "command paused" => {
                let children = holders[place].children();
                let command = children.iter().find(|(_, arguments)| arguments.starts_with("sh\0"));
                rustix::process::kill_process_group(command.unwrap().0, Signal::STOP).unwrap();
                stage.client().delete(crate::stage::LOCK, None).await.unwrap();
            }
            _ => {
                holders[place].signal(Signal::TERM);
                holders[place].status().await;
                holders[place] = start(OWNERS[place]);
            }
        }
    }
    let (_, last) = holder_after(&stage, revision).await;
    until_written(&worker, last).await;
    for holder in &mut holders {
        holder.signal(Signal::TERM);
        holder.status().await;
    }
    stage.is_left_clean().await;

    let revision_of =
        |seen: &fencepost_testsupport::Seen| seen.header("fence-revision").unwrap().parse::<i64>().unwrap();
    let seen = worker.seen();
    let revisions: Vec<i64> = seen.iter().map(revision_of).collect();
    assert!(revisions.is_sorted(), "{revisions:?}");
    let mut tenures = revisions.clone();
    tenures.dedup();
    println!("{} writes of {} tenures", revisions.len(), tenures.len());
    assert!(tenures.len() >= 7, "{tenures:?}");
    // Nothing begins before all of an earlier tenure has been answered.
    for pair in seen.windows(2).filter(|pair| revision_of(&pair[0]) < revision_of(&pair[1])) {
        assert!(pair[0].ended.is_some_and(|ended| ended <= pair[1].began), "{pair:?}");
    }
}
