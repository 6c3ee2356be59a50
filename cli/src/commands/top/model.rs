//! What `systole top` shows, and what a key or an answer changes of it. Pure: it asks nobody and draws nothing; what is to be
//! done outside comes back as [`Effect`]s.

use super::log::Log;
use crate::output::text;
use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use systole_proto::convert::{state_from_wire, state_to_wire};
use systole_proto::v1;
use systole_shared::task::TaskState;

/// Tasks of one poll.
pub const TASKS_MAX: u32 = 200;
/// Slots of runners of one poll.
pub const SLOTS_MAX: usize = 5_000;
/// Rows that page up and down move by.
const PAGE_ROWS: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pane {
    Tasks,
    Hosts,
    Logs,
}

/// Which tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Show {
    #[default]
    All,
    Waiting,
    Running,
    Failed,
    Ended,
}

impl Show {
    pub const ALL: [Show; 5] = [Self::All, Self::Waiting, Self::Running, Self::Failed, Self::Ended];

    pub fn name(self) -> &'static str {
        match self {
            Show::All => "all",
            Show::Waiting => "waiting",
            Show::Running => "running",
            Show::Failed => "failed",
            Show::Ended => "ended",
        }
    }

    fn states(self) -> &'static [TaskState] {
        use TaskState::*;
        match self {
            Show::All => &[],
            Show::Waiting => &[Created, Queued, Dispatched],
            Show::Running => &[Dispatched, Running, Terminating, Callback],
            Show::Failed => &[Failed],
            Show::Ended => &[Finished, Failed, Skipped, Terminated],
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|show| *show == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }
}

/// What a poll asks for. An answer to another question is too late.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question {
    pub show: Show,
    pub host: Option<String>,
}

impl Question {
    pub fn filter(&self) -> v1::TaskFilter {
        v1::TaskFilter {
            states: self
                .show
                .states()
                .iter()
                .map(|&state| state_to_wire(state).into())
                .collect(),
            runner: self.host.clone().unwrap_or_default(),
            ..v1::TaskFilter::default()
        }
    }
}

/// The slots of a host together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub name: String,
    pub state: &'static str,
    pub slots: usize,
    pub busy: usize,
    pub labels: String,
    /// Who cordoned it and why, or what is wrong.
    pub note: String,
}

/// Hosts in the order of their slots. One word for each: the worst of what is true of it.
pub fn hosts(runners: &[v1::Runner]) -> Vec<Host> {
    runners
        .chunk_by(|a, b| a.host == b.host)
        .filter_map(|slots| {
            let first = slots.first()?;
            let all = |state: &str| slots.iter().all(|slot| slot.state == state);
            let any = |state: &str| slots.iter().any(|slot| slot.state == state);
            let busy = slots.iter().filter(|slot| slot.task_id != 0).count();
            let cordoned = slots.iter().find(|slot| slot.cordoned);
            let state = if all("left") {
                "left"
            } else if any("lost") {
                "lost"
            } else if first.fault.is_some() {
                "faulty"
            } else if first.hold.is_some() {
                "held"
            } else if slots.iter().all(|slot| slot.cordoned) {
                "cordoned"
            } else if busy == slots.len() {
                "busy"
            } else {
                "ready"
            };
            let note = match (&first.fault, &first.hold, cordoned) {
                (Some(fault), ..) => format!("{}: {}", fault.kind.replace('_', " "), fault.detail),
                (None, Some(hold), _) => hold.message.clone(),
                (None, None, Some(slot)) => {
                    let reason = match slot.cordon_reason.as_str() {
                        "" => String::new(),
                        reason => format!(", \"{reason}\""),
                    };
                    format!("cordoned by {}{reason}", slot.cordoned_by)
                }
                (None, None, None) => String::new(),
            };
            Some(Host {
                name: first.host.clone(),
                state,
                slots: slots.len(),
                busy,
                labels: text::labels(&first.labels),
                note,
            })
        })
        .collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Cancel,
    Rerun,
}

