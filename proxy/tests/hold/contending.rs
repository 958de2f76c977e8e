//! Three holders contend for a lock, each with a command that writes through the proxy as fast as
//! it can, while one after the other is paused, killed, cut off and robbed of its lease, and etcd
//! with them.

use std::path::PathBuf;

use fencepost_tests::{EtcdVersion, Relay, Seen, Worker, eventually};
use rustix::process::Signal;

use crate::holder::Holder;
use crate::proxy::Proxy;
use crate::stage::Stage;

/// Writes until it is ended, whatever it is answered.
const WRITER: &str = r#"while :; do
    curl -s -o /dev/null -X POST -H "Fence-Owner: $FENCE_OWNER" -H "Fence-Revision: $FENCE_REVISION" $url/write
done"#;

const OWNERS: [&str; 3] = ["shard-1", "shard-2", "shard-3"];

/// A tenure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    /// Its holder's place among the owners.
    place: usize,
    revision: i64,
    lease: i64,
}

/// The present holder of the lock, once its revision is later than this one.
async fn holder_after(stage: &Stage, revision: i64) -> Held {
    eventually("the lock is held anew", async || {
        let keys = stage.keys().await;
        let record = keys.iter().find(|record| record.key() == crate::stage::LOCK.as_bytes())?;
        let place = OWNERS.iter().position(|owner| owner.as_bytes() == record.value())?;
        let held = Held { place, revision: record.create_revision(), lease: record.lease() };
        (held.revision > revision).then_some(held)
    })
    .await
}

/// Waits until a write of this tenure, or of one after it, has reached the worker.
async fn until_written(worker: &Worker, revision: i64) {
    worker
        .wait_until("a write of the tenure", |seen| {
            seen.iter().any(|seen| revision_of(seen) >= revision)
        })
        .await;
}

fn revision_of(seen: &Seen) -> i64 {
    seen.header("fence-revision").unwrap().parse().unwrap()
}

/// A fault that hits the holder of the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    HolderPaused,
    LeaseRevoked,
    HolderKilled,
    EtcdPaused,
    EtcdRestarted,
    /// What it sends to etcd, and what etcd sends to it, gets lost.
    Blackholed,
    /// Its connections to etcd are closed, and it gets no new ones.
    CutOff,
    CommandPaused,
    AskedToEnd,
}

const FAULTS: [Fault; 9] = [
    Fault::HolderPaused,
    Fault::LeaseRevoked,
    Fault::HolderKilled,
    Fault::EtcdPaused,
    Fault::EtcdRestarted,
    Fault::Blackholed,
    Fault::CutOff,
    Fault::CommandPaused,
    Fault::AskedToEnd,
];

/// Three holders, each with a way to etcd of its own.
struct Contenders {
    ways: Vec<Relay>,
    holders: Vec<Holder>,
    script: String,
    directory: PathBuf,
}

impl Contenders {
    async fn start(stage: &Stage, script: String) -> Contenders {
        let mut contenders =
            Contenders { ways: Vec::new(), holders: Vec::new(), script, directory: stage.file("") };
        for place in 0..OWNERS.len() {
            let etcd = stage.etcd.endpoint();
            contenders
                .ways
                .push(Relay::start(etcd.trim_start_matches("http://").parse().unwrap()).await);
            let holder = contenders.one(place);
            contenders.holders.push(holder);
        }
        contenders
    }

    fn one(&self, place: usize) -> Holder {
        let etcd = format!("http://{}", self.ways[place].address());
        let arguments = ["--ttl", "3s", "--queue", "--grace", "200ms"];
        Holder::start_at(&etcd, &self.directory, OWNERS[place], &arguments, &self.script)
    }

    /// How often the holder at that place has lost the lock so far.
    fn times_lost(&self, place: usize) -> usize {
        self.holders[place].log().matches("lost the lock").count()
    }

