//! How an agent is told to leave: handing its tasks over to the next one, or ending them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio_util::sync::CancellationToken;

/// Cheap to clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    token: CancellationToken,
    drains: Arc<AtomicBool>,
}

impl Shutdown {
    pub fn new() -> Self {
        Self::default()
    }

    /// The children live on; the next agent on this host takes them over.
    pub fn hand_over(&self) {
        self.token.cancel();
    }

    /// The children are ended and reported.
    pub fn drain(&self) {
        self.drains.store(true, Ordering::SeqCst);
        self.token.cancel();
    }

    /// Whether the children are ended.
    pub fn drains(&self) -> bool {
        self.drains.load(Ordering::SeqCst)
    }

    pub fn is_asked(&self) -> bool {
        self.token.is_cancelled()
    }

    pub async fn asked(&self) {
        self.token.cancelled().await;
    }
}
