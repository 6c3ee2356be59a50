//! The limit of open files: this process may raise its own, and its children get what there was before.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io;
use std::sync::OnceLock;

/// A limit: soft, hard.
pub type Limit = (u64, u64);

static BEFORE: OnceLock<Limit> = OnceLock::new();

/// As far as the hard limit allows: each connection and each task takes some descriptors. Whoever starts children has to see
/// that they get [`before`]: programs exist that close every descriptor that they may have, one by one.
pub fn raise() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // Of several times the first counts.
        let _ = BEFORE.set((soft, hard));
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// What this process had before it raised its own; `None`: it did not.
pub fn before() -> Option<Limit> {
    BEFORE.get().copied()
}

/// Sets it for this process. Allocates nothing: it may be called between fork and exec.
pub fn set((soft, hard): Limit) -> io::Result<()> {
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).map_err(io::Error::from)
}
