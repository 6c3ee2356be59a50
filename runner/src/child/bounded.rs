//! Looks at files that may lie on a server that does not answer: such a call never comes back, and cannot be interrupted. The
//! threads of the warden look after many tasks and must not make it.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// A file server that hangs must not hold up the warden for longer.
const WITHIN: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// Looks that hang, at most; with so many the next one is not tried.
const UNDER_WAY_MAX: usize = 16;
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// On a thread of its own. `TimedOut`: it did not come back, or too many others did not.
pub fn within<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    if UNDER_WAY.fetch_add(1, Ordering::SeqCst) >= UNDER_WAY_MAX {
        UNDER_WAY.fetch_sub(1, Ordering::SeqCst);
        return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
    }
    let (sender, receiver) = mpsc::channel();
    let looker = move || {
        let _ = sender.send(body());
        UNDER_WAY.fetch_sub(1, Ordering::SeqCst);
    };
    if let Err(error) = std::thread::Builder::new().name("look".into()).spawn(looker) {
        UNDER_WAY.fetch_sub(1, Ordering::SeqCst);
        return Err(error);
    }
    receiver
        .recv_timeout(WITHIN)
        .map_err(|_| io::Error::from_raw_os_error(libc::ETIMEDOUT))
}
