//! What a slot does with the news of its warden.

use super::Agent;
use super::deliver::{self, Finished, Follower, finish, is_silent};
use super::held::Unacknowledged;
use crate::journal::Ended;
use crate::task_log;
use crate::warden::client::Event;
use crate::warden::protocol::Why;

impl Agent {
    /// Takes note of what the warden says. A scheduler should know of all of it at once.
    pub(super) async fn hear(&mut self, event: Option<Event>) {
        match event {
            Some(Event::Started(task_id)) => self.started(task_id),
            Some(Event::Ended(ended)) => self.child_ended(*ended),
            Some(Event::NotBegun(task_id, why)) => self.not_begun(task_id, why),
            // The next beat tells.
            Some(Event::Health) => {}
            Some(Event::Inventory(inventory)) => self.take_inventory(inventory).await,
            // The client lives as long as the slots.
            None => std::future::pending().await,
        }
    }

    fn started(&mut self, task_id: i64) {
        task_log::started(task_id, || self.runner());
        if let Some(live) = self.held.live.as_mut().filter(|live| live.begin.task_id == task_id) {
            live.is_starting = false;
            if live.follower.is_none() {
                live.follower = Some(Follower::start(self.context.upload(task_id, live.begin.output_max)));
            }
        }
    }

    fn not_begun(&mut self, task_id: i64, why: Why) {
        let Some(live) = self.held.live.take_if(|live| live.begin.task_id == task_id) else {
            return;
        };
        let runner = self.runner();
        match why {
            // Somebody may take it for running, or waits for its end.
            Why::TooLate if live.is_told || live.is_stopping => self.never_begun(live),
            Why::TooLate => tracing::warn!(
                task_id,
                runner,
                "a task arrived too late to be started; it is asked for again"
            ),
            Why::Held => tracing::error!(
                task_id,
                runner,
                "a task that this host has already was given again; it is not started twice"
            ),
        }
    }

    /// The warden has written the end down.
    fn child_ended(&mut self, ended: Ended) {
        let task_id = ended.task_id;
        if self.held.has_result(task_id) {
            return;
        }
        task_log::ended(&ended, || self.runner());
        let Some(live) = self.held.live.as_mut().filter(|live| live.begin.task_id == task_id) else {
            // Not expected by this slot: reported all the same.
            tracing::warn!(
                task_id,
                runner = self.runner(),
                "the end of a task that was not expected here"
            );
            let upload = self.context.upload(task_id, ended.output_max);
            let output = deliver::small_rest(&upload, [ended.stdout_bytes, ended.stderr_bytes]);
            let sending = (output.is_empty() && !is_silent(&ended)).then(|| tokio::spawn(upload.finish()));
            self.held.results.push_back(Unacknowledged { ended, output, sending });
            return;
        };
        if live.aside {
            self.held.live = None;
            self.leftovers.set_aside(task_id, None);
            self.changed();
            return;
        }
        let follower = live.follower.take();
        if is_silent(&ended) {
            self.finished(Ok(Finished {
                ended,
                output: Vec::new(),
                sending: None,
            }));
            return;
        }
        let upload = self.context.upload(task_id, ended.output_max);
        if follower.is_none() {
            let sizes = [ended.stdout_bytes, ended.stderr_bytes];
            let output = deliver::small_rest(&upload, sizes);
            if !output.is_empty() {
                self.finished(Ok(Finished {
                    ended,
                    output,
                    sending: None,
                }));
                return;
            }
        }
        live.finishing = Some(tokio::spawn(finish(ended, upload, follower)));
    }

    /// The end of the task is ready to be reported.
    pub(super) fn finished(&mut self, finished: Result<Finished, tokio::task::JoinError>) {
        let Some(live) = self.held.live.take() else { return };
        let finished = match finished {
            Ok(finished) => finished,
            Err(error) => {
                // The warden has the end still, and names it again when it is asked.
                tracing::error!(task_id = live.begin.task_id, %error, "sending an output failed; this is a bug");
                return;
            }
        };
        if live.aside {
            self.leftovers.set_aside(finished.ended.task_id, finished.sending);
        } else {
            self.held.results.push_back(Unacknowledged {
                ended: finished.ended,
                output: finished.output,
                sending: finished.sending,
            });
        }
        self.changed();
    }
}
