//! Runs runners and schedulers against each other, over one database in memory, with no ports.
//!
//! Every decision is made by the same pure functions that the product calls: who may speak
//! (`identify`), which beat acts (`order`), what it means (`answer`), how a task ends (`end`), what the
//! runner does with an answer (`react`), who is lost (`Observer`). Around them this file models what the
//! product does between the decisions, and a hostile world: messages are lost, doubled and reordered,
//! processes die at every step, hosts reboot, users cancel.
//!
//! A seed gives the same history each time. `SYSTOLE_MODEL_SEEDS=100000 cargo test -p systole-shared
//! --test model` tries more of them, `SYSTOLE_MODEL_SEED=17` replays one. A violation prints the last
//! events. So that the model can fail, [`Rule`] lists rules of the protocol that can be switched off,
//! and a test shows that each of them is missed.

#[path = "../../tests/src/random.rs"]
mod random;

use random::Random;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use systole_shared::heartbeat::answer::{Redelivery, Step, Subject, answer, redelivery};
use systole_shared::heartbeat::end::{self, Report, StoppedBy, Terminating};
use systole_shared::heartbeat::identity::{Holder, Identity, Order, Replaced, identify, is_knock_over, order};
use systole_shared::heartbeat::react::{Action, Command, RUN_NEW_SLACK_MS, Slot, acceptable, react, still_valid};
use systole_shared::heartbeat::{ResetReason, Said};
use systole_shared::policy::retry::{FollowUp, follow_up};
use systole_shared::policy::stale::{Observer, Seen, StaleRule};
use systole_shared::task::{Outcome, OutcomeKind, TaskState, Transition};

const HOSTS: usize = 2;
const SLOTS: usize = 2;
const SCHEDULERS: usize = 3;
const BEAT_MS: i64 = 30_000;
const LOST_MS: i64 = 90_000;
const PARK_MS: u64 = 30_000;
/// From the end of the parking until the runner takes the answer for lost.
const DEADLINE_SLACK_MS: i64 = 10_000;
const GRACE_MS: i64 = 2_000;
const RETRY_DELAY_MS: i64 = 3_000;
const SEEDS: u64 = 300;
const STEPS: u32 = 1_200;
const LIVENESS_ROUNDS: u32 = 6_000;
const EVENTS_KEPT: usize = 60;

/// A rule of the protocol that can be switched off, to see that the model notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Only a beat with a higher seq than all before acts.
    SeqOrder,
    /// A lower `start_no` is refused.
    StartOrder,
    /// A runner acts on the answer to its latest beat only.
    LatestAnswer,
    /// A claim wins the runner's row with the seq of the parked beat, and only if nothing is held.
    ClaimGuard,
    /// The begin is journaled before the fork, and a known task is not begun again.
    Journal,
    /// RUN_NEW is valid for a bounded time.
    Expiry,
    /// A dispatched task is given again within one boot only.
    SameBoot,
    /// A process that lost its host gets it back only when it asks again and again.
    Replaced,
}

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound.max(1)).expect("a usize fits");
        usize::try_from(self.number() % bound).expect("below a usize")
    }

    fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn ms(&mut self, below: i64) -> i64 {
        i64::try_from(self.below(usize::try_from(below).expect("positive"))).expect("fits")
    }
}

/// One runner: host and slot.
type At = (usize, usize);

// ---------------------------------------------------------------------------------------------------
// What is stored

struct HostRow {
    instance: String,
    start_no: i64,
    boot: u32,
    left: bool,
}

#[derive(Default)]
struct RunnerRow {
    start_no: i64,
    seq: i64,
    seen: i64,
    leaving: bool,
    task: Option<i64>,
    held_boot: u32,
    redeliveries: u32,
}

/// What the command of a task will do, drawn when it is submitted.
#[derive(Clone, Copy, Debug)]
struct Plan {
    run_ms: i64,
    /// Exit code, or the signal that ends it as a negative number.
    code: i32,
    /// It answers TERM with exit code 0.
    traps_term: bool,
    timeout_ms: i64,
    max_retries: u32,
    has_callback: bool,
}

const PLAN: Plan = Plan {
    run_ms: 60_000,
    code: 0,
    traps_term: false,
    timeout_ms: i64::MAX,
    max_retries: 0,
    has_callback: false,
};

struct Task {
    id: i64,
    state: TaskState,
    plan: Plan,
    attempt: u32,
    replacements: u32,
    run_at: i64,
    terminating: Option<Terminating>,
    outcome: Option<Outcome>,
    late_result: Option<Outcome>,
    /// Where it was dispatched to, and to which process.
    at: Option<At>,
    instance: String,
    start_no: i64,
    orphaned_at: Option<i64>,
    followed: bool,
}

// ---------------------------------------------------------------------------------------------------
// What is said

#[derive(Clone, Debug)]
struct TaskResult {
    task: i64,
    dispatched_start_no: i64,
    report: Report,
}

#[derive(Clone, Debug)]
struct Beat {
    at: At,
    instance: String,
    start_no: i64,
    seq: i64,
    boot: u32,
    said: Said,
    /// The task held; 0 for IDLE.
    task: i64,
    results: Vec<TaskResult>,
    unanswered: u32,
    leaving: bool,
    park_ms: u64,
}

#[derive(Clone, Debug)]
enum Reply {
    Command(Command),
    Refused(Identity),
}

#[derive(Clone, Debug)]
struct Answer {
    at: At,
    instance: String,
    start_no: i64,
    seq: i64,
    reply: Reply,
    acknowledged: Vec<i64>,
    next_beat_ms: i64,
}

#[derive(Clone, Debug)]
enum Message {
    Request(Beat),
    Response(Answer),
}

// ---------------------------------------------------------------------------------------------------
// Who is there

#[derive(Default)]
struct Scheduler {
    parked: Vec<(Beat, i64)>,
    observer: Observer,
}

/// The append-only journal of a host. A power cut may lose its last record.
#[derive(Clone, Debug)]
enum Record {
    Begun { task: i64, slot: usize, start_no: i64 },
    NotBegun(i64),
    Ended(i64, Report),
    Aside(i64),
    Forgotten(i64),
}

#[derive(Default)]
struct Disk {
    instance: String,
    start_no: i64,
    journal: Vec<Record>,
}

impl Disk {
    /// What the journal says of a task: whether it was begun (also: forgotten since).
    fn knows(&self, task: i64) -> bool {
        let mut known = false;
        for record in &self.journal {
            match record {
                Record::Begun { task: t, .. } if *t == task => known = true,
                Record::NotBegun(t) if *t == task => known = false,
                _ => {}
            }
        }
        known
    }

