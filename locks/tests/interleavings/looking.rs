//! A look at a lock takes no mutex: the order of its two loads keeps what it sees together.

use std::sync::Arc;

use fencepost_policy::{Layout, Verdict};
use loom::thread;

use crate::cache::record::RecordFormat;
use crate::cache::scope::Scope;
use crate::cache::trust::{Standing, Trust};
use crate::world::{any_news, common, every_interleaving, revision, taken, token, track_watched};

#[test]
fn distrust_ends_only_when_the_lost_history_is_forgotten() {
    every_interleaving(|| {
        let (common, _commands) = common(Trust::new(None));
        let scope = Arc::new(Scope::new("s/", RecordFormat::plain(Layout::Key).into()));
        let lock = track_watched(&common, Some(Arc::clone(&scope)));
        let sent = common.trust.sending();
        assert_eq!(common.trust.received(&sent, revision(10), None), Standing::Trusted);
        lock.read(&sent, revision(10), &[taken("a", 10)]);
        for standing in [Standing::Behind, Standing::Behind, Standing::Regressed] {
            assert_eq!(common.trust.received(&common.trust.sending(), revision(5), None), standing);
        }

        let looking = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || {
                assert_ne!(lock.view().judge(&token("a", 10), &any_news()), Verdict::Admit)
            })
        };
        common.trust.accept(|| {
            scope.forget();
            lock.begin_era(common.trust.era(), true);
        });
        looking.join().unwrap();
        assert_eq!(common.trust.distrusted_through(), None);
    });
}

/// `b` has taken the lock while no watch was up. The first read under the next one shows that.
#[test]
fn cached_news_admits_only_with_the_read_under_its_watch() {
    every_interleaving(|| {
        let (common, _commands) = common(Trust::new(None));
        let lock = track_watched(&common, None);
        lock.read(&common.trust.sending(), revision(10), &[taken("a", 10)]);
        common.trust.watch_fell_behind();

        let looking = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || {
                assert_ne!(lock.view().judge(&token("a", 10), &any_news()), Verdict::Admit)
            })
        };
        common.trust.watch_caught_up();
        lock.read(&common.trust.sending(), revision(20), &[taken("b", 20)]);
        looking.join().unwrap();
        assert_eq!(lock.view().judge(&token("b", 20), &any_news()), Verdict::Admit);
    });
}
