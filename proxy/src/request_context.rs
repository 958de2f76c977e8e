//! What a request carries through the layers: where it is, from whom, since when.
//! It knows neither verdicts nor answers.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use fencepost_config::{Freshness, Mode, Route};
use fencepost_locks::Timing;
use fencepost_tls::PeerNames;
use http::Request;
use tokio::time::Instant;

use crate::about::About;
use crate::active_config::{RoutePools, ThreadShare};
use crate::let_past::LetPast;
use crate::metrics::{RequestCounts, RouteMetrics};
use crate::refusal::AnswerForm;
use crate::request_id::request_id;
use crate::routes::ActiveRoute;
use crate::server::{ClientAddress, ClientBody, ClientPlace, UnderWay};
use crate::upstream::{KeptFields, Origin};

/// A request's thread and route, its client, and when it arrived.
pub struct RequestContext {
    /// What its thread works with.
    pub share: Rc<ThreadShare>,
    /// The number of its route; `None` before that is known.
    pub route: Cell<Option<usize>>,
    /// How it wants to be answered.
    pub form: AnswerForm,
    /// Where it came from, by what trusted proxies say.
    pub client: ClientAddress,
    /// The names of the certificate that its connection has proved to be its own.
    pub peer: Option<Rc<PeerNames>>,
    /// When it arrived.
    pub arrived: Instant,
    /// Its head as the logs show it, and its outcome.
    pub about: About,
}

impl RequestContext {
    /// Of a request that has just arrived.
    pub fn new(share: Rc<ThreadShare>, request: &Request<ClientBody>) -> RequestContext {
        let connection = request.body().connection();
        let about = About::of(request, share.generation.access_log.is_some());
        let id = request_id(connection, request.headers(), &share.request_ids);
        RequestContext {
            route: Cell::new(None),
            form: AnswerForm::of(request.method(), request.headers()),
            client: Origin::of(connection, request.headers()).client,
            peer: connection.peer().cloned(),
            arrived: Instant::now(),
            about: about.with_request_id(id),
            share,
        }
    }

    /// The route as configured.
    pub fn route(&self) -> &Route {
        &self.share.generation.config.routes[self.known_route()]
    }

    /// What stands behind the route.
    pub fn active_route(&self) -> &ActiveRoute {
        &self.share.generation.routes[self.known_route()]
    }

    /// The connections to the route's worker.
    pub fn pools(&self) -> &RoutePools {
        &self.share.pools[self.known_route()]
    }

    /// The headers named like fencing that the worker gets to see.
    pub fn kept_headers(&self) -> &Rc<KeptFields> {
        &self.share.kept_headers[self.known_route()]
    }

    fn known_route(&self) -> usize {
        self.route.get().expect("only the routing layer is passed without a route")
    }

    /// The counters of the route.
    pub fn metrics(&self) -> &RouteMetrics {
        match self.route.get() {
            Some(route) => &self.share.generation.routes[route].metrics,
            None => &self.share.generation.unrouted,
        }
    }

    /// What the requests of the route count on the thread.
    pub fn counts(&self) -> &Rc<RequestCounts> {
        match self.route.get() {
            Some(route) => &self.share.counts[route],
            None => &self.share.unrouted_counts,
        }
    }

    /// Whether refusals are only recorded.
    pub fn is_shadow(&self) -> bool {
        matches!(self.route().mode, Mode::Shadow(_))
    }

    /// The facts of time that a verdict on this request depends on, now.
    pub fn timing(&self) -> Timing {
        let (route, now) = (self.route(), Instant::now());
        Timing {
            arrived: self.arrived,
            now,
            not_before: self.barred_until(now),
            max_age: route.max_age,
            linearizable: route.freshness == Freshness::Linearizable,
        }
    }

    /// The counters of requests that were let past unjudged and bar this one: its own route's, if
    /// that was in shadow mode when the request came, and those of routes of earlier
    /// configurations.
    fn let_past_before(&self) -> impl Iterator<Item = Arc<LetPast>> {
        let ActiveRoute { let_past, earlier, .. } = self.active_route();
        let own = let_past.iter().filter(|_| self.is_shadow()).map(Arc::clone);
        own.chain(earlier.iter().filter_map(Weak::upgrade))
    }

    /// Until when those bar at most; `None` if they do not.
    pub fn barred_until(&self, now: Instant) -> Option<Instant> {
        self.let_past_before().filter_map(|let_past| let_past.bars_until(now)).max()
    }

    /// Completes when those bar no more.
    pub async fn opened(&self) {
        for let_past in self.let_past_before() {
            let_past.opened().await;
        }
    }
}

/// Counts a request as in flight on its route, as under way on its connection, and as one of its
/// client's, for as long as this lives.
pub struct InFlight {
    counts: Rc<RequestCounts>,
    _under_way: UnderWay,
    _place: ClientPlace,
}

impl InFlight {
    /// Counts a request in.
    pub fn new(counts: Rc<RequestCounts>, under_way: UnderWay, place: ClientPlace) -> InFlight {
        counts.begin();
        InFlight { counts, _under_way: under_way, _place: place }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.counts.end();
    }
}
