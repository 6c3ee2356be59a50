//! `systole top`: hosts and tasks as they change, with the output of the selected one; cancel and rerun by key.
//!
//! [`model`] says what is shown and what a key means, [`view`] draws it; both ask nobody. Here is what is around them: the
//! terminal ([`screen`]), the scheduler ([`ask`]), and the loop between the two. It sleeps until there is a key, an answer or the
//! time of the next poll, and draws only what has changed.

mod ask;
mod log;
mod model;
mod screen;
mod view;

use crate::args::{Format, Global, TopArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::{Failure, io_cause};
use crossterm::event::{Event, EventStream};
use futures_util::StreamExt as _;
use model::{Effect, Model, Msg};
use screen::Screen;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Answers that wait to be shown.
const ANSWERS_MAX: usize = 64;
/// From one drawing to the next, so that a flood of output costs no more than eyes can see.
const DRAW_EVERY: Duration = Duration::from_millis(50);
/// Hosts and counts change slower than tasks, and cost more: with every so many polls.
const ALL_EVERY: u32 = 3;

pub async fn run(global: &Global, args: &TopArgs) -> Result<u8, Failure> {
    if !matches!(global.output, Format::Table | Format::Wide) || !screen::is_there() {
        return Err(Failure::usage(
            "top draws on a terminal, and here is none to draw on; for programs: systole ls -o json, systole status -o json",
        ));
    }
    let colored = crate::output::Output::new(global).color;
    let client = Arc::new(Client::new(global)?);
    // Whoever has the wrong address or token is told so as by every command.
    client.list(first_request()).await?;
    let mut top = Top::new(client, args.every);
    let mut screen = Screen::enter()?;
    let end = top.run(&mut screen, colored).await;
    drop(screen);
    end
}

fn first_request() -> systole_proto::v1::ListRequest {
    systole_proto::v1::ListRequest {
        limit: 1,
        ..systole_proto::v1::ListRequest::default()
    }
}

struct Top {
    client: Arc<Client>,
    model: Model,
    every: Duration,
    polls: u32,
    poll: Option<JoinHandle<()>>,
    follower: Option<JoinHandle<()>>,
    sender: mpsc::Sender<Msg>,
    answers: mpsc::Receiver<Msg>,
    over: bool,
}

impl Top {
    fn new(client: Arc<Client>, every: Duration) -> Self {
        let (sender, answers) = mpsc::channel(ANSWERS_MAX);
        let model = Model::new(client.place());
        Self {
            client,
            model,
            every,
            polls: 0,
            poll: None,
            follower: None,
            sender,
            answers,
            over: false,
        }
    }

    async fn run(&mut self, screen: &mut Screen, colored: bool) -> Result<u8, Failure> {
        let unheard =
            |error: std::io::Error| Failure::unexpected(format!("signals cannot be heard: {}", io_cause(&error)));
        let mut terminate = signal(SignalKind::terminate()).map_err(unheard)?;
        let mut hangup = signal(SignalKind::hangup()).map_err(unheard)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(unheard)?;
        let mut keys = EventStream::new();
        let mut polls = tokio::time::interval(self.every);
        polls.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // When it may be drawn again.
        let mut rested = Instant::now();
        while !self.over {
            if self.model.dirty && Instant::now() >= rested {
                self.model.dirty = false;
                let drawing = screen.terminal.draw(|frame| view::draw(frame, &self.model, colored));
                drawing.map_err(|error| Failure::unexpected(format!("the terminal is gone: {}", io_cause(&error))))?;
                rested = Instant::now() + DRAW_EVERY;
            }
            tokio::select! {
                key = keys.next() => match key {
                    Some(Ok(Event::Key(key))) => self.take(Msg::Key(key)),
                    Some(Ok(Event::Resize(..))) => self.take(Msg::Resized),
                    Some(Ok(_)) => {}
                    // No more keys: nobody could end it.
                    Some(Err(_)) | None => return Ok(exit_code::OK),
                },
                Some(answer) = self.answers.recv() => self.take(answer),
                _ = polls.tick() => self.poll(),
                () = tokio::time::sleep_until(rested), if self.model.dirty => {}
                _ = terminate.recv() => return Ok(exit_code::TERMINATED),
                _ = hangup.recv() => return Ok(exit_code::HUNG_UP),
                _ = interrupt.recv() => return Ok(exit_code::INTERRUPTED),
            }
        }
        Ok(exit_code::OK)
    }

    fn take(&mut self, msg: Msg) {
        for effect in self.model.update(msg) {
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        let (client, sender) = (Arc::clone(&self.client), self.sender.clone());
        match effect {
            Effect::Quit => self.over = true,
            Effect::Poll => {
                // What was asked is not asked any more.
                self.stop_poll();
                self.poll();
            }
            Effect::Follow(task) => {
                if let Some(follower) = self.follower.take() {
                    follower.abort();
                }
                self.follower = task.map(|task| tokio::spawn(ask::output(client, task, sender)));
            }
            Effect::Cancel(task) => drop(tokio::spawn(ask::cancel(client, task, sender))),
            Effect::Rerun(task) => drop(tokio::spawn(ask::rerun(client, task, sender))),
            Effect::Explain(task) => drop(tokio::spawn(ask::explain(client, task, sender))),
        }
    }

    fn stop_poll(&mut self) {
        if let Some(poll) = self.poll.take() {
            poll.abort();
        }
    }

    /// At most one poll is under way.
    fn poll(&mut self) {
        if self.poll.as_ref().is_some_and(|poll| !poll.is_finished()) {
            return;
        }
        let all = self.polls.is_multiple_of(ALL_EVERY);
        self.polls = self.polls.wrapping_add(1);
        let (client, sender) = (Arc::clone(&self.client), self.sender.clone());
        self.poll = Some(tokio::spawn(ask::poll(
            client,
            self.model.question.clone(),
            all,
            sender,
        )));
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        self.stop_poll();
        if let Some(follower) = self.follower.take() {
            follower.abort();
        }
    }
}