    /// Tasks of a slot that are begun and not settled: with their result, if it is known.
    fn open(&self, slot: usize) -> Vec<(i64, i64, Option<Report>)> {
        let mut open: Vec<(i64, i64, Option<Report>)> = Vec::new();
        for record in &self.journal {
            match record {
                Record::Begun {
                    task,
                    slot: s,
                    start_no,
                } if *s == slot => open.push((*task, *start_no, None)),
                Record::Begun { .. } => {}
                Record::NotBegun(t) | Record::Aside(t) | Record::Forgotten(t) => open.retain(|(task, ..)| task != t),
                Record::Ended(t, report) => {
                    if let Some(entry) = open.iter_mut().find(|(task, ..)| task == t) {
                        entry.2 = Some(report.clone());
                    }
                }
            }
        }
        open
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begin {
    Told,
    Journaled,
}

/// The loop of one slot.
struct Agent {
    slot: Slot,
    /// A task on its way to the fork; the slot says Alive already, and no beat is sent meanwhile.
    begin: Option<(i64, Begin)>,
    /// The child that is being stopped is of no interest to the cluster.
    aside: bool,
    seq: i64,
    sent_at: i64,
    park_ms: u64,
    waiting: bool,
    unanswered: u32,
    next_beat: i64,
    results: Vec<TaskResult>,
    /// `start_no` of the process that was given the task of the child.
    dispatched_start_no: i64,
    /// It said goodbye and was let go.
    gone: bool,
}

impl Agent {
    fn new(now: i64) -> Self {
        Self {
            slot: Slot::Empty,
            begin: None,
            aside: false,
            seq: 0,
            sent_at: now,
            park_ms: 0,
            waiting: false,
            unanswered: 0,
            next_beat: now,
            results: Vec::new(),
            dispatched_start_no: 0,
            gone: false,
        }
    }

    /// The slot when no child is there.
    fn settle(&mut self) {
        self.slot = self
            .results
            .last()
            .map_or(Slot::Empty, |result| Slot::Ended(result.task));
    }
}

struct Process {
    instance: String,
    start_no: i64,
    boot: u32,
    agents: Vec<Agent>,
    paused_until: i64,
    leaving: bool,
}

/// A real child: what is true, whatever anybody believes.
struct Child {
    task: i64,
    started: i64,
    ends_at: i64,
    stopped_by: Option<StoppedBy>,
    traps_term: bool,
    code: i32,
    alive: bool,
}

impl Child {
    fn exit_code(&self) -> i32 {
        match self.stopped_by {
            Some(_) if self.traps_term => 0,
            Some(_) => -15,
            None => self.code,
        }
    }

    fn report(&self, now: i64) -> Report {
        let code = self.exit_code();
        Report {
            kind: match code {
                0 => OutcomeKind::Success,
                code if code < 0 => OutcomeKind::Signal,
                _ => OutcomeKind::ExitCode,
            },
            exit_code: (code >= 0).then_some(code),
            signal: (code < 0).then_some(-code),
            message: String::new(),
            stopped_by: self.stopped_by,
            ran_ms: (now - self.started).unsigned_abs(),
        }
    }
}

fn bare_report(kind: OutcomeKind) -> Report {
    Report {
        kind,
        exit_code: None,
        signal: None,
        message: String::new(),
        stopped_by: None,
        ran_ms: 0,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    /// The agent and its child die.
    Both,
    /// The agent dies; its next start ends the child.
    AgentAlone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rise {
    /// Leftovers are ended before the first beat.
    Sweep,
    /// A child that is there goes on under the new process.
    Resume,
    /// The host was rebooted; `true`: the journal's last record is lost.
    Reboot(bool),
    /// A new state directory: nothing is known.
    Reinstall,
}

struct World {
    off: Option<Rule>,
    now: i64,
    hosts: BTreeMap<usize, HostRow>,
    /// Processes that lost their host: their start, and when they first asked to have it back.
    replaced: BTreeMap<(usize, String), (i64, Option<i64>)>,
    runners: BTreeMap<At, RunnerRow>,
    tasks: Vec<Task>,
    schedulers: Vec<Scheduler>,
    disks: Vec<Disk>,
    boots: Vec<u32>,
    processes: Vec<Option<Process>>,
    children: BTreeMap<At, Child>,
    network: Vec<Message>,
    /// On their way for a long time, perhaps longer than their sender lives.
    held_up: Vec<Message>,
    /// Starts of real children, by task.
    starts: BTreeMap<i64, u32>,
    /// How children really ended: exit code as in [`Plan`], and who stopped them.
    exits: BTreeMap<i64, (i32, Option<StoppedBy>)>,
    instances: u32,
    violation: Option<String>,
    events: VecDeque<String>,
}

impl World {
    fn new(off: Option<Rule>) -> Self {
        let mut world = Self {
            off,
            now: 1_000_000,
            hosts: BTreeMap::new(),
            replaced: BTreeMap::new(),
            runners: BTreeMap::new(),
            tasks: Vec::new(),
            schedulers: (0..SCHEDULERS).map(|_| Scheduler::default()).collect(),
            disks: (0..HOSTS).map(|_| Disk::default()).collect(),
            boots: vec![0; HOSTS],
            processes: (0..HOSTS).map(|_| None).collect(),
            children: BTreeMap::new(),
            network: Vec::new(),
            held_up: Vec::new(),
            starts: BTreeMap::new(),
            exits: BTreeMap::new(),
            instances: 0,
            violation: None,
            events: VecDeque::new(),
        };
        for host in 0..HOSTS {
            world.rise(host, Rise::Reinstall);
        }
        world
    }

    fn on(&self, rule: Rule) -> bool {
        self.off != Some(rule)
    }

    fn note(&mut self, event: String) {
        if self.events.len() == EVENTS_KEPT {
            self.events.pop_front();
        }
        self.events.push_back(format!("{:>8} {event}", self.now - 1_000_000));
    }

    fn violate(&mut self, what: String) {
        self.note(format!("VIOLATION {what}"));
        self.violation.get_or_insert(what);
    }

    fn task(&self, id: i64) -> Option<&Task> {
        usize::try_from(id - 1).ok().and_then(|index| self.tasks.get(index))
    }

    fn task_mut(&mut self, id: i64) -> &mut Task {
        let index = usize::try_from(id - 1).expect("ids begin with 1");
        &mut self.tasks[index]
    }

    fn state(&self, id: i64) -> TaskState {
        self.task(id).expect("a known task").state
    }

    fn outcome(&self, id: i64) -> Option<OutcomeKind> {
        self.task(id)
            .and_then(|task| task.outcome.as_ref())
            .map(|outcome| outcome.kind)
    }

    fn row(&mut self, at: At) -> &mut RunnerRow {
        self.runners.entry(at).or_default()
    }

    fn child_lives(&self, task: i64) -> bool {
        self.children.values().any(|child| child.task == task && child.alive)
    }

    fn advance(&mut self, ms: i64) {
        self.now += ms;
        let now = self.now;
        for child in self
            .children
            .values_mut()
            .filter(|child| child.alive && now >= child.ends_at)
        {
            child.alive = false;
            self.exits.insert(child.task, (child.exit_code(), child.stopped_by));
        }
    }

    // -----------------------------------------------------------------------------------------------
    // Transactions

    fn submit(&mut self, plan: Plan) -> i64 {
        self.insert(plan, 1, 0, self.now)
    }

    fn insert(&mut self, plan: Plan, attempt: u32, replacements: u32, run_at: i64) -> i64 {
        let id = i64::try_from(self.tasks.len() + 1).expect("few tasks");
        let state = if run_at > self.now {
            TaskState::Created
        } else {
            TaskState::Queued
        };
        self.tasks.push(Task {
            id,
            state,
            plan,
            attempt,
            replacements,
            run_at,
            terminating: None,
            outcome: None,
            late_result: None,
            at: None,
            instance: String::new(),
            start_no: 0,
            orphaned_at: None,
            followed: false,
        });
        self.note(format!("task {id} {state} attempt {attempt}"));
        id
    }

    /// One guarded write. `verdict`: nobody knows what became of the child, and the outcome says so.
    fn write(&mut self, id: i64, transition: Transition, outcome: Option<Outcome>, verdict: bool) {
        let state = self.state(id);
        if !transition.leaves(state) {
            return self.violate(format!(
                "task {id} is {state}: {transition:?} was decided for a state that it cannot leave"
            ));
        }
        let to = transition.to();
        self.note(format!(
            "task {id} {state} -> {to} {}",
            outcome.as_ref().map_or("", |o| o.message.as_str())
        ));
        self.task_mut(id).state = to;
        if let Some(outcome) = outcome {
            self.check_truth(id, to, &outcome, verdict);
            self.task_mut(id).outcome = Some(outcome);
        }
        if to.child_is_over() {
            self.let_go(id);
            self.follow(id);
        }
    }

    /// What is recorded must be what happened.
    fn check_truth(&mut self, id: i64, to: TaskState, outcome: &Outcome, verdict: bool) {
        if !verdict && self.child_lives(id) {
            self.violate(format!(
                "task {id} ended as {to} ({}) while its child is alive",
                outcome.kind
            ));
        }
        let exit = self.exits.get(&id).copied();
        let started = self.starts.contains_key(&id);
        let truthful = match outcome.kind {
            OutcomeKind::Success => exit == Some((0, None)),
            OutcomeKind::ExitCode => exit.is_some_and(|(code, _)| outcome.exit_code == Some(code)),
            OutcomeKind::Signal => exit.is_some_and(|(code, _)| outcome.signal == Some(-code)),
            OutcomeKind::NotStarted => !started,
            _ => true,
        };
        if !truthful {
            self.violate(format!(
                "task {id} ended as {} but in truth: {exit:?}, started: {started}",
                outcome.kind
            ));
        }
    }

    fn let_go(&mut self, id: i64) {
        for row in self.runners.values_mut().filter(|row| row.task == Some(id)) {
            row.task = None;
        }
    }

    fn follow(&mut self, id: i64) {
        let task = self.task_mut(id);
        if task.state != TaskState::Failed || task.followed {
            return;
        }
        task.followed = true;
        let (plan, attempt, replacements) = (task.plan, task.attempt, task.replacements);
        let kind = task
            .outcome
            .as_ref()
            .map_or(OutcomeKind::Skipped, |outcome| outcome.kind);
        let now = self.now;
        match follow_up(kind, attempt, plan.max_retries, replacements) {
            FollowUp::Nothing => {}
            FollowUp::Retry => drop(self.insert(plan, attempt + 1, replacements, now + RETRY_DELAY_MS)),
            FollowUp::Replace => drop(self.insert(plan, attempt, replacements + 1, now)),
        }
    }

    fn admit(&mut self) {
        let now = self.now;
        let due: Vec<i64> = self
            .tasks
            .iter()
            .filter(|t| t.state == TaskState::Created && t.run_at <= now)
            .map(|t| t.id)
            .collect();
        for id in due {
            self.write(id, Transition::Admit, None, false);
        }
    }

    fn call_back(&mut self) {
        let waiting: Vec<i64> = self
            .tasks
            .iter()
            .filter(|t| t.state == TaskState::Callback)
            .map(|t| t.id)
            .collect();
        for id in waiting {
            self.write(id, Transition::CallbackDone, None, false);
        }
    }

    /// A user's cancel, or the scheduler's own clock on a run or start timeout.
    fn terminate(&mut self, id: i64, reason: Terminating) {
        let state = self.state(id);
        if reason == Terminating::StartTimeout && state != TaskState::Dispatched {
            return;
        }
        self.note(format!("{} for task {id} ({state})", reason.name()));
        if Transition::CancelWaiting.leaves(state) && reason == Terminating::User {
            let (_, outcome) = end::stopped(Some(reason), false);
            self.write(id, Transition::CancelWaiting, Some(outcome), false);
        } else if Transition::CancelHeld.leaves(state) {
            self.write(id, Transition::CancelHeld, None, false);
            self.task_mut(id).terminating = Some(reason);
        } else if state == TaskState::Terminating {
            let task = self.task_mut(id);
            task.terminating = task.terminating.max(Some(reason));
        }
    }

    /// The reaper of one replica.
    fn reap(&mut self, scheduler: usize) {
        let rows: Vec<Seen> = self
            .runners
            .iter()
            .map(|(at, row)| Seen {
                host: format!("h{}", at.0),
                slot: u32::try_from(at.1).expect("few slots"),
                start_no: row.start_no,
                seq: row.seq,
                age_ms: self.now - row.seen,
                holds_task: row.task.is_some(),
                leaving: row.leaving,
            })
            .collect();
        let rule = StaleRule {
            lost_after_ms: LOST_MS,
            read_gap_max_ms: BEAT_MS,
        };
        let verdicts = self.schedulers[scheduler].observer.pass(self.now, &rows, rule);
        for (host, slot, start_no, seq) in verdicts.lost {
            let host = host[1..].parse().expect("made above");
            let row = self.row((host, usize::try_from(slot).expect("few slots")));
            if let (Some(id), true) = (row.task, row.start_no == start_no && row.seq == seq) {
                self.lose(id);
            }
        }
        let now = self.now;
        let orphans: Vec<i64> = self
            .tasks
            .iter()
            .filter(|t| t.state.is_held() && t.orphaned_at.is_some_and(|since| now - since >= LOST_MS))
            .map(|t| t.id)
            .collect();
        for id in orphans {
            self.lose(id);
        }
    }

    fn lose(&mut self, id: i64) {
        let task = self.task(id).expect("known");
        let (transition, outcome) = end::lost(task.state, task.terminating, LOST_MS.unsigned_abs());
        self.write(id, transition, Some(outcome), true);
    }

    // -----------------------------------------------------------------------------------------------
    // A replica and the beats it gets

    /// One group commit. At most one beat per runner process acts: the one with the highest seq.
    fn receive(&mut self, scheduler: usize, beats: Vec<Beat>) {
        let mut newest: BTreeMap<(At, String, i64), i64> = BTreeMap::new();
        for beat in &beats {
            let seq = newest
                .entry((beat.at, beat.instance.clone(), beat.start_no))
                .or_insert(beat.seq);
            *seq = (*seq).max(beat.seq);
        }
        for beat in beats {
            if newest[&(beat.at, beat.instance.clone(), beat.start_no)] == beat.seq {
                self.act(scheduler, beat);
            } else {
                self.reply(&beat, Reply::Command(Command::GoOn), Vec::new(), 1_000);
            }
        }
    }

    /// The transaction of one beat.
    fn act(&mut self, scheduler: usize, beat: Beat) {
        let identity = self.identity(&beat);
        self.note(format!(
            "s{scheduler} gets {:?} {}.{}/{} {} {} {identity:?}",
            beat.at,
            beat.instance,
            beat.start_no,
            beat.seq,
            beat.said.name(),
            beat.task
        ));
        match identity {
            Identity::Old | Identity::Taken => return self.reply(&beat, Reply::Refused(identity), Vec::new(), 5_000),
            Identity::New | Identity::Restart | Identity::Successor => self.take_host(&beat, identity),
            Identity::Holder => {}
        }
        let now = self.now;
        let seq_order = self.on(Rule::SeqOrder);
        let row = self.row(beat.at);
        let turn = if seq_order {
            order(row.seq, beat.seq)
        } else {
            Order::Next
        };
        match turn {
            Order::Stale => self.reply(&beat, Reply::Command(Command::GoOn), Vec::new(), 1_000),
            Order::Again => self.repeat(&beat),
            Order::Next => {
                row.seq = beat.seq;
                row.seen = now;
                row.leaving = beat.leaving;
                self.decide(scheduler, beat);
            }
        }
        self.note_left();
    }

    fn identity(&mut self, beat: &Beat) -> Identity {
        let holder = self.hosts.get(&beat.at.0).map(|host| Holder {
            instance_id: host.instance.clone(),
            start_no: host.start_no,
            left: host.left,
            silent_ms: self.now - self.last_seen(beat.at.0),
        });
        let now = self.now;
        let remembers = self.on(Rule::Replaced);
        let known = self
            .replaced
            .get_mut(&(beat.at.0, beat.instance.clone()))
            .filter(|_| remembers);
        let replaced = known.as_ref().map(|(start_no, knocked)| Replaced {
            start_no: *start_no,
            knocked_ms: knocked.map(|at| now - at),
        });
        let identity = identify(holder.as_ref(), &beat.instance, beat.start_no, BEAT_MS, replaced);
        if let (Identity::Taken, Some((_, knocked))) = (identity, known)
            && knocked.is_none_or(|at| is_knock_over(now - at, BEAT_MS))
        {
            *knocked = Some(now);
        }
        match identity {
            Identity::Old if !self.on(Rule::StartOrder) => Identity::Restart,
            _ => identity,
        }
    }

    fn last_seen(&self, host: usize) -> i64 {
        self.runners
            .iter()
            .filter(|(at, _)| at.0 == host)
            .map(|(_, row)| row.seen)
            .max()
            .unwrap_or(0)
    }

    /// The process of this beat takes all slots of its host at once.
    fn take_host(&mut self, beat: &Beat, identity: Identity) {
        let host = beat.at.0;
        if identity == Identity::Successor
            && let Some(old) = self.hosts.get(&host)
        {
            let process = (old.start_no, None);
            self.replaced.insert((host, old.instance.clone()), process);
            self.replaced.remove(&(host, beat.instance.clone()));
        }
        self.hosts.insert(
            host,
            HostRow {
                instance: beat.instance.clone(),
                start_no: beat.start_no,
                boot: beat.boot,
                left: false,
            },
        );
        let now = self.now;
        for slot in 0..SLOTS {
            let row = self.row((host, slot));
            row.start_no = beat.start_no;
            row.seq = 0;
            row.seen = now;
            row.leaving = false;
            if identity == Identity::Successor
                && let Some(id) = row.task.take()
            {
                // Nothing proves that the old child is dead: the task stays with the reaper.
                self.task_mut(id).orphaned_at = Some(now);
            }
        }
    }

    fn note_left(&mut self) {
        for (index, host) in &mut self.hosts {
            let mut slots = self.runners.iter().filter(|(at, _)| at.0 == *index);
            host.left = slots.all(|(_, row)| row.leaving && row.task.is_none());
        }
    }

    /// The same beat again: it changes nothing, and is told the same.
    fn repeat(&mut self, beat: &Beat) {
        let acknowledged: Vec<i64> = beat
            .results
            .iter()
            .filter(|result| matches!(self.result_subject(beat, result), Subject::Mine(state) if state.child_is_over()))
            .map(|result| result.task)
            .collect();
        let held = self.row(beat.at).task;
        let command = match held {
            Some(id) if beat.said != Said::Running && self.state(id) == TaskState::Dispatched => Command::RunNew(id),
            _ => Command::GoOn,
        };
        self.reply(beat, Reply::Command(command), acknowledged, 1_000);
    }

    fn result_subject(&self, beat: &Beat, result: &TaskResult) -> Subject {
        match self.task(result.task) {
            None => Subject::Unknown,
            Some(task) => {
                let dispatched = (task.at, &task.instance, task.start_no);
                if dispatched == (Some(beat.at), &beat.instance, result.dispatched_start_no) {
                    Subject::Mine(task.state)
                } else {
                    Subject::Foreign
                }
            }
        }
    }

    fn decide(&mut self, scheduler: usize, beat: Beat) {
        let mut acknowledged = Vec::new();
        let mut unknown = None;
        for result in &beat.results {
            let said = if result.report.kind == OutcomeKind::Success {
                Said::Finished
            } else {
                Said::Failed
            };
            match answer(said, self.result_subject(&beat, result)) {
                Step::Ended => {
                    self.record(result);
                    acknowledged.push(result.task);
                }
                Step::KeepLateResult => {
                    self.keep_late(result);
                    acknowledged.push(result.task);
                }
                Step::Reset(ResetReason::Ack) => acknowledged.push(result.task),
                Step::Reset(ResetReason::Unknown) => unknown = Some(result.task),
                step => self.violate(format!("a result of task {} leads to {step:?}", result.task)),
            }
        }
        if let Some(task) = unknown {
            let reset = Command::Reset(task, ResetReason::Unknown);
            return self.reply(&beat, Reply::Command(reset), acknowledged, 0);
        }
        if beat.said == Said::Running {
            self.decide_busy(scheduler, beat, acknowledged);
        } else {
            self.decide_free(scheduler, beat, acknowledged);
        }
    }

    fn record(&mut self, result: &TaskResult) {
        let task = self.task(result.task).expect("it is mine");
        let (transition, outcome) = end::end(task.state, task.terminating, &result.report, task.plan.has_callback);
        self.write(result.task, transition, Some(outcome), false);
    }

    fn keep_late(&mut self, result: &TaskResult) {
        let outcome = result.report.as_outcome();
        self.task_mut(result.task).late_result.get_or_insert(outcome);
    }

    fn decide_busy(&mut self, scheduler: usize, beat: Beat, acknowledged: Vec<i64>) {
        let subject = match self.task(beat.task) {
            None => Subject::Unknown,
            Some(task)
                if task.at == Some(beat.at) && task.instance == beat.instance && task.start_no <= beat.start_no =>
            {
                Subject::Mine(task.state)
            }
            Some(_) => Subject::Foreign,
        };
        match answer(Said::Running, subject) {
            step @ (Step::Started | Step::GoOn) => {
                if step == Step::Started {
                    self.write(beat.task, Transition::Start, None, false);
                }
                if acknowledged.is_empty() && beat.park_ms > 0 {
                    self.park(scheduler, beat);
                } else {
                    self.reply(&beat, Reply::Command(Command::GoOn), acknowledged, 1_000);
                }
            }
            Step::Reset(reason) => {
                let reset = Command::Reset(beat.task, reason);
                self.reply(&beat, Reply::Command(reset), acknowledged, 0);
            }
            step => self.violate(format!("RUNNING leads to {step:?}")),
        }
    }

    fn decide_free(&mut self, scheduler: usize, beat: Beat, acknowledged: Vec<i64>) {
        let held = self.row(beat.at).task;
        let subject = held.map_or(Subject::Nothing, |id| Subject::Mine(self.state(id)));
        let ended = match (answer(Said::Idle, subject), held) {
            (Step::Redeliver, Some(id)) => {
                let row = self.row(beat.at);
                let (redeliveries, held_boot) = (row.redeliveries, row.held_boot);
                let same_boot = held_boot == beat.boot || !self.on(Rule::SameBoot);
                match redelivery(redeliveries, same_boot) {
                    // A runner that does not hear is told nothing, and the task is not counted down on it.
                    Redelivery::Again if beat.unanswered > 0 => None,
                    Redelivery::Again => {
                        self.row(beat.at).redeliveries += 1;
                        return self.reply(&beat, Reply::Command(Command::RunNew(id)), acknowledged, 0);
                    }
                    Redelivery::NeverStarted => Some((id, end::never_started())),
                    Redelivery::Unknowable => Some((id, end::rebooted())),
                }
            }
            (Step::ChildGone, Some(id)) => Some((id, end::child_gone())),
            (Step::Stopped, Some(id)) => {
                let terminating = self.task(id).and_then(|task| task.terminating);
                Some((id, end::stopped(terminating, false)))
            }
            _ => None,
        };
        if let Some((id, (transition, outcome))) = ended {
            self.write(id, transition, Some(outcome), false);
        }
        self.offer(scheduler, beat, acknowledged);
    }

    /// The runner is free. A new task may ride on an acknowledgement; without one the beat is parked.
    fn offer(&mut self, scheduler: usize, beat: Beat, acknowledged: Vec<i64>) {
        let may_have_one = !beat.leaving && beat.unanswered == 0;
        if acknowledged.is_empty() && may_have_one && beat.park_ms > 0 {
            return self.park(scheduler, beat);
        }
        let claimed = if may_have_one { self.claim(&beat) } else { None };
        let command = match (claimed, acknowledged.contains(&beat.task)) {
            (Some(id), _) => Command::RunNew(id),
            (None, true) => Command::Reset(beat.task, ResetReason::Ack),
            (None, false) => Command::GoOn,
        };
        self.reply(&beat, Reply::Command(command), acknowledged, 1_000);
    }

    fn park(&mut self, scheduler: usize, beat: Beat) {
        let until = self.now + i64::try_from(beat.park_ms).expect("bounded");
        self.schedulers[scheduler].parked.push((beat, until));
    }

    /// The oldest waiting task, if the runner's row is as the beat left it.
    fn claim(&mut self, beat: &Beat) -> Option<i64> {
        let row = self.row(beat.at);
        let won = row.start_no == beat.start_no && row.seq == beat.seq && row.task.is_none();
        if !won && self.on(Rule::ClaimGuard) {
            return None;
        }
        let host = &self.hosts[&beat.at.0];
        if host.instance != beat.instance {
            return None;
        }
        let boot = host.boot;
        let id = self.tasks.iter().find(|task| task.state == TaskState::Queued)?.id;
        self.write(id, Transition::Dispatch, None, false);
        let row = self.row(beat.at);
        row.task = Some(id);
        row.held_boot = boot;
        row.redeliveries = 0;
        let task = self.task_mut(id);
        task.at = Some(beat.at);
        task.instance.clone_from(&beat.instance);
        task.start_no = beat.start_no;
        self.note(format!(
            "task {id} given to {:?} for beat {}/{}",
            beat.at, beat.start_no, beat.seq
        ));
        Some(id)
    }

    /// A replica looks at one parked beat: is there work, a cancel, or nothing until its time is over?
    fn serve_parked(&mut self, scheduler: usize, index: usize) {
        let Some((beat, until)) = self.schedulers[scheduler].parked.get(index).cloned() else {
            return;
        };
        let command = if beat.said == Said::Running {
            let stop = self.state(beat.task) == TaskState::Terminating;
            stop.then_some(Command::Reset(beat.task, ResetReason::Stop))
        } else {
            self.claim(&beat).map(Command::RunNew)
        };
        let command = command.or((self.now >= until).then_some(Command::GoOn));
        if let Some(command) = command {
            self.schedulers[scheduler].parked.remove(index);
            self.reply(&beat, Reply::Command(command), Vec::new(), 0);
        }
    }

    fn reply(&mut self, beat: &Beat, reply: Reply, acknowledged: Vec<i64>, next_beat_ms: i64) {
        self.network.push(Message::Response(Answer {
            at: beat.at,
            instance: beat.instance.clone(),
            start_no: beat.start_no,
            seq: beat.seq,
            reply,
            acknowledged,
            next_beat_ms,
        }));
    }

    // -----------------------------------------------------------------------------------------------
    // A runner process

    fn awake(&self, host: usize) -> bool {
        self.processes[host]
            .as_ref()
            .is_some_and(|process| self.now >= process.paused_until)
    }

    fn agent(&mut self, at: At) -> &mut Agent {
        &mut self.processes[at.0].as_mut().expect("a live process").agents[at.1]
    }

    fn die(&mut self, host: usize, death: Death) {
        self.note(format!("host {host} dies, {death:?}"));
        self.processes[host] = None;
        if death == Death::Both {
            self.kill_children(host);
        }
    }

    fn kill_children(&mut self, host: usize) {
        let dead: Vec<At> = self.children.keys().copied().filter(|at| at.0 == host).collect();
        for at in dead {
            if let Some(child) = self.children.remove(&at)
                && child.alive
            {
                self.exits.insert(child.task, (-9, None));
            }
        }
    }

    /// A process starts. No slot beats before it knows what is left of the former process.
    fn rise(&mut self, host: usize, rise: Rise) {
        self.note(format!("host {host} rises, {rise:?}"));
        match rise {
            Rise::Resume => {}
            Rise::Sweep => self.kill_children(host),
            Rise::Reboot(lose_last) => {
                self.kill_children(host);
                self.boots[host] += 1;
                if lose_last {
                    self.disks[host].journal.pop();
                }
            }
            Rise::Reinstall => {
                self.kill_children(host);
                self.instances += 1;
                self.disks[host] = Disk {
                    instance: format!("i{}", self.instances),
                    ..Disk::default()
                };
            }
        }
        self.disks[host].start_no += 1;
        let agents = (0..SLOTS).map(|slot| self.take_stock((host, slot))).collect();
        self.processes[host] = Some(Process {
            instance: self.disks[host].instance.clone(),
            start_no: self.disks[host].start_no,
            boot: self.boots[host],
            agents,
            paused_until: self.now,
            leaving: false,
        });
    }

    fn take_stock(&mut self, at: At) -> Agent {
        let mut agent = Agent::new(self.now);
        let child = self.children.get(&at).map(|child| child.task);
        for (task, dispatched_start_no, report) in self.disks[at.0].open(at.1) {
            if child == Some(task) && report.is_none() {
                agent.slot = Slot::Alive(task);
                agent.dispatched_start_no = dispatched_start_no;
                continue;
            }
            // Begun, and neither a child nor a result: how it ended is not known.
            let report = report.unwrap_or_else(|| bare_report(OutcomeKind::RunnerRestarted));
            agent.results.push(TaskResult {
                task,
                dispatched_start_no,
                report,
            });
        }
        if agent.slot == Slot::Empty {
            agent.settle();
        }
        agent
    }

    /// One turn of the loop of one slot.
    fn tick(&mut self, at: At) {
        if !self.awake(at.0) {
            return;
        }
        let now = self.now;
        let agent = self.agent(at);
        if let Some((task, stage)) = agent.begin {
            return self.begin(at, task, stage);
        }
        if let Slot::Alive(task) | Slot::Stopping(task) = agent.slot {
            if self.children.get(&at).is_none_or(|child| !child.alive) {
                return self.collect(at, task);
            }
            self.enforce_timeout(at, task);
        }
        let agent = self.agent(at);
        if agent.gone {
            return self.exit_when_all_are_gone(at.0);
        }
        let patience = i64::try_from(agent.park_ms).expect("bounded") + DEADLINE_SLACK_MS;
        if agent.waiting && now >= agent.sent_at + patience {
            self.beat(at, false);
        } else if !agent.waiting && now >= agent.next_beat {
            self.beat(at, true);
        }
    }

    /// The way to the fork: journal first, then look at the clock, then fork.
    fn begin(&mut self, at: At, task: i64, stage: Begin) {
        let now = self.now;
        let start_no = self.processes[at.0].as_ref().expect("awake").start_no;
        if stage == Begin::Told {
            self.agent(at).begin = Some((task, Begin::Journaled));
            if self.on(Rule::Journal) {
                let start_no = self.task(task).map_or(start_no, |t| t.start_no);
                let slot = at.1;
                self.disks[at.0].journal.push(Record::Begun { task, slot, start_no });
            }
            return;
        }
        let expires = self.on(Rule::Expiry);
        let agent = self.agent(at);
        agent.begin = None;
        if expires && !still_valid((now - agent.sent_at).unsigned_abs(), agent.park_ms) {
            agent.settle();
            agent.next_beat = now;
            self.disks[at.0].journal.push(Record::NotBegun(task));
            return self.note(format!("{at:?} is too late to start task {task}"));
        }
        agent.next_beat = now;
        self.fork(at, task);
    }

    fn fork(&mut self, at: At, task: i64) {
        let Some(Task {
            plan, state, start_no, ..
        }) = self.task(task)
        else {
            return self.violate(format!("{at:?} starts task {task}, which does not exist"));
        };
        let (plan, state, start_no) = (*plan, *state, *start_no);
        self.agent(at).dispatched_start_no = start_no;
        self.note(format!("{at:?} STARTS task {task}"));
        let starts = self.starts.entry(task).or_insert(0);
        *starts += 1;
        if *starts > 1 {
            self.violate(format!("task {task} was started twice"));
        }
        if state.child_is_over() {
            self.violate(format!("task {task} was started after it had ended as {state}"));
        }
        let child = Child {
            task,
            started: self.now,
            ends_at: self.now + plan.run_ms,
            stopped_by: None,
            traps_term: plan.traps_term,
            code: plan.code,
            alive: true,
        };
        if let Some(other) = self.children.insert(at, child) {
            self.violate(format!("{at:?} has two children: {} and {task}", other.task));
        }
    }

    /// The child is dead: keep its result on disk, and say so at once.
    fn collect(&mut self, at: At, task: i64) {
        let now = self.now;
        let report = self.children.remove(&at).map(|child| child.report(now));
        let report = report.unwrap_or_else(|| bare_report(OutcomeKind::RunnerRestarted));
        let agent = self.agent(at);
        if agent.aside {
            agent.aside = false;
            agent.settle();
            agent.next_beat = now;
            agent.waiting = false;
            return self.disks[at.0].journal.push(Record::Aside(task));
        }
        agent.results.push(TaskResult {
            task,
            dispatched_start_no: agent.dispatched_start_no,
            report: report.clone(),
        });
        agent.settle();
        self.disks[at.0].journal.push(Record::Ended(task, report));
        self.beat(at, true);
    }

    fn enforce_timeout(&mut self, at: At, task: i64) {
        let timeout = self.task(task).map_or(i64::MAX, |task| task.plan.timeout_ms);
        let over = self
            .children
            .get(&at)
            .is_some_and(|child| self.now - child.started >= timeout);
        if over && self.agent(at).slot == Slot::Alive(task) {
            self.stop_child(at, StoppedBy::Timeout);
        }
    }

    fn stop_child(&mut self, at: At, by: StoppedBy) {
        let now = self.now;
        if let Slot::Alive(task) = self.agent(at).slot {
            self.agent(at).slot = Slot::Stopping(task);
        }
        if let Some(child) = self.children.get_mut(&at)
            && child.alive
            && child.stopped_by.is_none()
        {
            child.stopped_by = Some(by);
            child.ends_at = child.ends_at.min(now + GRACE_MS);
        }
    }

    /// Sends a beat. `on_purpose`: the answer that was waited for, if any, is given up without a fault.
    fn beat(&mut self, at: At, on_purpose: bool) {
        let now = self.now;
        let beat = self.next_beat(at, on_purpose);
        let agent = self.agent(at);
        agent.sent_at = now;
        agent.park_ms = beat.park_ms;
        agent.waiting = true;
        self.note(format!(
            "{at:?} says {} {} seq {}/{}",
            beat.said.name(),
            beat.task,
            beat.start_no,
            beat.seq
        ));
        self.network.push(Message::Request(beat));
    }

    fn next_beat(&mut self, at: At, on_purpose: bool) -> Beat {
        let process = self.processes[at.0].as_mut().expect("a live process");
        let (instance, start_no, boot, leaving) = (
            process.instance.clone(),
            process.start_no,
            process.boot,
            process.leaving,
        );
        let agent = &mut process.agents[at.1];
        if agent.waiting && !on_purpose {
            agent.unanswered += 1;
        }
        agent.seq += 1;
        let (said, task) = match (agent.slot, agent.results.last()) {
            (Slot::Alive(task) | Slot::Stopping(task), _) => (Said::Running, task),
            (_, Some(result)) if result.report.kind == OutcomeKind::Success => (Said::Finished, result.task),
            (_, Some(result)) => (Said::Failed, result.task),
            (_, None) => (Said::Idle, 0),
        };
        Beat {
            at,
            instance,
            start_no,
            seq: agent.seq,
            boot,
            said,
            task,
            results: agent.results.clone(),
            unanswered: agent.unanswered,
            leaving,
            park_ms: if agent.unanswered > 0 || leaving { 0 } else { PARK_MS },
        }
    }

    /// An answer arrives. It came over a connection, so a process that is gone does not get it.
    fn hear(&mut self, answer: &Answer) {
        let at = answer.at;
        let here = self.processes[at.0]
            .as_ref()
            .is_some_and(|p| p.instance == answer.instance && p.start_no == answer.start_no);
        if !here {
            return;
        }
        let latest_only = self.on(Rule::LatestAnswer);
        let now = self.now;
        let agent = self.agent(at);
        let (seq, latest) = (answer.seq.unsigned_abs(), agent.seq.unsigned_abs());
        if latest_only && !acceptable(seq, latest, "cluster", Some("cluster")) {
            return;
        }
        if agent.begin.is_some() {
            return;
        }
        agent.waiting = false;
        agent.unanswered = 0;
        agent.next_beat = now + answer.next_beat_ms;
        self.note(format!(
            "{at:?} hears {:?} {:?} for seq {}",
            answer.reply, answer.acknowledged, answer.seq
        ));
        match answer.reply {
            Reply::Refused(Identity::Old) => return self.die(at.0, Death::Both),
            Reply::Refused(_) => return,
            Reply::Command(command) => self.obey(at, command),
        }
        for task in &answer.acknowledged {
            self.forget(at, *task);
        }
        let leaving = self.processes[at.0].as_ref().is_some_and(|process| process.leaving);
        let agent = self.agent(at);
        if leaving && agent.slot == Slot::Empty && matches!(answer.reply, Reply::Command(Command::GoOn)) {
            agent.gone = true;
        }
    }

    fn obey(&mut self, at: At, command: Command) {
        let now = self.now;
        match react(self.agent(at).slot, command) {
            Action::Keep => {}
            Action::BeatNow => self.agent(at).next_beat = now,
            Action::Stop(_) => {
                self.stop_child(at, StoppedBy::Reset);
                self.agent(at).next_beat = now + 1_000;
            }
            Action::StopAside(_) => {
                self.stop_child(at, StoppedBy::Reset);
                self.agent(at).aside = true;
                self.agent(at).next_beat = now + 1_000;
            }
            Action::Forget(task) => {
                self.forget(at, task);
                self.agent(at).next_beat = now;
            }
            Action::SetAside(task) => {
                let agent = self.agent(at);
                agent.results.retain(|result| result.task != task);
                agent.settle();
                agent.next_beat = now;
                self.disks[at.0].journal.push(Record::Aside(task));
            }
            Action::Start(task) => self.start(at, task),
        }
    }

    fn forget(&mut self, at: At, task: i64) {
        let agent = self.agent(at);
        agent.results.retain(|result| result.task != task);
        if agent.slot == Slot::Ended(task) {
            agent.settle();
        }
        self.disks[at.0].journal.push(Record::Forgotten(task));
    }

    fn start(&mut self, at: At, task: i64) {
        let now = self.now;
        let process = self.processes[at.0].as_ref().expect("a live process");
        let kind = if self.disks[at.0].knows(task) && self.on(Rule::Journal) {
            // It was begun before, here. What became of it was set aside or is not known.
            Some(OutcomeKind::RunnerRestarted)
        } else {
            process.leaving.then_some(OutcomeKind::NotStarted)
        };
        let dispatched_start_no = self.task(task).map_or(0, |task| task.start_no);
        let agent = self.agent(at);
        if let Some(kind) = kind {
            agent.results.push(TaskResult {
                task,
                dispatched_start_no,
                report: bare_report(kind),
            });
            agent.settle();
            agent.next_beat = now;
        } else {
            agent.slot = Slot::Alive(task);
            agent.begin = Some((task, Begin::Told));
        }
    }

    /// SIGTERM: end the child, take nothing new, say goodbye.
    fn leave(&mut self, host: usize) {
        self.note(format!("host {host} leaves"));
        if let Some(process) = &mut self.processes[host] {
            process.leaving = true;
        }
        for slot in 0..SLOTS {
            let agent = self.agent((host, slot));
            if agent.begin.is_some() {
                continue;
            }
            self.stop_child((host, slot), StoppedBy::Drain);
            self.agent((host, slot)).waiting = false;
            self.agent((host, slot)).next_beat = self.now;
        }
    }

    fn exit_when_all_are_gone(&mut self, host: usize) {
        if self.processes[host]
            .as_ref()
            .is_some_and(|process| process.agents.iter().all(|agent| agent.gone))
        {
            self.die(host, Death::AgentAlone);
        }
    }

    // -----------------------------------------------------------------------------------------------
    // The network

    fn deliver(&mut self, scheduler: usize, message: Message) {
        match message {
            Message::Request(beat) => self.receive(scheduler, vec![beat]),
            Message::Response(answer) if self.awake(answer.at.0) => self.hear(&answer),
            // A stopped process: the answer waits in its socket.
            Message::Response(answer) if self.processes[answer.at.0].is_some() => {
                self.network.push(Message::Response(answer));
            }
            Message::Response(_) => {}
        }
    }

    // -----------------------------------------------------------------------------------------------
    // What must hold after every step

    fn check(&mut self) {
        let mut broken = Vec::new();
        for (at, row) in &self.runners {
            let held: BTreeSet<i64> = self
                .tasks
                .iter()
                .filter(|task| task.at == Some(*at) && task.state.is_held() && task.orphaned_at.is_none())
                .map(|task| task.id)
                .collect();
            if held.len() > 1 {
                broken.push(format!("{at:?} holds two tasks in the database: {held:?}"));
            } else if held.first().copied() != row.task {
                broken.push(format!("{at:?} holds {held:?} but its row says {:?}", row.task));
            }
        }
        for what in broken {
            self.violate(what);
        }
    }

    fn settled(&self) -> bool {
        self.network.is_empty()
            && self.tasks.iter().all(|task| task.state.is_terminal())
            && self.children.is_empty()
            && self
                .processes
                .iter()
                .flatten()
                .flat_map(|p| &p.agents)
                .all(|a| a.slot == Slot::Empty && a.results.is_empty())
    }
}

// ---------------------------------------------------------------------------------------------------
// A random history

#[derive(Debug, Default)]
struct Tally {
    tasks: usize,
    started: usize,
    outcomes: BTreeMap<&'static str, usize>,
}

fn random_plan(rng: &mut Random) -> Plan {
    Plan {
        run_ms: [50, 2_000, 40_000, 150_000][rng.below(4)],
        code: [0, 0, 3, -9][rng.below(4)],
        traps_term: rng.percent(30),
        timeout_ms: [i64::MAX, i64::MAX, 20_000][rng.below(3)],
        max_retries: [0, 0, 1, 2][rng.below(4)],
        has_callback: rng.percent(30),
    }
}

fn random_step(world: &mut World, rng: &mut Random) {
    let jump = if rng.percent(1) { rng.ms(100_000) } else { rng.ms(1_000) };
    world.advance(jump);
    match rng.below(100) {
        0..=34 => random_delivery(world, rng),
        35..=64 => world.tick((rng.below(HOSTS), rng.below(SLOTS))),
        65..=79 => {
            let scheduler = rng.below(SCHEDULERS);
            let index = rng.below(world.schedulers[scheduler].parked.len());
            world.serve_parked(scheduler, index);
        }
        80..=86 => {
            let scheduler = if rng.percent(80) { 0 } else { rng.below(SCHEDULERS) };
            world.reap(scheduler);
        }
        87..=88 => world.admit(),
        89 => world.call_back(),
        90 if !world.held_up.is_empty() => {
            let index = rng.below(world.held_up.len());
            let message = world.held_up.swap_remove(index);
            world.deliver(rng.below(SCHEDULERS), message);
        }
        91..=92 if world.tasks.len() < 12 => drop(world.submit(random_plan(rng))),
        93 if !world.tasks.is_empty() => {
            let id = world.tasks[rng.below(world.tasks.len())].id;
            let reason = if rng.percent(25) {
                [Terminating::Timeout, Terminating::StartTimeout][rng.below(2)]
            } else {
                Terminating::User
            };
            world.terminate(id, reason);
        }
        _ => random_fault(world, rng),
    }
}

fn random_delivery(world: &mut World, rng: &mut Random) {
    if world.network.is_empty() {
        return;
    }
    let message = world.network.swap_remove(rng.below(world.network.len()));
    let scheduler = rng.below(SCHEDULERS);
    match rng.below(100) {
        0..=7 => world.note(format!("lost: {message:?}")),
        8..=14 => world.held_up.push(message),
        15..=21 => {
            world.network.push(message.clone());
            world.deliver(scheduler, message);
        }
        // Several beats in one group commit.
        22..=34 => {
            let mut batch = Vec::new();
            let mut others = Vec::new();
            for message in std::mem::take(&mut world.network).into_iter().chain([message]) {
                match message {
                    Message::Request(beat) => batch.push(beat),
                    Message::Response(_) => others.push(message),
                }
            }
            world.network = others;
            world.receive(scheduler, batch);
        }
        _ => world.deliver(scheduler, message),
    }
}

fn random_fault(world: &mut World, rng: &mut Random) {
    let host = rng.below(HOSTS);
    if world.processes[host].is_none() {
        // The same state directory most of the time.
        let rise = match rng.below(10) {
            0..=3 => Rise::Sweep,
            4..=6 => Rise::Resume,
            7..=8 => Rise::Reboot(rng.percent(50)),
            _ => Rise::Reinstall,
        };
        return world.rise(host, rise);
    }
    let now = world.now;
    match rng.below(20) {
        0..=1 => world.die(
            host,
            if rng.percent(50) {
                Death::Both
            } else {
                Death::AgentAlone
            },
        ),
        2 => world.leave(host),
        3..=4 => {
            let ms = rng.ms(150_000);
            world.note(format!("host {host} is stopped for {ms} ms"));
            world.processes[host].as_mut().expect("looked").paused_until = now + ms;
        }
        5 => {
            let scheduler = rng.below(SCHEDULERS);
            world.note(format!("scheduler {scheduler} restarts"));
            world.schedulers[scheduler] = Scheduler::default();
        }
        // A short loop of a slot that is in a hurry: it gives up its parked beat and sends another one.
        6..=15 => {
            let at = (host, rng.below(SLOTS));
            if world.awake(host) && world.agent(at).begin.is_none() && !world.agent(at).gone {
                let on_purpose = rng.percent(50);
                world.beat(at, on_purpose);
            }
        }
        _ => {}
    }
}

/// Faults stop: everything is delivered, everybody goes on. Every task must end.
fn settle(world: &mut World) {
    world.network.append(&mut world.held_up);
    for host in 0..HOSTS {
        match &mut world.processes[host] {
            Some(process) => process.paused_until = 0,
            None => world.rise(host, Rise::Sweep),
        }
    }
    for round in 0..LIVENESS_ROUNDS {
        world.advance(500);
        for message in std::mem::take(&mut world.network) {
            world.deliver(0, message);
        }
        for host in 0..HOSTS {
            if world.processes[host].is_none() {
                world.rise(host, Rise::Sweep);
            }
            for slot in 0..SLOTS {
                world.tick((host, slot));
            }
        }
        for scheduler in 0..SCHEDULERS {
            for index in (0..world.schedulers[scheduler].parked.len()).rev() {
                world.serve_parked(scheduler, index);
            }
        }
        if round % 10 == 0 {
            world.reap(0);
            world.admit();
            world.call_back();
        }
        world.check();
        if world.violation.is_some() || world.settled() {
            return;
        }
    }
    let open: Vec<(i64, TaskState)> = world
        .tasks
        .iter()
        .filter(|task| !task.state.is_terminal())
        .map(|task| (task.id, task.state))
        .collect();
    world.violate(format!("not settled after the faults stopped: {open:?}"));
}

fn history(seed: u64, off: Option<Rule>) -> (World, Result<Tally, String>) {
    let mut rng = Random(seed);
    let mut world = World::new(off);
    for _ in 0..3 {
        let plan = random_plan(&mut rng);
        world.submit(plan);
    }
    let mut ended: BTreeMap<i64, (TaskState, Option<Outcome>)> = BTreeMap::new();
    for _ in 0..STEPS {
        random_step(&mut world, &mut rng);
        world.check();
        terminal_is_terminal(&mut world, &mut ended);
        if world.violation.is_some() {
            break;
        }
    }
    if world.violation.is_none() {
        settle(&mut world);
        terminal_is_terminal(&mut world, &mut ended);
    }
    let result = match world.violation.clone() {
        Some(violation) => Err(violation),
        None => Ok(tally(&world)),
    };
    (world, result)
}

fn terminal_is_terminal(world: &mut World, ended: &mut BTreeMap<i64, (TaskState, Option<Outcome>)>) {
    let mut changed = Vec::new();
    for task in &world.tasks {
        if !task.state.is_terminal() && !ended.contains_key(&task.id) {
            continue;
        }
        let now = (task.state, task.outcome.clone());
        let first = ended.entry(task.id).or_insert_with(|| now.clone());
        if *first != now {
            changed.push(format!("task {} was {first:?} and became {now:?}", task.id));
        }
    }
    for what in changed {
        world.violate(what);
    }
}

fn tally(world: &World) -> Tally {
    let mut tally = Tally {
        tasks: world.tasks.len(),
        started: world.starts.len(),
        outcomes: BTreeMap::new(),
    };
    for outcome in world.tasks.iter().filter_map(|task| task.outcome.as_ref()) {
        *tally.outcomes.entry(outcome.kind.name()).or_insert(0) += 1;
    }
    tally
}

fn number_from_env(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

#[test]
fn no_history_breaks_a_promise() {
    let seeds = match number_from_env("SYSTOLE_MODEL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number_from_env("SYSTOLE_MODEL_SEEDS").unwrap_or(SEEDS),
    };
    let mut total = Tally::default();
    for seed in seeds.clone() {
        let (world, result) = history(seed, None);
        match result {
            Ok(tally) => {
                total.tasks += tally.tasks;
                total.started += tally.started;
                for (kind, count) in tally.outcomes {
                    *total.outcomes.entry(kind).or_insert(0) += count;
                }
            }
            Err(violation) => {
                let events: Vec<String> = world.events.into();
                panic!("seed {seed}: {violation}\n{}", events.join("\n"));
            }
        }
    }
    println!("{seeds:?}: {total:?}");
    if seeds.end - seeds.start >= SEEDS {
        // A model in which nothing happens proves nothing.
        let kinds = ["success", "exit_code", "signal", "timeout", "cancelled", "runner_lost"];
        let more = ["runner_restarted", "runner_stopped", "not_started"];
        for kind in kinds.into_iter().chain(more) {
            assert!(
                total.outcomes.get(kind).is_some_and(|count| *count >= 20),
                "{kind} is too rare in {total:?}"
            );
        }
    }
}

#[test]
fn every_rule_is_missed_when_it_is_switched_off() {
    let rules = [
        Rule::SeqOrder,
        Rule::StartOrder,
        Rule::LatestAnswer,
        Rule::ClaimGuard,
        Rule::Journal,
        Rule::Expiry,
        Rule::SameBoot,
    ];
    for rule in rules {
        let found = (0..5_000).find_map(|seed| history(seed, Some(rule)).1.err().map(|violation| (seed, violation)));
        let (seed, violation) = found.unwrap_or_else(|| panic!("nobody misses {rule:?}"));
        println!("{rule:?}: seed {seed}: {violation}");
    }
}

// ---------------------------------------------------------------------------------------------------
// Known counterexamples, replayed step by step

const R: At = (0, 0);

impl World {
    /// The next beat of a runner, taken out of the network: the test decides when it arrives, and where.
    fn say(&mut self, at: At) -> Beat {
        self.beat(at, true);
        match self.network.pop() {
            Some(Message::Request(beat)) => beat,
            other => panic!("a beat was sent, not {other:?}"),
        }
    }

    fn said(&mut self, at: At, scheduler: usize) {
        let beat = self.say(at);
        self.receive(scheduler, vec![beat]);
    }

    /// The newest answer, taken out of the network.
    fn answered(&mut self) -> Answer {
        match self.network.pop() {
            Some(Message::Response(answer)) => answer,
            other => panic!("an answer was given, not {other:?}"),
        }
    }

    fn commanded(&mut self) -> Command {
        match self.answered().reply {
            Reply::Command(command) => command,
            Reply::Refused(identity) => panic!("refused: {identity:?}"),
        }
    }

    /// Lets the runner hear an answer, and go the way to the fork.
    fn obeys(&mut self, answer: &Answer) {
        self.hear(answer);
        self.tick(answer.at);
        self.tick(answer.at);
    }

    /// Submits a task and brings it to RUNNING on a runner.
    fn running(&mut self, at: At) -> i64 {
        let id = self.submit(PLAN);
        self.said(at, 0);
        self.serve_parked(0, self.schedulers[0].parked.len() - 1);
        let answer = self.answered();
        self.obeys(&answer);
        self.said(at, 0);
        self.network.clear();
        assert_eq!(self.state(id), TaskState::Running);
        id
    }

    fn holds(&mut self) {
        self.check();
        let events: Vec<String> = self.events.iter().cloned().collect();
        assert_eq!(self.violation, None, "{}", events.join("\n"));
    }

    fn breaks(&mut self, what: &str) {
        self.check();
        let violation = self.violation.as_deref().expect("a violation");
        assert!(violation.contains(what), "{violation}");
    }
}

/// IDLE 1 is parked, IDLE 2 is held up on the way, IDLE 3 is parked elsewhere and gets the task. Then
/// IDLE 2 arrives.
fn stale_idle(off: Option<Rule>, cancel: bool) -> (World, i64) {
    let mut world = World::new(off);
    let id = world.submit(PLAN);
    world.said(R, 0);
    let held_up = world.say(R);
    world.said(R, 1);
    world.serve_parked(0, 0);
    assert_eq!(
        world.state(id),
        TaskState::Queued,
        "the parked beat was overtaken: no claim for it"
    );
    world.serve_parked(1, 0);
    let answer = world.answered();
    world.obeys(&answer);
    world.said(R, 1);
    assert_eq!(world.state(id), TaskState::Running);
    if cancel {
        world.terminate(id, Terminating::User);
    }
    world.receive(0, vec![held_up]);
    (world, id)
}

#[test]
fn stale_idle_after_running() {
    let (mut world, id) = stale_idle(None, false);
    world.holds();
    assert_eq!(world.state(id), TaskState::Running);
    stale_idle(Some(Rule::SeqOrder), false)
        .0
        .breaks("ended as FAILED (runner_restarted) while its child is alive");
}

#[test]
fn stale_idle_after_cancel() {
    let (mut world, id) = stale_idle(None, true);
    world.holds();
    assert_eq!(world.state(id), TaskState::Terminating, "the kill is not confirmed yet");
    stale_idle(Some(Rule::SeqOrder), true)
        .0
        .breaks("ended as TERMINATED (cancelled) while its child is alive");
}

/// The start timeout is over while RUN_NEW is on its way.
#[test]
fn a_start_timeout_meets_the_start() {
    let dispatched = || {
        let mut world = World::new(None);
        let id = world.submit(Plan { max_retries: 1, ..PLAN });
        world.said(R, 0);
        world.serve_parked(0, 0);
        let run_new = world.answered();
        world.terminate(id, Terminating::StartTimeout);
        assert_eq!(world.state(id), TaskState::Terminating);
        (world, id, run_new)
    };

    // It starts all the same, and is told to stop. No retry before its child is gone.
    let (mut world, id, run_new) = dispatched();
    world.obeys(&run_new);
    world.said(R, 0);
    assert_eq!(world.commanded(), Command::Reset(id, ResetReason::Stop));
    assert!(world.child_lives(id));
    assert_eq!((world.state(id), world.tasks.len()), (TaskState::Terminating, 1));
    settle(&mut world);
    world.holds();
    assert_eq!(world.outcome(id), Some(OutcomeKind::StartTimeout));
    assert_eq!(world.tasks.len(), 2, "the retry");

    // It was lost: IDLE confirms that nothing runs, and the next attempt is free to start.
    let (mut world, id, _) = dispatched();
    world.said(R, 0);
    world.holds();
    assert_eq!(world.outcome(id), Some(OutcomeKind::StartTimeout));
    assert_eq!(world.tasks.len(), 2, "the retry");
}

#[test]
fn delayed_beat_of_old_process() {
    let replay = |off| {
        let mut world = World::new(off);
        let delayed = world.say(R);
        world.die(0, Death::Both);
        world.rise(0, Rise::Sweep);
        let id = world.running(R);
        world.receive(1, vec![delayed]);
        (world, id)
    };
    let (mut world, id) = replay(None);
    world.holds();
    assert!(matches!(world.answered().reply, Reply::Refused(Identity::Old)));
    assert_eq!(world.state(id), TaskState::Running);
    replay(Some(Rule::StartOrder)).0.breaks("while its child is alive");
}

#[test]
fn two_restarts_before_first_beat() {
    // The child survives: the third process names it, and it goes on.
    let mut world = World::new(None);
    let id = world.running(R);
    world.die(0, Death::AgentAlone);
    world.rise(0, Rise::Resume);
    let never_arrived = world.say(R);
    world.die(0, Death::AgentAlone);
    world.rise(0, Rise::Resume);
    world.said(R, 0);
    world.receive(0, vec![never_arrived]);
    world.holds();
    assert_eq!(world.state(id), TaskState::Running);
    assert!(world.child_lives(id));

    // The child does not survive: it is said once, and true.
    let mut world = World::new(None);
    let id = world.running(R);
    for _ in 0..2 {
        world.die(0, Death::AgentAlone);
        world.rise(0, Rise::Sweep);
    }
    world.said(R, 0);
    world.holds();
    assert_eq!(world.outcome(id), Some(OutcomeKind::RunnerRestarted));
    assert_eq!(world.starts[&id], 1);
}

#[test]
fn a_restart_between_run_new_and_the_fork_starts_the_task_once() {
    for steps_to_the_fork in 0..=2 {
        let mut world = World::new(None);
        let id = world.submit(PLAN);
        world.said(R, 0);
        world.serve_parked(0, 0);
        let answer = world.answered();
        world.hear(&answer);
        for _ in 0..steps_to_the_fork {
            world.tick(R);
        }
        world.die(0, Death::Both);
        world.rise(0, Rise::Sweep);
        world.said(R, 1);
        match steps_to_the_fork {
            // Not journaled, so it was not begun: the same task again.
            0 => assert_eq!(world.commanded(), Command::RunNew(id)),
            // Journaled: it may have run, and is not started again.
            _ => assert_eq!(world.outcome(id), Some(OutcomeKind::RunnerRestarted)),
        }
        settle(&mut world);
        world.holds();
    }
}

#[test]
fn a_new_start_takes_over_all_slots_at_once() {
    let mut world = World::new(None);
    let other = (0, 1);
    world.said(other, 0);
    world.die(0, Death::Both);
    world.rise(0, Rise::Sweep);
    world.said(R, 1);
    // The parked beat of the old process's other slot must not get a task any more.
    let id = world.submit(PLAN);
    world.serve_parked(0, 0);
    assert_eq!(world.state(id), TaskState::Queued);
    world.holds();
}

/// A beat of a second process that uses the name of host 0.
fn intruder(instance: &str, start_no: i64, seq: i64) -> Beat {
    Beat {
        at: R,
        instance: instance.into(),
        start_no,
        seq,
        boot: 0,
        said: Said::Idle,
        task: 0,
        results: Vec::new(),
        unanswered: 0,
        leaving: false,
        park_ms: PARK_MS,
    }
}

#[test]
fn copied_data_dir_same_host() {
    // The copy lies in another file, so it gets an instance id of its own: it waits, and says so.
    let mut world = World::new(None);
    let id = world.submit(Plan {
        run_ms: 600_000,
        ..PLAN
    });
    world.said(R, 0);
    world.serve_parked(0, 0);
    let answer = world.answered();
    world.obeys(&answer);
    for turn in 1..=10 {
        world.said(R, 0);
        world.receive(1, vec![intruder("copy", 7, turn)]);
        assert!(matches!(world.answered().reply, Reply::Refused(Identity::Taken)));
        world.advance(BEAT_MS);
    }
    world.holds();
    assert_eq!(world.state(id), TaskState::Running);
    // The holder goes: the name is free.
    world.die(0, Death::Both);
    world.advance(BEAT_MS);
    world.receive(1, vec![intruder("copy", 7, 11)]);
    assert_eq!(world.hosts[&0].instance, "copy");
    assert_eq!(
        world.state(id),
        TaskState::Running,
        "nothing proves that the old child is dead: the reaper decides"
    );

    // One and the same directory in two processes: the later start holds the name for ever.
    let mut world = World::new(None);
    world.said(R, 0);
    let instance = world.disks[0].instance.clone();
    for seq in 1..=5 {
        world.receive(1, vec![intruder(&instance, 2, seq)]);
        world.said(R, 0);
        assert!(matches!(world.answered().reply, Reply::Refused(Identity::Old)));
    }
    assert_eq!(world.hosts[&0].start_no, 2);
    world.holds();
}

#[test]
fn a_held_up_beat_of_the_first_of_three_processes() {
    let replay = |off: Option<Rule>| {
        let mut world = World::new(off);
        world.said(R, 0);
        let held_up = world.say(R);
        world.die(0, Death::Both);
        for name in ["second", "third"] {
            world.advance(2 * BEAT_MS);
            world.receive(1, vec![intruder(name, 1, 1)]);
            assert_eq!(world.hosts[&0].instance, name);
        }
        // The third misses a beat, and one of the first arrives that was on its way all the time.
        world.advance(2 * BEAT_MS);
        let first = held_up.instance.clone();
        world.receive(0, vec![held_up]);
        (world.hosts[&0].instance == first, world)
    };
    let (taken, mut world) = replay(None);
    world.holds();
    assert!(!taken, "the third keeps the name");
    assert!(replay(Some(Rule::Replaced)).0, "without the rule it would not");
}

#[test]
fn two_beats_one_batch() {
    for order in [[0, 1], [1, 0]] {
        let mut world = World::new(None);
        let id = world.running(R);
        let running = world.say(R);
        world.advance(PLAN.run_ms);
        world.tick(R);
        let Some(Message::Request(finished)) = world.network.pop() else {
            panic!("the end of the child is said at once");
        };
        assert_eq!((running.said, finished.said), (Said::Running, Said::Finished));
        let beats = [running, finished];
        world.receive(0, order.map(|index| beats[index].clone()).to_vec());
        assert_eq!(world.state(id), TaskState::Finished, "the highest seq acts");
        let mut commands =
            [world.answered(), world.answered()].map(|answer| (answer.seq, format!("{:?}", answer.reply)));
        commands.sort();
        assert!(
            commands[0].1.contains("GoOn") && commands[1].1.contains("Ack"),
            "{commands:?}"
        );
        world.holds();
    }
}

#[test]
fn run_new_after_sigstop_is_not_started() {
    let replay = |off| {
        let mut world = World::new(off);
        let id = world.submit(PLAN);
        world.said(R, 0);
        world.serve_parked(0, 0);
        let in_the_socket = world.answered();
        // The process is stopped with the answer in its socket, and the cluster gives up.
        for _ in 0..12 {
            world.advance(10_000);
            world.reap(0);
        }
        assert_eq!(world.outcome(id), Some(OutcomeKind::RunnerLost));
        world.obeys(&in_the_socket);
        (world, id)
    };
    let (mut world, id) = replay(None);
    world.holds();
    assert_eq!(world.starts.get(&id), None);
    replay(Some(Rule::Expiry))
        .0
        .breaks("was started after it had ended as FAILED");
}

/// Steps of the warden, of the agent, and the instant in which the order becomes too old, in every order.
fn interleavings(left: [usize; 3], turns: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
    if left == [0; 3] {
        all.push(turns.clone());
    }
    for (who, count) in left.into_iter().enumerate() {
        if count > 0 {
            let mut rest = left;
            rest[who] -= 1;
            turns.push(who);
            interleavings(rest, turns, all);
            turns.pop();
        }
    }
}

/// The warden writes the begin down, looks at the clock, and forks or takes the begin back. The agent, which hears nothing of it,
/// looks at the clock and then at the journal. Whether it was forked, and whether the agent gave it up.
fn race(turns: &[usize], clock_first: bool) -> (bool, bool) {
    let (mut age, mut warden, mut agent) = (PARK_MS, 0, 0);
    let (mut journaled, mut valid, mut forked) = (false, false, false);
    let (mut late, mut known) = (false, false);
    for who in turns {
        match who {
            0 => {
                warden += 1;
                match warden {
                    1 => journaled = true,
                    2 => {
                        valid = still_valid(age, PARK_MS);
                        journaled = valid;
                    }
                    _ => forked = valid,
                }
            }
            1 => {
                agent += 1;
                if (agent == 1) == clock_first {
                    late = !still_valid(age, PARK_MS);
                } else {
                    known = journaled;
                }
            }
            _ => age = PARK_MS + RUN_NEW_SLACK_MS + 1,
        }
    }
    (forked, late && !known)
}

#[test]
fn an_order_without_an_answer_is_given_up_only_when_it_will_never_be_begun() {
    let mut all = Vec::new();
    interleavings([3, 2, 1], &mut Vec::new(), &mut all);
    assert_eq!(all.len(), 60);
    let races = |clock_first| all.iter().map(move |turns| race(turns, clock_first));
    assert!(races(true).all(|(forked, given_up)| !(forked && given_up)));
    assert!(races(true).any(|(_, given_up)| given_up) && races(true).any(|(forked, _)| forked));
    // The other way round it would be given up and begun.
    assert!(races(false).any(|(forked, given_up)| forked && given_up));
}

#[test]
fn a_lost_run_new_is_given_again_and_at_last_replaced() {
    let mut world = World::new(None);
    let id = world.submit(PLAN);
    world.said(R, 0);
    world.serve_parked(0, 0);
    assert_eq!(world.commanded(), Command::RunNew(id));
    for _ in 0..3 {
        world.said(R, 1);
        assert_eq!(world.commanded(), Command::RunNew(id));
    }
    world.said(R, 2);
    world.holds();
    assert_eq!(world.outcome(id), Some(OutcomeKind::NotStarted));
    assert_eq!(
        world.state(id + 1),
        TaskState::Queued,
        "a replacement, open to every runner"
    );
}

#[test]
fn a_result_outlives_lost_answers_and_a_restart_of_the_runner() {
    let mut world = World::new(None);
    let id = world.running(R);
    world.advance(PLAN.run_ms);
    world.tick(R);
    world.network.clear();
    world.die(0, Death::Both);
    world.rise(0, Rise::Sweep);
    world.said(R, 2);
    assert_eq!(world.commanded(), Command::Reset(id, ResetReason::Ack));
    // The acknowledgement is lost as well: the result is told again, and changes nothing.
    world.said(R, 1);
    let answer = world.answered();
    world.hear(&answer);
    world.holds();
    assert_eq!(
        (world.state(id), world.outcome(id)),
        (TaskState::Finished, Some(OutcomeKind::Success))
    );
    assert_eq!(world.agent(R).slot, Slot::Empty);
}
