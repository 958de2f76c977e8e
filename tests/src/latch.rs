//! A door that is shut until someone opens it.

use std::sync::Arc;

use tokio::sync::watch;

/// A door that is shut until [`Latch::open`]. Clones are the same door.
#[derive(Clone, Debug)]
pub struct Latch(Arc<watch::Sender<bool>>);

impl Latch {
    /// A shut door.
    pub fn new() -> Latch {
        Latch(Arc::new(watch::Sender::new(false)))
    }

    /// Opens it for all who wait and all who come.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    /// Returns once it is open.
    pub async fn opened(&self) {
        let mut door = self.0.subscribe();
        door.wait_for(|open| *open).await.expect("the latch holds the sender of its own door");
    }
}

impl Default for Latch {
    fn default() -> Latch {
        Latch::new()
    }
}
