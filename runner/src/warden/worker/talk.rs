//! What a worker and its agent say to each other. One agent at a time: the newest.

use super::{ACCEPT_PAUSE, CONNECTION, NEWCOMER, Worker};
use crate::warden::connection::Connection;
use crate::warden::protocol::{
    Alive, Drain, FromWarden, Hello, LiveTask, NotBegun, PROTOCOL, Ping, Record, Stop, ToWarden, Welcome, Why,
    withdrawn,
};
use nix::sys::epoll::EpollFlags;
use std::collections::HashSet;
use std::io;
use std::time::Instant;
use systole_shared::heartbeat::end::StoppedBy;
use systole_shared::policy::host_fault::FaultKind;

impl Worker {
    pub(super) fn accept(&mut self) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    // Out of descriptors, say: without a pause the same event would come again at once, for ever.
                    tracing::warn!(%error, "an agent could not be accepted");
                    self.groups.clear();
                    std::thread::sleep(ACCEPT_PAUSE);
                    return;
                }
            };
            match Connection::new(stream, &self.epoll, NEWCOMER) {
                Ok(connection) => self.newcomer = Some(connection),
                Err(error) => tracing::warn!(%error, "an agent could not be accepted"),
            }
        }
    }

    /// A newcomer says hello first. The newest agent is the one: it holds the agent's lock, so the one before is gone.
    pub(super) fn meet(&mut self, now: Instant) {
        let Some(mut newcomer) = self.newcomer.take() else {
            return;
        };
        let open = newcomer.read();
        match newcomer.frames.take::<ToWarden>() {
            Ok(Some(ToWarden::Hello(hello))) if hello.start_no >= self.agent_start => {
                if let Err(error) = newcomer.rename(&self.epoll, CONNECTION) {
                    tracing::warn!(%error, "an agent could not be accepted");
                    return;
                }
                self.connection = Some(newcomer);
                self.greet(&hello, now);
                self.serve(EpollFlags::EPOLLIN, now);
            }
            Ok(None) if open => self.newcomer = Some(newcomer),
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => tracing::warn!("somebody who is not the agent of this host is turned away"),
        }
    }

    pub(super) fn serve(&mut self, flags: EpollFlags, now: Instant) {
        let Some(connection) = &mut self.connection else { return };
        if flags.contains(EpollFlags::EPOLLOUT) && connection.flush().is_err() {
            return self.detach(now);
        }
        let open = connection.read();
        // All that is there, before any of it is done: the end of it may take back the beginning.
        let mut messages = Vec::new();
        let nonsense = loop {
            match connection.frames.take::<ToWarden>() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        let withdrawn = withdrawn(&messages);
        for message in messages {
            // It turned out that nobody listens any more: the next agent asks what there is.
            if self.connection.is_none() {
                return;
            }
            self.handle(message, &withdrawn, now);
        }
        if let Some(error) = nonsense {
            tracing::error!(%error, "the agent sent nonsense");
            return self.detach(now);
        }
        if !open {
            self.detach(now);
        }
    }

    fn detach(&mut self, now: Instant) {
        self.connection = None;
        self.detached_at = now;
    }

    pub(super) fn say(&mut self, message: &FromWarden) {
        if let Some(connection) = &mut self.connection
            && let Err(error) = connection.put(message)
        {
            // It comes again and asks what there is.
            tracing::warn!(%error, "the agent does not listen");
            self.detach(Instant::now());
        }
    }

    pub(super) fn flush(&mut self) {
        if let Some(connection) = &mut self.connection
            && connection.flush().is_err()
        {
            self.detach(Instant::now());
        }
    }

    fn handle(&mut self, message: ToWarden, withdrawn: &HashSet<i64>, now: Instant) {
        match message {
            // Said once already.
            ToWarden::Hello(_) => {}
            ToWarden::Start(start) => self.start(&start, withdrawn.contains(&start.begin.task_id)),
            ToWarden::Ping(Ping {}) => self.say(&FromWarden::Pong(Ping {})),
            ToWarden::Record(Record { begin, kind, message }) => self.record(&begin, &kind, &message),
            ToWarden::Stop(Stop { task_id, by }) => self.change(task_id, |live| live.stop(by, now)),
            ToWarden::Alive(Alive { task_id, sent_ms }) => self.change(task_id, |live| {
                if let Some(fence) = &mut live.fence {
                    fence.heard_ms = fence.heard_ms.max(sent_ms);
                }
            }),
            ToWarden::Forget(named) => self.forget(named.task_id),
            ToWarden::SetAside(named) => self.set_aside(named.task_id),
            ToWarden::Drain(Drain {}) => self.shared.drain(),
        }
    }

    /// Everything that is held, before anything else is said.
    fn greet(&mut self, hello: &Hello, now: Instant) {
        if hello.start_no != self.agent_start && self.agent_start != 0 {
            let ids: Vec<i64> = self
                .live
                .iter()
                .filter(|(_, live)| live.ends_with_agent)
                .map(|(id, _)| *id)
                .collect();
            for id in ids {
                self.change(id, |live| live.stop(StoppedBy::RunnerRestart, now));
            }
        }
        if hello.start_no != self.agent_start {
            // Whoever starts a warden also says which policy it has.
            let named = hello.policy.as_deref().filter(|_| !self.shared.plan.stays);
            self.shared.place.policy.reload(named);
        }
        self.agent_start = hello.start_no;
        let health = self.shared.health.told();
        let live = self.live.values_mut().map(|live| {
            live.announce_at = None;
            LiveTask {
                begin: live.begin.clone(),
                stopping: live.is_stopping(),
                fenced: live.fence.is_some(),
            }
        });
        let welcome = Welcome {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            instance_id: self.shared.place.home.instance_id.clone(),
            max_task_id: self.shared.place.home.max_task_id(),
            guard: self.shared.guard().into(),
            limits: Some(self.shared.place.limiter.names()),
            policy: self
                .shared
                .place
                .policy
                .get()
                .map(|policy| policy.path.display().to_string()),
            draining: self.draining_since.is_some(),
            health: health.clone(),
            answers_pings: true,
            live: live.collect(),
            ended: self.kept.values().map(|kept| kept.ended.clone()).collect(),
        };
        self.health_told = health.no;
        self.say(&FromWarden::Welcome(Box::new(welcome)));
    }

    /// Before anything else is said, if there is news.
    pub(super) fn tell_health(&mut self) {
        if self.shared.health.no() == self.health_told {
            return;
        }
        let told = self.shared.health.told();
        self.health_told = told.no;
        // What is kept to be used again takes descriptors that a task needs.
        self.keeps_groups = told
            .fault
            .as_ref()
            .is_none_or(|fault| fault.kind != FaultKind::FileLimit);
        if !self.keeps_groups {
            self.groups.clear();
        }
        if told.fault.is_none() {
            self.write_again();
        }
        self.say(&FromWarden::Health(told));
    }

    pub(super) fn not_begun(&mut self, task_id: i64, slot: u32, why: Why) {
        self.say(&FromWarden::NotBegun(NotBegun { task_id, slot, why }));
    }
}