/// A question to the person, answered by the next key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    pub verb: Verb,
    pub task: i64,
    pub text: String,
}

#[derive(Debug)]
pub enum Msg {
    Key(KeyEvent),
    /// The terminal has another size.
    Resized,
    Tasks {
        question: Question,
        tasks: Vec<v1::Task>,
        more: bool,
        now_ms: u64,
    },
    Hosts {
        runners: Vec<v1::Runner>,
        more: bool,
    },
    Status(Box<v1::StatusResponse>),
    /// A poll had no answer.
    Trouble(String),
    /// Output of a task.
    Output {
        task: i64,
        stderr: bool,
        data: Vec<u8>,
    },
    /// Something to say between the lines of its output.
    OutputNote {
        task: i64,
        text: String,
    },
    Explained {
        task: i64,
        lines: Vec<String>,
    },
    /// How a cancel or a rerun went.
    Done(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Poll,
    /// Read the output of this task, and no other any more.
    Follow(Option<i64>),
    Cancel(i64),
    Rerun(i64),
    Explain(i64),
    Quit,
}

#[derive(Debug)]
pub struct Model {
    /// Which cluster, as in every question.
    pub place: String,
    pub question: Question,
    pub pane: Pane,
    pub tasks: Vec<v1::Task>,
    pub more_tasks: bool,
    pub hosts: Vec<Host>,
    pub more_hosts: bool,
    pub status: Option<v1::StatusResponse>,
    pub now_ms: u64,
    /// Id of the selected task, and where it was.
    pub selected: Option<i64>,
    pub row: usize,
    pub host_row: usize,
    pub show_logs: bool,
    pub log: Option<Log>,
    /// Lines that the log is scrolled up by.
    pub scroll: usize,
    /// The task that is explained in place of its log, and the lines that say so.
    pub why: Option<(i64, Vec<String>)>,
    pub ask: Option<Ask>,
    pub note: String,
    pub trouble: String,
    pub help: bool,
    /// Something on the screen is not as it was drawn.
    pub dirty: bool,
}

impl Model {
    pub fn new(place: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            question: Question::default(),
            pane: Pane::Tasks,
            tasks: Vec::new(),
            more_tasks: false,
            hosts: Vec::new(),
            more_hosts: false,
            status: None,
            now_ms: 0,
            selected: None,
            row: 0,
            host_row: 0,
            show_logs: true,
            log: None,
            scroll: 0,
            why: None,
            ask: None,
            note: String::new(),
            trouble: String::new(),
            help: false,
            dirty: true,
        }
    }

    pub fn task(&self) -> Option<&v1::Task> {
        self.tasks.iter().find(|task| Some(task.id) == self.selected)
    }

    pub fn update(&mut self, msg: Msg) -> Vec<Effect> {
        match msg {
            Msg::Key(key) if key.kind == KeyEventKind::Release => Vec::new(),
            Msg::Key(key) => {
                self.dirty = true;
                self.key(key)
            }
            Msg::Resized => {
                self.dirty = true;
                Vec::new()
            }
            Msg::Tasks {
                question,
                tasks,
                more,
                now_ms,
            } => {
                if question == self.question {
                    self.new_tasks(tasks, more, now_ms)
                } else {
                    // Another question was asked meanwhile.
                    vec![Effect::Poll]
                }
            }
            Msg::Hosts { runners, more } => {
                let hosts = hosts(&runners);
                self.dirty |= hosts != self.hosts || more != self.more_hosts;
                (self.hosts, self.more_hosts) = (hosts, more);
                self.host_row = self.host_row.min(self.hosts.len().saturating_sub(1));
                Vec::new()
            }
            Msg::Status(status) => {
                self.dirty |= self.status.as_ref() != Some(&*status);
                self.status = Some(*status);
                Vec::new()
            }
            Msg::Trouble(trouble) => {
                self.dirty |= trouble != self.trouble;
                self.trouble = trouble;
                Vec::new()
            }
            Msg::Output { task, stderr, data } => {
                if let Some(log) = self.log.as_mut().filter(|log| log.task == task) {
                    let new = log.push(stderr, &data);
                    // What is looked at stays where it is.
                    if self.scroll > 0 {
                        self.scroll = (self.scroll + new).min(log.lines().count());
                    }
                    self.dirty = true;
                }
                Vec::new()
            }
            Msg::OutputNote { task, text } => {
                if let Some(log) = self.log.as_mut().filter(|log| log.task == task) {
                    log.note(&text);
                    self.dirty = true;
                }
                Vec::new()
            }
            Msg::Explained { task, lines } => {
                if let Some((of, said)) = self.why.as_mut().filter(|(of, _)| *of == task) {
                    self.dirty |= *said != lines;
                    (*of, *said) = (task, lines);
                }
                Vec::new()
            }
            Msg::Done(note) => {
                self.note = note;
                self.dirty = true;
                vec![Effect::Poll]
            }
        }
    }

