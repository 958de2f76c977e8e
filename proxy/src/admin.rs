//! The admin listener: is it alive, is it ready, what does it count, what does it know of each
//! lock.
//!
//! Reading is by GET; whatever changes something is by POST.

mod answers;
mod group;
mod locks;
mod observed;
mod origin;
mod paths;
mod pieces;
mod routes;
mod streams;
mod timeline;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_policy::LockKey;
use http::{HeaderMap, Method, Request, StatusCode};
use percent_encoding::percent_decode_str;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::active_config::ActiveConfig;
use crate::dashboard;
use crate::generation::Generation;
use crate::logging::LogControl;
use crate::observe::Observations;
use crate::panics::{self, Panicked, contained};
use crate::refusal::{AnswerForm, Failure};
use crate::reload::{Outcome, Reloads};
use crate::server::{ClientAddress, ClientBody, OpenConnections};
use crate::tenure_log::RECORD_TIMEOUT;

pub use answers::{AdminAnswer, AdminBody};
pub(crate) use locks::lock_json;
pub(crate) use streams::STREAMS_MAX;

use answers::{answer, text, whole};
use locks::spellings;
use paths::{INDEX, accepted_source, cleared_lock, forgotten_member};

/// What the admin listener can see and do.
#[derive(Clone)]
pub struct Admin {
    /// The configuration in force.
    pub generation: Arc<Generation>,
    /// Shows the one that is in force later.
    pub in_force: ActiveConfig,
    /// Set as soon as the process is about to stop.
    pub leaving: Arc<AtomicBool>,
    /// How many client connections are open.
    pub connections: OpenConnections,
    /// What has happened.
    pub observations: Arc<Observations>,
    /// A permit for each client that may still listen to a stream of events.
    pub streams: Arc<Semaphore>,
    /// What changes the log, if there is one.
    pub log: Option<LogControl>,
    /// Has the configuration read again.
    pub reloads: Reloads,
    /// Where the configuration comes from.
    pub configuration: Arc<str>,
}

impl Admin {
    /// Answers a request, with 502 if that panics.
    pub async fn answer_contained(
        self,
        request: Box<Request<ClientBody>>,
    ) -> Result<AdminAnswer, Infallible> {
        let form = AnswerForm::of(request.method(), request.headers());
        let answered = contained(self.answer(request)).await;
        answered.unwrap_or_else(|Panicked| Ok(Failure::Internal.answer(form).map(whole)))
    }

    /// Answers a request.
    pub async fn answer(
        self,
        request: Box<Request<ClientBody>>,
    ) -> Result<AdminAnswer, Infallible> {
        let client = request.body().connection();
        let over_tcp = matches!(client.address(), ClientAddress::Tcp(_));
        if over_tcp && let Err(refused) = origin::check(&request, client.is_tls()) {
            return Ok(text(StatusCode::FORBIDDEN, format!("{refused}\n")));
        }
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        if let Err(refused) = paths::check(request.method(), path) {
            return Ok(refused);
        }
        if *request.method() == Method::POST {
            return Ok(self.post(path, query).await);
        }
        Ok(match dashboard::answer(path, request.headers()) {
            Some(page) => page.map(whole),
            None => self.get(path, query, request.headers()),
        })
    }

    fn get(&self, path: &str, query: &str, headers: &HeaderMap) -> AdminAnswer {
        match path {
            "/livez" => text(StatusCode::OK, "alive\n".to_owned()),
            "/readyz" => self.readiness(),
            "/metrics" => self.metrics(),
            "/decisions" => self.decisions(query, headers),
            "/timeline" => self.timeline(headers),
            "/log" => self.log(),
            "/shadow" => self.shadow(query, headers),
            "/routes" => self.routes(),
            "/config" => self.config(),
            "/sources" => self.sources(),
            "/group" => self.group(),
            "/locks" => self.locks(),
            "/" => text(StatusCode::OK, INDEX.to_owned()),
            _ => match path.strip_prefix("/locks/") {
                Some(key) => self.lock(key),
                None => paths::not_found(),
            },
        }
    }

