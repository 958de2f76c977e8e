//! What a process has once, whatever configuration is in force.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use fencepost_fence::enter::WAITING_MAX;
use fencepost_locks::MemoryStore;
use fencepost_policy::Rejection;
use tokio::sync::{Semaphore, watch};

use crate::access_log::Closing;
use crate::layout_hint::LayoutHints;
use crate::lock_sources::LockSources;
use crate::log_throttle::LogThrottle;
use crate::logging::Lost;
use crate::metrics::Metrics;
use crate::observe::{Observations, RouteLabel};
use crate::tenure_log::Memory;
use crate::thread_liveness::ThreadLiveness;
use crate::tls_files::TlsFiles;
use crate::upstream::ConnectionQuota;
use crate::upstreams::Identities;

/// What a process has once, whatever configuration is in force.
pub struct Process {
    /// Every metric.
    pub metrics: Metrics,
    /// The TLS files that are followed.
    pub tls_files: TlsFiles,
    /// What the connections to workers are made of.
    pub identities: Identities,
    /// Which refusals are logged.
    pub log: LogThrottle,
    /// Which locks may have another layout than their routes say.
    pub layout_hints: Arc<LayoutHints>,
    /// What operators can look at; `None` without an admin listener.
    pub observations: Option<Arc<Observations>>,
    /// What the decisions say of a request that has no route.
    pub unrouted_label: Arc<RouteLabel>,
    /// What is kept for a later process, if there is a `state_dir`.
    pub memory: Option<Memory>,
    /// Every source that anybody still uses.
    pub sources: LockSources,
    /// Whether worker threads make progress.
    pub pulses: ThreadLiveness,
    /// The requests that wait at barriers.
    pub waiting_room: Arc<Semaphore>,
    /// When it started.
    pub started: SystemTime,
    /// Why the configuration file, as it was last read, was rejected; empty if it was not.
    rejection: Mutex<Vec<String>>,
    draining: AtomicBool,
    /// Whether a thread has ended with requests that may run on at the worker.
    has_unseen: AtomicBool,
    /// Whether whatever still waits before the worker is refused too.
    over: watch::Sender<bool>,
    /// The access logs, of configurations that are in force no more too.
    pub closing: Closing,
    /// How many of their lines are lost.
    pub access_lines_lost: Lost,
    labels: Mutex<HashMap<String, Arc<RouteLabel>>>,
}

impl Process {
    /// A process that serves nobody, to look at a configuration with.
    ///
    /// # Errors
    /// As for [`Process::new`].
    pub fn alone() -> Result<Process, prometheus::Error> {
        Process::new(None, MemoryStore::new(), None, ConnectionQuota::unlimited())
    }

    /// A process at its start; `store` is behind sources of kind `memory`, and it has as many
    /// connections to workers as `to_workers` has.
    ///
    /// # Errors
    /// Never in practice: the names of metrics are constants.
    pub fn new(
        memory: Option<Memory>,
        store: MemoryStore,
        observations: Option<Arc<Observations>>,
        to_workers: ConnectionQuota,
    ) -> Result<Process, prometheus::Error> {
        let metrics = Metrics::new()?;
        let tls_files = TlsFiles::new(metrics.tls().clone());
        Ok(Process {
            identities: Identities::new(tls_files.clone(), to_workers),
            sources: LockSources::new(store, tls_files.clone()),
            tls_files,
            metrics,
            log: LogThrottle::new(),
            layout_hints: Arc::default(),
            observations,
            unrouted_label: Arc::new(RouteLabel::unrouted()),
            memory,
            pulses: ThreadLiveness::default(),
            waiting_room: Arc::new(Semaphore::new(WAITING_MAX)),
            started: SystemTime::now(),
            rejection: Mutex::default(),
            draining: AtomicBool::new(false),
            has_unseen: AtomicBool::new(false),
            over: watch::Sender::new(false),
            closing: Closing::default(),
            access_lines_lost: Lost::default(),
            labels: Mutex::default(),
        })
    }

    /// Whether the `state_dir`, if there is one, does not take what is written to it.
    pub fn state_dir_fails(&self) -> bool {
        self.memory.as_ref().is_some_and(Memory::is_failing)
    }

    /// Notes why the configuration file, as it was just read, was rejected; nothing, if it was not.
    pub fn set_rejection(&self, problems: Vec<String>) {
        self.metrics.set_config_rejected(!problems.is_empty());
        *self.rejection.lock().unwrap_or_else(PoisonError::into_inner) = problems;
    }

    /// Why the configuration file, as it was last read, was rejected; empty if it was not.
    pub fn rejection(&self) -> Vec<String> {
        self.rejection.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What decisions say of a route, once it is in force; until now so many of its requests were
    /// admitted in that mode. While its mode stays what it is, so does the time since when it is in
    /// it.
    pub fn label(
        &self,
        name: &str,
        mode: &'static str,
        source: Option<&str>,
        admitted: u64,
    ) -> Arc<RouteLabel> {
        let labels = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        let before = labels
            .get(name)
            .filter(|label| label.mode == mode && label.source.as_deref() == source);
        if let Some(label) = before {
            return Arc::clone(label);
        }
        Arc::new(RouteLabel::new(name, mode, source, admitted))
    }

    /// These routes are in force from now on.
    pub fn keep_labels(&self, routes: impl Iterator<Item = Arc<RouteLabel>>) {
        let labels = routes.map(|label| (label.name.clone(), label)).collect();
        *self.labels.lock().unwrap_or_else(PoisonError::into_inner) = labels;
    }

    /// Whether the process goes on no longer: whatever still arrives is refused.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// From now on, whatever still arrives is refused.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// A thread ends, and with it the count of a request that may run on at the worker.
    pub fn leave_unseen(&self) {
        self.has_unseen.store(true, Ordering::Relaxed);
    }

    /// Whether a thread has ended with requests that may run on at the worker.
    pub fn has_unseen(&self) -> bool {
        self.has_unseen.load(Ordering::Relaxed)
    }

    /// From now on, whatever has not got to the worker by itself is refused as well. Says whether
    /// anything waits that is told so now.
    pub fn end_waits(&self) -> bool {
        let waits = self.over.receiver_count() > 0;
        self.over.send_replace(true);
        waits
    }

    /// Completes once whatever has not got to the worker by itself is refused
    /// ([`Process::end_waits`]).
    pub async fn over(&self) {
        let mut over = self.over.subscribe();
        over.wait_for(|over| *over)
            .await
            .map(drop)
            .expect("a process outlives those who borrow it");
    }

    /// Waits for what a request needs before anything of it goes to the worker.
    ///
    /// # Errors
    /// `draining` if the process ends before that ([`Process::end_waits`]).
    pub async fn unless_over<T>(&self, wait: impl Future<Output = T>) -> Result<T, Rejection> {
        tokio::select! {
            biased;
            done = wait => Ok(done),
            () = self.over() => Err(Rejection::Draining),
        }
    }
}