    fn new_tasks(&mut self, tasks: Vec<v1::Task>, more: bool, now_ms: u64) -> Vec<Effect> {
        // Durations of running tasks change with every poll; the rest only with the tasks.
        let moves = tasks
            .iter()
            .any(|task| state_from_wire(task.state) == Some(TaskState::Running));
        self.dirty |= moves || tasks != self.tasks || more != self.more_tasks || !self.trouble.is_empty();
        (self.tasks, self.more_tasks, self.now_ms) = (tasks, more, now_ms);
        self.trouble.clear();
        let before = self.selected;
        match self.tasks.iter().position(|task| Some(task.id) == self.selected) {
            Some(row) => self.row = row,
            None => {
                self.row = self.row.min(self.tasks.len().saturating_sub(1));
                self.selected = self.tasks.get(self.row).map(|task| task.id);
            }
        }
        let mut effects = if self.selected == before {
            Vec::new()
        } else {
            self.chosen()
        };
        if let Some((task, _)) = &self.why {
            effects.push(Effect::Explain(*task));
        }
        effects
    }

    /// Another task is selected: its log, and not the one before.
    fn chosen(&mut self) -> Vec<Effect> {
        self.scroll = 0;
        self.why = None;
        let wanted = self.selected.filter(|_| self.show_logs);
        if self.log.as_ref().map(|log| log.task) == wanted {
            return Vec::new();
        }
        self.log = wanted.map(Log::new);
        vec![Effect::Follow(wanted)]
    }

