//! Building a layer: which lock guards its requests, and by which rules.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fencepost_locks::{LockSpec, RecordFormat, TemplateSpec};
use fencepost_policy::{Layout, LockKey};
use http::HeaderName;

use crate::claim::Guard;
use crate::fence::Fence;
use crate::layer::FenceLayer;
use crate::readings::Reading;
use crate::rules::{InvalidLock, Rules, Which, check_record};
use crate::token::TokenHeaders;

/// Says which lock guards a layer's requests, and by which rules: [`Fence::lock`] or
/// [`Fence::locks_below`] begins it, [`LayerBuilder::layer`] ends it.
#[derive(Clone)]
pub struct LayerBuilder {
    fence: Fence,
    which: Which,
    format: RecordFormat,
    rules: Rules,
}

impl LayerBuilder {
    pub(crate) fn new(fence: Fence, which: Which) -> LayerBuilder {
        LayerBuilder {
            fence,
            which,
            format: RecordFormat::plain(Layout::Key),
            rules: Rules::default(),
        }
    }

    /// How the lock's record becomes a tenure: [`Layout::Key`] unless said otherwise.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> LayerBuilder {
        self.format.layout = layout;
        self
    }

    /// With [`Layout::Key`] only: the value is a JSON object, and this field of it names the owner.
    /// Otherwise the value is the owner.
    #[must_use]
    pub fn owner_field(mut self, field: impl Into<String>) -> LayerBuilder {
        self.format.owner_field = Some(field.into());
        self
    }

    /// With [`Layout::Key`] only: a value, or an owner, that means that nobody holds the lock. May
    /// be called for several.
    #[must_use]
    pub fn free_value(mut self, value: impl Into<Bytes>) -> LayerBuilder {
        self.format.free_values.push(value.into());
        self
    }

    /// The oldest news of the lock that admits a request: 5 s unless said otherwise, 10 ms to an
    /// hour. If none is as young, etcd is asked. Everything is read once every fifth of the
    /// smallest `max_age` of all layers.
    #[must_use]
    pub fn max_age(mut self, max_age: Duration) -> LayerBuilder {
        self.rules.max_age = max_age;
        self
    }

    /// Whether only a read of etcd that began after the request arrived admits it. Otherwise news
    /// up to `max_age` old do.
    #[must_use]
    pub fn linearizable(mut self, linearizable: bool) -> LayerBuilder {
        self.rules.linearizable = linearizable;
        self
    }

    /// How long a request waits for etcd when what is known of the lock does not decide: 2 s unless
    /// said otherwise, 10 ms to a minute. Then it is refused as `unverifiable` (503).
    #[must_use]
    pub fn confirm_timeout(mut self, timeout: Duration) -> LayerBuilder {
        self.rules.confirm_timeout = timeout;
        self
    }

    /// How long a request of a new holder waits for those of earlier ones: 10 s unless said
    /// otherwise, 100 ms to an hour. Then it is refused as `handoff-timeout` (503). At most 1,000
    /// requests of a lock wait, and 10,000 of a fence; one more gets that answer at once.
    #[must_use]
    pub fn handoff_timeout(mut self, timeout: Duration) -> LayerBuilder {
        self.rules.handoff_timeout = timeout;
        self
    }

    /// For how long a request counts as running after its handler has panicked: 30 s unless said
    /// otherwise, 100 ms to an hour. Nobody knows what a panic left behind, so this is your bound
    /// on how long anything of it can go on.
    #[must_use]
    pub fn orphan_timeout(mut self, timeout: Duration) -> LayerBuilder {
        self.rules.orphan_timeout = timeout;
        self
    }

    /// Other names of the headers `Fence-Owner`, `Fence-Revision` and `Fence-Lock`.
    #[must_use]
    pub fn headers(
        mut self,
        owner: HeaderName,
        revision: HeaderName,
        lock: HeaderName,
    ) -> LayerBuilder {
        self.rules.headers = TokenHeaders { owner, revision, lock };
        self
    }

    /// Whether responses go on until somebody ends them. They are broken off when their tenure
    /// ends, as `text/event-stream` always is; otherwise the next tenure waits for their end.
    #[must_use]
    pub fn streaming(mut self, streaming: bool) -> LayerBuilder {
        self.rules.streaming = streaming;
        self
    }

    /// Whether a handler goes on to its end when its client leaves, in a task of its own, and
    /// counts until then. Otherwise its future is dropped where it waits, and what it has sent
    /// somewhere goes on uncounted. In a task of its own it has neither the task-locals nor the
    /// `tracing` span of its connection.
    #[must_use]
    pub fn detached(mut self, detached: bool) -> LayerBuilder {
        self.rules.detached = detached;
        self
    }

    /// Whether the layer answers `POST /.well-known/fence` itself, as it does unless said
    /// otherwise. See also [`FenceLayer::fence_call`].
    #[must_use]
    pub fn answers_fence_call(mut self, answers: bool) -> LayerBuilder {
        self.rules.answers_fence_call = answers;
        self
    }

    /// The layer. From now on its lock is kept current. Needs no runtime.
    ///
    /// # Errors
    /// What is wrong with the lock, or with the rules.
    pub fn layer(self) -> Result<FenceLayer, InvalidLock> {
        let LayerBuilder { fence, which, format, rules } = self;
        rules.check_times()?;
        check_record(&format)?;
        let TokenHeaders { owner, revision, lock } = &rules.headers;
        for (one, other) in [(owner, revision), (owner, lock), (revision, lock)] {
            if one == other {
                return Err(InvalidLock::Headers(one.clone()));
            }
        }
        let (source, format) = (&fence.0.source, Arc::new(format));
        let group = source.group().map(|group| group.options().timing.orphan_timeout);
        if let Some(max) = group.filter(|max| *max < rules.orphan_timeout) {
            return Err(InvalidLock::LongerOrphans(max));
        }
        let (guard, lock_of) = match which {
            Which::One(key) => {
                let spec = LockSpec { key: LockKey::new(&key)?, format };
                fence.0.readings.add(&Reading::One(spec.clone()))?;
                let lock =
                    source.track(spec).expect("all layers of a fence read a lock in the same way");
                (Guard::Static(lock), None)
            }
            Which::Below { prefix, lock } => {
                let spec = TemplateSpec { prefix, format };
                fence.0.readings.add(&Reading::Below(spec.clone()))?;
                (Guard::Templated(source.template(&spec)), Some(lock))
            }
        };
        fence.0.keep_fresh(rules.max_age);
        Ok(FenceLayer::new(fence.0, guard, lock_of, rules))
    }
}

impl fmt::Debug for LayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let which = match &self.which {
            Which::One(key) => key,
            Which::Below { prefix, .. } => prefix,
        };
        f.debug_tuple("LayerBuilder").field(which).field(&self.format).field(&self.rules).finish()
    }
}
