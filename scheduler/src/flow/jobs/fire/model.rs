//! Very many slots under crashes, outages, pauses, freezes and a clock that goes back a little: the product's own decisions, with a
//! ledger that remembers. Each slot has exactly one verdict in the end, as counted by plain arithmetic.
//!
//! `SYSTOLE_SLOTS` says how many; `scripts/torture` takes a million.

#[path = "../../../../../tests/src/random.rs"]
mod random;

use super::*;
use crate::flow::jobs::apply::end_pause;
use random::Random;
use std::collections::BTreeMap;
use systole_shared::policy::freeze::Scope;
use systole_shared::policy::pause::held;
use systole_shared::trigger::calendar::{Calendar, CalendarSpec};
use systole_shared::trigger::zone::Zone;

/// Slots of one world.
const WORLD_SLOTS: i64 = 3_000;

impl Random {
    fn below(&mut self, bound: i64) -> i64 {
        i64::try_from(self.number() % bound.unsigned_abs()).unwrap_or(0)
    }

    fn one_in(&mut self, n: i64) -> bool {
        self.below(n) == 0
    }

    fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[usize::try_from(self.below(i64::try_from(words.len()).expect("few"))).expect("small")]
    }
}

/// A verdict, by the first slot that it is about.
#[derive(Debug)]
struct Verdicts {
    until_ms: i64,
    fires: i64,
    words: (&'static str, &'static str),
}

struct World {
    random: Random,
    now: i64,
    /// As stored. Whatever a transaction does before its commit is not here.
    row: TriggerRow,
    job: JobRow,
    freezes: Vec<Freeze>,
    ledger: BTreeMap<i64, Verdicts>,
    calendars: compiled::Calendars,
    /// Slots are `anchor + k * period` after the creation, by arithmetic; 0: they are counted from ends of runs.
    anchor: i64,
    period: i64,
    last_allowed: Option<i64>,
    runs: i64,
    crashes: i64,
}

