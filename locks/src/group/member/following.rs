//! The keys of all members, as they are written.

use std::rc::Rc;

use fencepost_policy::Revision;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::cache::Work;
use crate::store::{
    Event, KeyRange, LockStore, RangeRead, RangeWatch, ReadAnswer, Wanted, Watch, WatchNews,
};

/// News of the members' keys.
pub(super) enum News {
    All(ReadAnswer),
    Event(Event),
}

/// Tells all keys, then each change of one, for ever.
pub(super) async fn follow<S: LockStore>(
    work: Rc<Work<S>>,
    all: KeyRange,
    news: mpsc::UnboundedSender<News>,
) {
    let mut backoff = work.backoff();
    loop {
        let read = [RangeRead { range: all.clone(), wanted: Wanted::All }];
        if let Ok(answer) = work.store.read(&read).await
            && let Some(from) = Revision::new(answer.revision.get() + 1)
        {
            let _ = news.send(News::All(answer)); // The receiver outlives this.
            let ranges = [RangeWatch { range: all.clone(), from }];
            if let Ok(mut watch) = work.store.watch(&ranges).await {
                backoff.reset();
                while let Ok(told) = watch.next().await {
                    match told {
                        WatchNews::Events { events, .. } => {
                            let told = events.into_iter().map(News::Event);
                            told.for_each(|event| drop(news.send(event)));
                        }
                        WatchNews::CaughtUp => {}
                        WatchNews::Compacted { .. } => break,
                    }
                }
            }
        }
        sleep(backoff.delay()).await;
    }
}
