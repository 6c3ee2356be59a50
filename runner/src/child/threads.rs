//! The threads that fork. A child asks the kernel to be killed with its parent, and the kernel takes
//! the parent *thread* for that: a child that was forked on a thread of a pool dies when the pool lets
//! the thread go. So these few live as long as the process.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::sync::{mpsc, oneshot};

type Job = Box<dyn FnOnce() + Send>;

/// Two: a fork waits for its exec, and one at a time would not fill two cores.
const THREADS: usize = 2;
/// Each slot has at most one job, and waits here when others come first.
const JOBS_MAX: usize = 64;

static QUEUE: OnceLock<std::io::Result<mpsc::Sender<Job>>> = OnceLock::new();

/// Runs a job on one of the threads. `None`: the threads could not be started, or the job panicked.
pub async fn run<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let queue = QUEUE.get_or_init(start).as_ref().ok()?;
    let (reply, answer) = oneshot::channel();
    let job: Job = Box::new(move || {
        // Nobody waits any more: the job's own drop cleans up.
        let _ = reply.send(job());
    });
    queue.send(job).await.ok()?;
    answer.await.ok()
}

/// Starts the threads now, so that a host without room for them is told at the start.
pub fn prepare() -> std::io::Result<()> {
    match QUEUE.get_or_init(start) {
        Ok(_) => Ok(()),
        Err(error) => Err(std::io::Error::new(error.kind(), error.to_string())),
    }
}

fn start() -> std::io::Result<mpsc::Sender<Job>> {
    let (sender, receiver) = mpsc::channel::<Job>(JOBS_MAX);
    let receiver = Arc::new(Mutex::new(receiver));
    for index in 0..THREADS {
        let receiver = Arc::clone(&receiver);
        std::thread::Builder::new()
            .name(format!("spawn-{index}"))
            .spawn(move || serve(&receiver))?;
    }
    Ok(sender)
}

fn serve(receiver: &Mutex<mpsc::Receiver<Job>>) {
    loop {
        let job = receiver.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
        match job {
            // The thread must outlive a panic: its end would kill every child it forked.
            Some(job) => drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(job))),
            // The sender is in a static; it never goes.
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn a_thread_outlives_a_panic_of_its_job() {
        for _ in 0..4 {
            assert!(super::run(|| -> u8 { panic!("on purpose") }).await.is_none());
        }
        assert_eq!(super::run(|| 7).await, Some(7));
    }
}