    fn key(&mut self, key: KeyEvent) -> Vec<Effect> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => vec![Effect::Quit],
                _ => Vec::new(),
            };
        }
        if let Some(ask) = self.ask.take() {
            return self.answer(&ask, key.code);
        }
        if std::mem::take(&mut self.help) {
            return Vec::new();
        }
        self.note.clear();
        match key.code {
            KeyCode::Char('q') => vec![Effect::Quit],
            KeyCode::Char('?' | 'h') => {
                self.help = true;
                Vec::new()
            }
            KeyCode::Tab => self.turn(1),
            KeyCode::BackTab => self.turn(2),
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::PageUp => self.go(-(PAGE_ROWS as isize)),
            KeyCode::PageDown => self.go(PAGE_ROWS as isize),
            KeyCode::Home | KeyCode::Char('g') => self.go(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.go(isize::MAX),
            KeyCode::Char('f') => self.filtered(Question {
                show: self.question.show.next(),
                host: self.question.host.clone(),
            }),
            KeyCode::Enter if self.pane == Pane::Hosts => {
                let host = self.hosts.get(self.host_row).map(|host| host.name.clone());
                self.pane = Pane::Tasks;
                self.filtered(Question {
                    show: self.question.show,
                    host,
                })
            }
            KeyCode::Esc if self.why.is_some() => {
                self.why = None;
                Vec::new()
            }
            KeyCode::Esc => self.filtered(Question::default()),
            KeyCode::Char('l') => {
                self.show_logs = !self.show_logs;
                if !self.show_logs && self.pane == Pane::Logs {
                    self.pane = Pane::Tasks;
                }
                self.chosen()
            }
            KeyCode::Char('w') if self.why.is_some() => {
                self.why = None;
                Vec::new()
            }
            KeyCode::Char('w') => match self.selected {
                Some(task) => {
                    self.why = Some((task, Vec::new()));
                    vec![Effect::Explain(task)]
                }
                None => self.say("no task is selected"),
            },
            KeyCode::Char('c') => self.ask(Verb::Cancel),
            KeyCode::Char('r') => self.ask(Verb::Rerun),
            _ => Vec::new(),
        }
    }

    fn say(&mut self, note: impl Into<String>) -> Vec<Effect> {
        self.note = note.into();
        Vec::new()
    }

    /// The next pane, or with 2 the one before.
    fn turn(&mut self, by: usize) -> Vec<Effect> {
        let panes: &[Pane] = if self.show_logs {
            &[Pane::Tasks, Pane::Hosts, Pane::Logs]
        } else {
            &[Pane::Tasks, Pane::Hosts]
        };
        let at = panes.iter().position(|pane| *pane == self.pane).unwrap_or(0);
        let by = if by == 2 { panes.len() - 1 } else { by };
        self.pane = panes[(at + by) % panes.len()];
        Vec::new()
    }

    fn filtered(&mut self, question: Question) -> Vec<Effect> {
        if question == self.question {
            return Vec::new();
        }
        self.question = question;
        (self.row, self.selected) = (0, None);
        vec![Effect::Poll]
    }

    fn go(&mut self, by: isize) -> Vec<Effect> {
        let moved = |row: usize, count: usize| row.saturating_add_signed(by).min(count.saturating_sub(1));
        match self.pane {
            Pane::Hosts => {
                self.host_row = moved(self.host_row, self.hosts.len());
                Vec::new()
            }
            Pane::Logs => {
                let count = self.log.as_ref().map_or(0, |log| log.lines().count());
                // Upwards is back in time.
                self.scroll = match by {
                    isize::MIN => count,
                    by => self.scroll.saturating_add_signed(by.saturating_neg()).min(count),
                };
                Vec::new()
            }
            Pane::Tasks => {
                self.row = moved(self.row, self.tasks.len());
                let selected = self.tasks.get(self.row).map(|task| task.id);
                if selected == self.selected {
                    return Vec::new();
                }
                self.selected = selected;
                self.chosen()
            }
        }
    }

    /// Asks, where the task is one that this can be done with.
    fn ask(&mut self, verb: Verb) -> Vec<Effect> {
        let Some(task) = self.task() else {
            return self.say("no task is selected");
        };
        let id = task.id;
        let ended = state_from_wire(task.state).is_some_and(TaskState::is_terminal);
        let what = match (verb, ended) {
            (Verb::Cancel, true) => return self.say(format!("task {id} has ended; r runs it once more")),
            (Verb::Rerun, false) => return self.say(format!("task {id} has not ended; c cancels it")),
            (Verb::Cancel, false) => "Cancel",
            (Verb::Rerun, true) => "Run once more",
        };
        let name = text::clean(&text::name(task));
        self.ask = Some(Ask {
            verb,
            task: id,
            text: format!("{what}: task {id} {name} at {}? [y/N]", self.place),
        });
        Vec::new()
    }

    fn answer(&mut self, ask: &Ask, key: KeyCode) -> Vec<Effect> {
        if !matches!(key, KeyCode::Char('y' | 'Y')) {
            return self.say("nothing was changed");
        }
        self.note = format!("task {} …", ask.task);
        vec![match ask.verb {
            Verb::Cancel => Effect::Cancel(ask.task),
            Verb::Rerun => Effect::Rerun(ask.task),
        }]
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