    async fn post(&self, path: &str, query: &str) -> AdminAnswer {
        match path {
            "/log" => return self.set_log(query),
            "/reload" => return self.reload().await,
            _ => {}
        }
        if let Some(key) = cleared_lock(path) {
            return self.clear_orphans(key);
        }
        if let Some(id) = forgotten_member(path) {
            return self.forget_member(id).await;
        }
        let Some(name) = accepted_source(path) else {
            return paths::not_found();
        };
        self.accept_regression(name).await
    }

    /// Accepts the state of a source whose store went back, because the operator confirms it.
    ///
    /// The acceptance goes to the disk even if the operator stops waiting. The answer also waits
    /// for earlier acceptances that were not written or not reported.
    async fn accept_regression(&self, name: &str) -> AdminAnswer {
        let process = &self.generation.process;
        let had_gone_back = match process
            .sources
            .accept_regression(name, process.memory.as_ref())
            .await
        {
            Some(Ok(had_gone_back)) => had_gone_back,
            Some(Err(error)) => return text(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
            None => return text(StatusCode::NOT_FOUND, format!("there is no source {name:?}\n")),
        };
        let remembered = match &process.memory {
            Some(memory) => timeout(RECORD_TIMEOUT, memory.remembers_acceptance(name)).await,
            None => Ok(Ok(false)),
        };
        let why = match remembered {
            Ok(Ok(remembered)) if had_gone_back || remembered => {
                return text(
                    StatusCode::OK,
                    format!("the state of source {name:?} is accepted; floors start anew\n"),
                );
            }
            Ok(Ok(_)) => {
                let nothing = format!("source {name:?} has not gone back; nothing is changed\n");
                return text(StatusCode::OK, nothing + &self.why_down(name));
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it was not written within {RECORD_TIMEOUT:?}"),
        };
        let lost =
            "accepted, but a restart may have to be told again until this is answered with 200";
        text(StatusCode::SERVICE_UNAVAILABLE, format!("{lost}: {why}\n"))
    }

    /// What keeps that source from being read, if it is down: it may be that which an operator is
    /// after.
    fn why_down(&self, name: &str) -> String {
        let sources = self.generation.process.sources.all();
        let status = sources
            .iter()
            .find(|source| source.name() == name)
            .map(|source| source.status(Instant::now()));
        let why =
            status.filter(|status| status.up == Some(false)).and_then(|status| status.last_error);
        why.map(|error| format!("but it is down: {error}\n")).unwrap_or_default()
    }

    /// Puts what the configuration file says in force, now.
    async fn reload(&self) -> AdminAnswer {
        let Some(outcome) = self.reloads.reload().await else {
            return text(
                StatusCode::SERVICE_UNAVAILABLE,
                "draining: nothing is reloaded any more\n".to_owned(),
            );
        };
        let status = match outcome {
            Outcome::Applied { .. } | Outcome::Unchanged { .. } => StatusCode::OK,
            Outcome::Rejected(_) => StatusCode::UNPROCESSABLE_ENTITY,
        };
        text(status, format!("{outcome}\n"))
    }

    /// Ends the orphans of a lock by hand: the operator knows that none of them is running.
    fn clear_orphans(&self, key: &str) -> AdminAnswer {
        let found = match self.find(key) {
            Ok(found) => found,
            Err(answer) => return self.clear_left_behind(key).unwrap_or(answer),
        };
        let now = Instant::now();
        let has_left_behind = found.iter().any(|lock| lock.describe(now).left_behind_for.is_some());
        let cleared: usize = found.iter().map(|lock| lock.clear_orphans()).sum();
        let key = found.first().map_or(key, |lock| lock.key().as_str());
        orphans_cleared(key, cleared, has_left_behind)
    }

    /// Ends the remembered orphans of a lock that nobody has asked for since the start. `None` if
    /// no source remembers any.
    fn clear_left_behind(&self, key: &str) -> Option<AdminAnswer> {
        let key = percent_decode_str(key).decode_utf8().ok()?;
        let sources = self.generation.process.sources.all();
        let clear = |key: &LockKey| {
            sources.iter().filter(|source| source.clear_left_behind(key)).count() > 0
        };
        let key = spellings(&key).iter().filter_map(|key| LockKey::new(key).ok()).find(clear)?;
        Some(orphans_cleared(key.as_str(), 0, true))
    }

    /// Ready once every lock that is named in the configuration in force has been read, until the
    /// process is about to stop.
    fn readiness(&self) -> AdminAnswer {
        if self.leaving.load(Ordering::Relaxed) {
            return text(StatusCode::SERVICE_UNAVAILABLE, "not ready: draining\n".to_owned());
        }
        let waiting: Vec<&str> = self
            .generation
            .sources
            .iter()
            .filter(|source| !self.generation.is_ready(source))
            .map(|source| source.name())
            .collect();
        if let Some(group) = self.generation.group().filter(|group| !group.stands()) {
            let name = &group.options().name;
            let status = StatusCode::SERVICE_UNAVAILABLE;
            text(status, format!("not ready: no contact with the other members of group {name}\n"))
        } else if waiting.is_empty() {
            text(StatusCode::OK, "ready\n".to_owned())
        } else {
            let sources = waiting.join(", ");
            text(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("not ready: locks have not been read yet from: {sources}\n"),
            )
        }
    }

    fn log(&self) -> AdminAnswer {
        match &self.log {
            Some(log) => text(StatusCode::OK, format!("{}\n", log.filter())),
            None => text(StatusCode::NOT_FOUND, "nothing is logged\n".to_owned()),
        }
    }

    fn set_log(&self, query: &str) -> AdminAnswer {
        let Some(log) = &self.log else { return self.log() };
        let Some(filter) = paths::parameter(query, "filter") else {
            return text(
                StatusCode::BAD_REQUEST,
                "?filter= is missing, like ?filter=info,fencepost=debug\n".to_owned(),
            );
        };
        if let Err(error) = log.set_filter(&filter) {
            return text(StatusCode::BAD_REQUEST, format!("filter: {error}\n"));
        }
        tracing::info!(%filter, "the operator changed what is logged");
        self.log()
    }

    fn metrics(&self) -> AdminAnswer {
        let now = Instant::now();
        let sources = self.generation.sources.iter();
        let sources: Vec<_> = sources.map(|source| (source.name(), source.status(now))).collect();
        let metrics = &self.generation.process.metrics;
        metrics.set_connections(self.connections.count());
        metrics.set_panics(panics::count());
        metrics.set_state_dir_failing(self.generation.process.state_dir_fails());
        metrics.set_connections_ended(self.connections.refused(), |closing| {
            self.connections.closed(closing)
        });
        let lines = self.log.as_ref().map_or(0, LogControl::lines_lost);
        let access_lines = self.generation.process.access_lines_lost.count();
        metrics.set_lost(self.observations.lost(), lines, access_lines);
        let group = self.generation.group().map(Arc::as_ref);
        match metrics.text(&self.generation.config, &sources, group) {
            Ok(metrics) => answer(
                StatusCode::OK,
                "text/plain; version=0.0.4; charset=utf-8",
                whole(metrics.into()),
            ),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        }
    }
}

fn orphans_cleared(lock: &str, cleared: usize, has_left_behind: bool) -> AdminAnswer {
    tracing::warn!(lock, cleared, has_left_behind, "orphans ended by hand");
    let left_behind =
        if has_left_behind { ", nor does what an earlier process left at the worker" } else { "" };
    text(
        StatusCode::OK,
        format!("{cleared} orphans of lock {lock:?} no longer count{left_behind}\n"),
    )
}