    /// Inflicts the fault on the holder of the lock, and undoes it. `lost_before` is how often that
    /// holder had lost the lock by the time it surely held it. Returns the revision after which the
    /// next tenure comes. `None` if the lock was lost before the fault, as it may be on a busy
    /// machine.
    async fn suffer(
        &mut self,
        stage: &mut Stage,
        fault: Fault,
        held: Held,
        lost_before: usize,
    ) -> Option<i64> {
        let Held { place, revision, lease } = held;
        let holder = &self.holders[place];
        let is_lost = async || (self.times_lost(place) > lost_before).then_some(());
        match fault {
            Fault::HolderPaused => {
                holder.pause().await;
                let next = holder_after(stage, revision).await;
                holder.resume();
                return Some(next.revision - 1);
            }
            Fault::LeaseRevoked => {
                stage.client().lease_revoke(lease).await.ok()?;
            }
            Fault::HolderKilled => {
                self.holders[place].kill();
                self.holders[place] = self.one(place);
            }
            Fault::EtcdPaused => {
                stage.etcd.pause().await;
                eventually("the lock is lost", is_lost).await;
                stage.etcd.resume();
            }
            Fault::EtcdRestarted => {
                stage.etcd.kill();
                stage.etcd.restart().await;
                // If it comes back soon enough, the tenure goes on.
                return Some(revision - 1);
            }
            Fault::Blackholed | Fault::CutOff => {
                let way = &self.ways[place];
                if fault == Fault::CutOff {
                    way.cut().await
                } else {
                    way.freeze().await
                }
                eventually("the lock is lost", is_lost).await;
                let next = holder_after(stage, revision).await;
                self.ways[place].restore().await;
                return Some(next.revision - 1);
            }
            Fault::CommandPaused => {
                let children = holder.children();
                let (command, _) =
                    children.iter().find(|(_, arguments)| arguments.starts_with("sh\0"))?;
                rustix::process::kill_process_group(*command, Signal::STOP).ok()?;
                stage.client().delete(crate::stage::LOCK, None).await.unwrap();
            }
            Fault::AskedToEnd => {
                holder.signal(Signal::TERM);
                self.holders[place].status().await;
                self.holders[place] = self.one(place);
            }
        }
        Some(revision)
    }
}

#[tokio::test]
async fn tenures_never_interleave_at_the_worker() {
    for version in EtcdVersion::ALL {
        contend(version).await;
    }
}

async fn contend(version: EtcdVersion) {
    let mut stage = Stage::set_with(version).await;
    let worker = Worker::start().await;
    let proxy = Proxy::serve(&stage, &worker).await;
    let mut contenders = Contenders::start(&stage, format!("url={}; {WRITER}", proxy.url())).await;

    let mut after = 0;
    for fault in FAULTS {
        after = loop {
            let held = holder_after(&stage, after).await;
            until_written(&worker, held.revision).await;
            // A busy machine may have cost it the lock meanwhile, or may do so at any time from now
            // on.
            let lost_before = contenders.times_lost(held.place);
            if holder_after(&stage, after).await != held {
                continue;
            }
            if let Some(next) = contenders.suffer(&mut stage, fault, held, lost_before).await {
                break next;
            }
        };
    }
    let last = holder_after(&stage, after).await;
    until_written(&worker, last.revision).await;
    for holder in &mut contenders.holders {
        holder.signal(Signal::TERM);
        holder.status().await;
    }
    stage.is_left_clean().await;
    tenures_did_not_interleave(&worker.seen());
}

fn tenures_did_not_interleave(seen: &[Seen]) {
    let revisions: Vec<i64> = seen.iter().map(revision_of).collect();
    assert!(revisions.is_sorted(), "{revisions:?}");
    let mut tenures = revisions.clone();
    tenures.dedup();
    println!("{} writes of {} tenures", revisions.len(), tenures.len());
    // Each fault but the restart of etcd is the end of one.
    assert!(tenures.len() >= FAULTS.len(), "{tenures:?}");
    // Nothing begins before all of an earlier tenure has been answered.
    for pair in seen.windows(2).filter(|pair| revision_of(&pair[0]) < revision_of(&pair[1])) {
        assert!(pair[0].ended.is_some_and(|ended| ended <= pair[1].began), "{pair:?}");
    }
}
