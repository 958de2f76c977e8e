//! How long a waiting successor is kept from the worker: from its predecessor's release to its own first request there.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

use crate::latency::Latencies;
use crate::lock::Handoff;
use crate::worker::{Event, Moment};

/// Handoffs whose successor's first request was done. Each began with an empty barrier: whatever the predecessor had sent was
/// answered.
#[derive(Debug, Default)]
pub(crate) struct Handoffs {
    /// Those whose first request has not been looked for at the worker, or not been found, under the successor's revision.
    unseen: BTreeMap<i64, Handoff>,
    seen: u64,
    release_to_worker: Latencies,
    /// What etcd takes to commit the release and to tell the successor.
    release_to_told: Latencies,
    /// What etcd takes to give the lock to the successor.
    told_to_held: Latencies,
    /// What the proxy takes, and the way to it and on.
    held_to_worker: Latencies,
}

impl Handoffs {
    /// One more, to a successor that got this revision.
    pub(crate) fn add(&mut self, revision: i64, handoff: Handoff) {
        self.unseen.insert(revision, handoff);
    }

    /// Finds the successors' first requests in the worker's log.
    pub(crate) fn worker_saw(&mut self, log: &[Event]) {
        for event in log.iter().filter(|event| event.moment == Moment::Begins) {
            if let Some(handoff) = self.unseen.remove(&event.revision) {
                self.measure(handoff, event);
            }
        }
    }

    fn measure(&mut self, handoff: Handoff, first: &Event) {
        let Handoff { released, told, held } = handoff;
        self.seen += 1;
        self.release_to_worker.add(first.at - released);
        self.release_to_told.add(told - released);
        self.told_to_held.add(held - told);
        self.held_to_worker.add(first.at - held);
    }

    /// The whole time first, then its parts.
    fn spans(&self) -> [(&'static str, &Latencies); 4] {
        [
            ("release_to_worker", &self.release_to_worker),
            ("release_to_told", &self.release_to_told),
            ("told_to_held", &self.told_to_held),
            ("held_to_worker", &self.held_to_worker),
        ]
    }

    /// The same for a program.
    pub(crate) fn as_json(&self) -> Value {
        let mut json = json!({ "count": self.seen });
        for (name, latencies) in self.spans() {
            json[name] = json!(latencies.percentiles().map(|percentiles| percentiles.as_json()));
        }
        json
    }
}

/// Nothing if nothing was measured.
impl fmt::Display for Handoffs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.seen == 0 {
            return Ok(());
        }
        writeln!(f, "handoffs           {}, to successors that waited, the barrier being empty", self.seen)?;
        for (index, (name, latencies)) in self.spans().into_iter().enumerate() {
            let indent = if index == 0 { "" } else { "  " };
            let label = format!("{indent}{}", name.replace('_', " "));
            let percentiles = latencies.percentiles().expect("each handoff counts in each span");
            writeln!(f, "{label:<17}  {percentiles}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// The lock is released `at` milliseconds after the start; the successor is told after 1 ms and holds it after 3 ms.
    fn handoff(start: Instant, at: u64) -> Handoff {
        let after = |milliseconds| start + Duration::from_millis(at + milliseconds);
        Handoff { released: after(0), told: after(1), held: after(3) }
    }

    fn event(moment: Moment, start: Instant, at: u64, revision: i64) -> Event {
        Event { moment, at: start + Duration::from_millis(at), owner: "shard-1".to_owned(), revision }
    }

    fn maxima(handoffs: &Handoffs) -> [Option<u128>; 4] {
        let max = |latencies: &Latencies| latencies.percentiles().map(|percentiles| percentiles.max.as_millis());
        handoffs.spans().map(|(_, latencies)| max(latencies))
    }

    #[test]
    fn a_handoff_ends_when_the_successors_first_request_begins_at_the_worker() {
        let (start, mut handoffs) = (Instant::now(), Handoffs::default());
        handoffs.add(20, handoff(start, 100));
        let log = [
            event(Moment::Ends, start, 99, 10),
            event(Moment::Begins, start, 107, 20),
            event(Moment::Ends, start, 150, 20),
            event(Moment::Begins, start, 200, 20),
        ];
        handoffs.worker_saw(&log);
        assert_eq!(handoffs.seen, 1);
        assert_eq!(maxima(&handoffs), [Some(7), Some(1), Some(2), Some(4)]);
    }

    #[test]
    fn each_handoff_is_counted_once_and_no_other_request_is() {
        let (start, mut handoffs) = (Instant::now(), Handoffs::default());
        for number in 1..=5 {
            handoffs.add(number * 20, handoff(start, 0));
        }
        let log: Vec<Event> = (1..=8)
            .flat_map(|number| [Moment::Begins, Moment::Ends].map(|moment| event(moment, start, 10, number * 10)))
            .collect();
        handoffs.worker_saw(&log);
        assert_eq!(handoffs.seen, 4, "the one under 100 is not in the log");
        assert_eq!(handoffs.as_json()["count"], 4);
        assert!(handoffs.to_string().starts_with("handoffs           4, "), "{handoffs}");
    }

    #[test]
    fn the_whole_and_its_parts_are_told_to_people_and_programs() {
        let (start, mut handoffs) = (Instant::now(), Handoffs::default());
        handoffs.add(20, handoff(start, 0));
        handoffs.worker_saw(&[event(Moment::Begins, start, 7, 20)]);
        let told = handoffs.to_string();
        for line in [
            "\nrelease to worker  p50 7.000 ms  p90 7.000 ms  p99 7.000 ms",
            "\n  release to told  p50 1.000 ms",
            "\n  told to held     p50 2.000 ms",
            "\n  held to worker   p50 4.000 ms",
        ] {
            assert!(told.contains(line), "{line:?} is not in {told}");
        }
        let json = handoffs.as_json();
        for (name, seconds) in [
            ("release_to_worker", 0.007),
            ("release_to_told", 0.001),
            ("told_to_held", 0.002),
            ("held_to_worker", 0.004),
        ] {
            assert_eq!(json[name]["p99_seconds"], seconds, "{name}: {json:#}");
        }
    }

    #[test]
    fn without_a_worker_nothing_is_told_of_handoffs() {
        let mut handoffs = Handoffs::default();
        handoffs.add(20, handoff(Instant::now(), 0));
        assert_eq!(handoffs.to_string(), "");
        assert_eq!(handoffs.as_json()["release_to_worker"], Value::Null);
    }
}