fn job_row(id: i64) -> JobRow {
    JobRow {
        id,
        name: format!("j{}", -id),
        version: 1,
        definition: format!(r#"{{"name":"j{}","command":["true"]}}"#, -id),
        fingerprint: String::new(),
        origin: "runtime".into(),
        code_definition: None,
        code_fingerprint: None,
        source: String::new(),
        lane_id: 1,
        blocking: "serial".into(),
        max_concurrent: 1,
        max_waiting: 100,
        concurrency_group: None,
        paused: false,
        paused_until_ms: None,
        paused_by: None,
        pause_reason: None,
        paused_at_ms: None,
        created_at_ms: 0,
        changed_at_ms: 0,
        changed_by: String::new(),
    }
}

fn night() -> compiled::Calendars {
    let spec: CalendarSpec =
        serde_json::from_str(r#"{"name":"night","daily":[{"from":"01:00","to":"02:30"}]}"#).expect("a calendar");
    let calendar = Calendar::new(&spec, None, &Zone::utc()).expect("a calendar");
    compiled::Calendars::from([("night".to_owned(), Arc::new(calendar))])
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let created = 1_796_002_200_000 + random.below(86_400_000);
        let catch_up = format!(r#""catch_up","max_catch_up":{}"#, 1 + random.below(60));
        let misfire = random.pick(&[r#""fire_once""#, r#""skip""#, &catch_up]);
        let threshold = random.pick(&["", r#","misfire_threshold":"0s""#, r#","misfire_threshold":"45s""#]);
        let more = format!(r#","misfire":{misfire}{threshold}"#);
        let (schedule, anchor, period) = match random.below(6) {
            0 => (r#""fixed_rate":"10s""#, created, 10_000),
            1 => (r#""cron":"* * * * *""#, 0, 60_000),
            2 => (r#""cron":"0/20 * * * * ?","dialect":"quartz""#, 0, 20_000),
            3 => (r#""fixed_rate":"1m","exclude_calendars":["night"]"#, created, 60_000),
            4 => (r#""cron":"*/5 * * * *","exclude_calendars":["night"]"#, 0, 300_000),
            _ => (r#""fixed_delay":"30s""#, 0, 0),
        };
        let mut last_allowed = None;
        let bound = match random.below(6) {
            0 => format!(r#","max_fires":{}"#, 1 + random.below(400)),
            1 if period > 0 => {
                let last = created + period * (10 + random.below(WORLD_SLOTS));
                last_allowed = Some(last);
                format!(r#","end_at":"{}""#, systole_shared::time::format_utc(last))
            }
            _ => String::new(),
        };
        let id = -i64::try_from(seed).expect("a small seed") - 1;
        let definition = format!(r#"{{"name":"t",{schedule}{more}{bound}}}"#);
        let mut row = TriggerRow {
            job_id: id,
            created_at_ms: created,
            judged_ms: created,
            ..compiled::tests::row(id, &definition)
        };
        let calendars = night();
        let spec = compiled::trigger_spec(&row).expect("a definition");
        let job = job_row(id);
        let trigger = compiled::stored_trigger(&job.name, &row, &spec, &calendars).expect("a trigger");
        row.set_cursor(trigger.first_cursor(created).expect("forward"));
        row.due_ms = row.next_ms;
        Self {
            random,
            now: created,
            row,
            job,
            freezes: Vec::new(),
            ledger: BTreeMap::new(),
            calendars,
            anchor,
            period,
            last_allowed,
            runs: 0,
            crashes: 0,
        }
    }

    fn trigger(&self) -> (Arc<TriggerSpec>, Arc<Trigger>) {
        let spec = compiled::trigger_spec(&self.row).expect("a definition");
        let trigger = compiled::stored_trigger(&self.job.name, &self.row, &spec, &self.calendars).expect("a trigger");
        (spec, trigger)
    }

    /// A second verdict for any slot is what must not be.
    fn record(&mut self, from_ms: i64, verdicts: Verdicts) {
        let before = self.ledger.range(..=verdicts.until_ms).next_back();
        assert!(
            before.is_none_or(|(_, before)| before.until_ms < from_ms),
            "{from_ms}: {verdicts:?} after {before:?} of {}",
            self.row.definition
        );
        self.ledger.insert(from_ms, verdicts);
    }

    fn record_range(&mut self, range: &Range) {
        let entry = range_entry(&self.row, range);
        self.record(
            entry.scheduled_ms,
            Verdicts {
                until_ms: entry.until_ms,
                fires: entry.fires,
                words: (entry.verdict, entry.reason),
            },
        );
    }

    /// One transaction of a firing replica; some die before their commit.
    fn fire(&mut self) -> bool {
        if self.row.due_ms.is_none_or(|due| due > self.now) {
            return false;
        }
        let (spec, trigger) = self.trigger();
        let job = compiled::job(&self.job).expect("a job");
        let judged = self.row.judged_ms;
        let freezes: Vec<Freeze> = self
            .freezes
            .iter()
            .filter(|freeze| freeze.ended_ms.is_none_or(|ended| ended > judged))
            .cloned()
            .collect();
        let mut turn = judge(
            self.row.clone(),
            (&self.job, &job),
            &spec,
            Arc::clone(&trigger),
            &freezes,
            self.now,
        )
        .expect("it can be judged");
        let root = (!turn.wishes.is_empty()).then_some(self.runs + 1);
        land(&mut turn, &trigger, root, self.now).expect("it stands");
        if self.random.one_in(4) {
            self.crashes += 1;
            return true;
        }
        for range in &turn.ranges {
            self.record_range(range);
        }
        for wish in &turn.wishes {
            assert!(wish.scheduled_ms <= self.now, "it fires before its time");
            self.runs += 1;
            let verdicts = Verdicts {
                until_ms: wish.scheduled_ms,
                fires: 1,
                words: ("fired", ""),
            };
            self.record(wish.scheduled_ms, verdicts);
        }
        if turn.job_pause_over {
            (self.job.paused, self.job.paused_until_ms) = (false, None);
        }
        self.row = turn.row;
        true
    }

    /// As `set_paused` does it.
    fn set_paused(&mut self, of_job: bool, wanted: Pause) {
        if held(self.row.pause(), self.job.pause()) != Held::No && self.row.phase() == Phase::Waiting {
            let ranges = end_pause(&mut self.row, &self.job.name.clone(), &self.calendars, self.now).expect("judged");
            for range in &ranges {
                self.record_range(range);
            }
        }
        if of_job {
            (self.job.paused, self.job.paused_until_ms) = (wanted.paused, wanted.until_ms);
        } else {
            (self.row.paused, self.row.paused_until_ms) = (wanted.paused, wanted.until_ms);
        }
        if self.row.phase() == Phase::Waiting {
            self.row.due_ms = due_ms(self.row.next_ms, held(self.row.pause(), self.job.pause()));
        }
    }

    fn until(&mut self) -> Option<i64> {
        let span = self.span();
        (!self.random.one_in(3)).then(|| self.now + 1 + self.random.below(span * 30))
    }

    fn span(&self) -> i64 {
        if self.period == 0 { 30_000 } else { self.period }
    }

    /// What is frozen ends by its time or by hand; triggers that were put aside are looked at again.
    fn thaw(&mut self, by_hand: bool) {
        let mut ended = false;
        for freeze in self.freezes.iter_mut().filter(|freeze| freeze.ended_ms.is_none()) {
            let over = freeze.until_ms.filter(|&until| until <= self.now);
            freeze.ended_ms = over.or(by_hand.then_some(self.now));
            ended |= freeze.ended_ms.is_some();
        }
        if ended && self.row.frozen {
            (self.row.due_ms, self.row.frozen) = (self.row.next_ms, false);
        }
    }

    fn run_ends(&mut self) {
        let (_, trigger) = self.trigger();
        if self.row.phase() == Phase::Acquired && !self.random.one_in(4) {
            self.row.run_root = None;
            self.row.set_phase(Phase::Waiting);
            self.row
                .set_cursor(run_ended(&trigger, self.row.cursor(), self.now).expect("forward"));
            if self.row.next_ms.is_none() {
                self.row.set_phase(Phase::Complete);
            }
            self.row.due_ms = due_ms(self.row.next_ms, held(self.row.pause(), self.job.pause()));
        }
    }

    fn step(&mut self) {
        let span = self.span();
        self.now += match self.random.below(1_000) {
            0..800 => self.random.below(span * 3 / 2),
            800..950 => self.random.below(span * 20),
            950..990 => self.random.below(span * 400),
            990..993 => self.random.below(span * 2_000),
            // The clock of the database is set right by a little.
            _ => -self.random.below(5_000),
        };
        match self.random.below(100) {
            0..3 => {
                let until_ms = self.until();
                let of_job = self.random.one_in(2);
                self.set_paused(of_job, Pause { paused: true, until_ms });
            }
            3..8 => {
                let of_job = self.random.one_in(2);
                self.set_paused(of_job, Pause::default());
            }
            8..10 if self.freezes.iter().all(|freeze| freeze.ended_ms.is_some()) => {
                let until_ms = self.until();
                self.freezes.push(Freeze {
                    scope: Scope::All,
                    by: String::new(),
                    reason: String::new(),
                    since_ms: self.now,
                    until_ms,
                    ended_ms: None,
                });
            }
            10..14 => self.thaw(true),
            14..40 => self.thaw(false),
            _ => {}
        }
        self.run_ends();
        for _ in 0..self.random.below(4) {
            self.fire();
        }
    }

    /// Everything is lifted, and whatever is due is judged.
    fn settle(&mut self) {
        self.thaw(true);
        for of_job in [true, false] {
            self.set_paused(of_job, Pause::default());
        }
        for _ in 0..100_000 {
            if !self.fire() {
                return;
            }
        }
        panic!("it never comes to an end: {}", self.row.definition);
    }

    /// Returns how many slots there were.
    fn check(&self) -> i64 {
        if self.period == 0 {
            // Each is one slot of its own, which `record` has looked at.
            return i64::try_from(self.ledger.len()).expect("few");
        }
        // One that has used up its fires has no slots behind the last.
        let until = match (self.row.phase(), self.last_allowed) {
            (Phase::Complete, Some(last)) => self.now.min(last),
            (Phase::Complete, None) => self.row.judged_ms,
            (_, last) => last.map_or(self.now, |last| self.now.min(last)),
        };
        let first = (self.row.created_at_ms - self.anchor).div_euclid(self.period) + 1;
        let mut slots = 0;
        let mut counted: BTreeMap<i64, i64> = BTreeMap::new();
        for k in first.. {
            let slot = self.anchor + k * self.period;
            if slot > until {
                break;
            }
            slots += 1;
            let found = self.ledger.range(..=slot).next_back();
            let (from, verdicts) = found
                .filter(|(_, verdicts)| slot <= verdicts.until_ms)
                .unwrap_or_else(|| panic!("slot {slot} has no verdict: {} {:?}", self.row.definition, self.row));
            if verdicts.words.1 == "calendar" {
                let minute = slot.div_euclid(60_000).rem_euclid(1_440);
                assert!((60..150).contains(&minute), "{slot} {}", self.row.definition);
            }
            *counted.entry(*from).or_default() += 1;
        }
        // What each verdict says it is about is what it is about.
        for (from, verdicts) in self
            .ledger
            .range(..=until)
            .filter(|(_, verdicts)| verdicts.until_ms <= until)
        {
            assert_eq!(
                Some(&verdicts.fires),
                counted.get(from),
                "{from} {verdicts:?} {}",
                self.row.definition
            );
        }
        let fired = self
            .ledger
            .values()
            .filter(|verdicts| verdicts.words.0 == "fired")
            .count();
        assert_eq!(i64::try_from(fired).expect("few"), self.runs);
        slots
    }
}

#[test]
fn every_slot_has_one_verdict_whatever_happens_meanwhile() {
    let wanted: i64 = std::env::var("SYSTOLE_SLOTS").map_or(60_000, |text| text.parse().expect("a number"));
    let mut slots = 0;
    let (mut crashes, mut runs, mut worlds) = (0, 0, 0);
    let mut words: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    for seed in 1.. {
        let mut world = World::new(seed);
        let end = world.now + world.span() * WORLD_SLOTS;
        while world.now < end {
            world.step();
        }
        world.settle();
        slots += world.check();
        crashes += world.crashes;
        runs += world.runs;
        worlds += 1;
        for verdicts in world.ledger.values() {
            *words.entry(verdicts.words).or_default() += verdicts.fires;
        }
        if slots >= wanted {
            break;
        }
    }
    println!("{worlds} worlds, {slots} slots, {crashes} crashes, {runs} runs: {words:?}");
    // All of it has happened.
    for word in [
        ("fired", ""),
        ("coalesced", ""),
        ("skipped", "misfire"),
        ("skipped", "paused"),
        ("skipped", "calendar"),
        ("skipped", "ended"),
    ] {
        assert!(
            words.get(&word).is_some_and(|&n| n > 0),
            "{word:?} never happened: {words:?}"
        );
    }
    assert!(crashes > worlds);
}
