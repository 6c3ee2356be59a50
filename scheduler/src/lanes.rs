//! What this replica remembers of the queue: lanes, which of them may hold work, which runners serve
//! them, and where their scans may begin. All of it is a hint: a forgotten wake-up costs the time until
//! the next poll and nothing else. Of what is frozen, too, which each claim checks against the database.

use crate::store::claims::{ClaimPlan, Claimed, LanePlan};
use crate::store::freeze::Frozen;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use systole_shared::policy::freeze::{Freeze, Scope};
use systole_shared::policy::lane::{Labels, Lane, serves};

/// A scan may begin at the first key that a scan returned at least this long ago: no transaction that
/// makes a task QUEUED takes longer between reading the clock and its commit.
const HINT_AGE: Duration = Duration::from_secs(5);
/// All scans begin at the very first key again after this, in case one did.
const REWIND_EVERY: Duration = Duration::from_secs(60);
/// The same for a lane whose scan found nothing.
const REWIND_EMPTY_EVERY: Duration = Duration::from_secs(1);
/// Lanes that one claim scans for one group.
const LANES_PER_CLAIM_MAX: usize = 32;
/// A group is forgotten when none of its runners was heard of for this long: many beats.
const GROUP_KEEP: Duration = Duration::from_secs(600);
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Sets of queues and labels at once.
const GROUPS_MAX: usize = 4_096;
/// One claim in this many goes by age instead of priority.
const BY_AGE_EVERY: u64 = 16;

#[derive(Debug, Default)]
pub struct Lanes {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    lanes: HashMap<i64, LaneState>,
    ids: HashMap<Lane, i64>,
    /// By number; none comes twice.
    groups: HashMap<usize, Group>,
    next_group: usize,
    /// When groups were last forgotten.
    swept: Option<Instant>,
    group_ids: HashMap<(Vec<String>, Labels), usize>,
    /// Hosts that tasks are aimed at, with the number of their last wake-up.
    targets: HashMap<String, u64>,
    wakes: u64,
    claims: u64,
    /// Of what is frozen; 0: not known yet.
    generation: i64,
    freezes: Vec<Freeze>,
    frozen_tags: Arc<[String]>,
}

#[derive(Debug)]
struct LaneState {
    lane: Lane,
    /// Nothing of it is dispatched.
    frozen: bool,
    awake: bool,
    wake_no: u64,
    /// First keys that scans returned, oldest first.
    firsts: VecDeque<(Instant, i64)>,
    from_ms: i64,
    rewound: Instant,
}

#[derive(Debug)]
struct Group {
    queues: Vec<String>,
    labels: Labels,
    /// Lanes it serves, highest priority first.
    lanes: Vec<i64>,
    /// When a beat of it came last.
    used: Instant,
}

impl Lanes {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        match self.inner.lock() {
            Ok(inner) => inner,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    pub fn id_of(&self, lane: &Lane) -> Option<i64> {
        self.lock().ids.get(lane).copied()
    }

    /// The highest lane id known.
    pub fn newest(&self) -> i64 {
        self.lock().lanes.keys().copied().max().unwrap_or(0)
    }

    pub fn lane(&self, id: i64) -> Option<Lane> {
        self.lock().lanes.get(&id).map(|state| state.lane.clone())
    }

    pub fn all_ids(&self) -> Vec<i64> {
        self.lock().lanes.keys().copied().collect()
    }

    pub fn add(&self, id: i64, lane: Lane) {
        let mut inner = self.lock();
        if inner.lanes.contains_key(&id) {
            return;
        }
        inner.ids.insert(lane.clone(), id);
        let frozen = is_frozen(&inner.freezes, &lane);
        inner.lanes.insert(
            id,
            LaneState {
                lane,
                frozen,
                awake: false,
                wake_no: 0,
                firsts: VecDeque::new(),
                from_ms: 0,
                rewound: Instant::now(),
            },
        );
        let Inner { lanes, groups, .. } = &mut *inner;
        for group in groups.values_mut() {
            group.lanes = served(lanes, &group.queues, &group.labels);
        }
    }

    /// What is frozen now. True: it is something else than before.
    pub fn freeze(&self, frozen: &Frozen) -> bool {
        let mut inner = self.lock();
        if inner.generation == frozen.generation {
            return false;
        }
        inner.generation = frozen.generation;
        inner.freezes.clone_from(&frozen.freezes);
        inner.frozen_tags = frozen
            .freezes
            .iter()
            .filter_map(|freeze| match &freeze.scope {
                Scope::Tag(tag) => Some(tag.clone()),
                Scope::All | Scope::Queue(_) => None,
            })
            .collect();
        let Inner { lanes, freezes, .. } = &mut *inner;
        for state in lanes.values_mut() {
            state.frozen = is_frozen(freezes, &state.lane);
            // Tasks that were passed over lie before the first that was not.
            state.rewind(Instant::now());
        }
        true
    }

    /// The group of runners with these queues and labels.
    pub fn group(&self, queues: &[String], labels: &Labels) -> usize {
        self.group_at(queues, labels, Instant::now())
    }

    fn group_at(&self, queues: &[String], labels: &Labels, now: Instant) -> usize {
        let mut inner = self.lock();
        let key = (queues.to_vec(), labels.clone());
        if let Some(&id) = inner.group_ids.get(&key) {
            if let Some(group) = inner.groups.get_mut(&id) {
                group.used = now;
            }
            return id;
        }
        inner.forget_groups(now);
        let id = inner.next_group;
        inner.next_group += 1;
        let lanes = served(&inner.lanes, queues, labels);
        let group = Group {
            queues: queues.to_vec(),
            labels: labels.clone(),
            lanes,
            used: now,
        };
        inner.groups.insert(id, group);
        inner.group_ids.insert(key, id);
        id
    }

    /// These lanes and target hosts may hold work.
    pub fn wake<'a>(&self, lanes: &[i64], targets: impl IntoIterator<Item = &'a str>) {
        let mut inner = self.lock();
        inner.wakes += 1;
        let wake_no = inner.wakes;
        for id in lanes {
            if let Some(state) = inner.lanes.get_mut(id) {
                state.awake = true;
                state.wake_no = wake_no;
            }
        }
        for target in targets {
            match inner.targets.get_mut(target) {
                Some(number) => *number = wake_no,
                None => {
                    inner.targets.insert(target.to_owned(), wake_no);
                }
            }
        }
    }

    /// True when a runner of this group on this host might get something.
    pub fn has_work(&self, group: usize, host: &str) -> bool {
        let inner = self.lock();
        inner.targets.contains_key(host)
            || inner.groups.get(&group).is_some_and(|group| {
                group
                    .lanes
                    .iter()
                    .any(|id| inner.lanes.get(id).is_some_and(LaneState::has_work))
            })
    }

    /// Groups with awake lanes, and target hosts.
    pub fn awake(&self) -> (HashSet<usize>, HashSet<String>) {
        let inner = self.lock();
        let groups = inner
            .groups
            .iter()
            .filter(|(_, group)| {
                group
                    .lanes
                    .iter()
                    .any(|id| inner.lanes.get(id).is_some_and(LaneState::has_work))
            })
            .map(|(&id, _)| id)
            .collect();
        (groups, inner.targets.keys().cloned().collect())
    }

    /// What a claim for these groups and hosts scans.
    pub fn plan<'a>(
        &self,
        groups: impl IntoIterator<Item = usize>,
        hosts: impl IntoIterator<Item = &'a str>,
    ) -> ClaimPlan {
        let mut inner = self.lock();
        inner.claims += 1;
        let claims = inner.claims;
        let by_age = claims.is_multiple_of(BY_AGE_EVERY);
        let mut plan = ClaimPlan::default();
        for host in hosts {
            if let Some(&wake_no) = inner.targets.get(host) {
                plan.targets.insert(host.to_owned(), wake_no);
            }
        }
        for id in groups.into_iter().collect::<HashSet<_>>() {
            let Some(group) = inner.groups.get(&id) else { continue };
            let mut lanes: Vec<LanePlan> = group
                .lanes
                .iter()
                .filter_map(|lane_id| inner.lanes.get(lane_id).map(|state| (*lane_id, state)))
                .filter(|(_, state)| state.has_work())
                .map(|(lane_id, state)| LanePlan {
                    lane_id,
                    priority: state.lane.priority,
                    from_ms: state.from_ms,
                    wake_no: state.wake_no,
                })
                .collect();
            if by_age && !lanes.is_empty() {
                // Each such claim begins further on, so that no lane is beyond reach for ever.
                let turn = usize::try_from(claims / BY_AGE_EVERY)
                    .unwrap_or(0)
                    .wrapping_mul(LANES_PER_CLAIM_MAX);
                let at = turn % lanes.len();
                lanes.rotate_left(at);
            }
            lanes.truncate(LANES_PER_CLAIM_MAX);
            if !plan.targets.is_empty() {
                let open = |id: &&i64| inner.lanes.get(id).is_some_and(|state| !state.frozen);
                plan.serves
                    .insert(id, group.lanes.iter().filter(open).copied().collect());
            }
            plan.lanes.insert(id, lanes);
        }
        plan.by_age = by_age;
        plan.generation = inner.generation;
        plan.frozen_tags = Arc::clone(&inner.frozen_tags);
        plan
    }

    /// What a claim saw. Call only after its commit.
    pub fn learn(&self, plan: &ClaimPlan, claimed: &Claimed) {
        let now = Instant::now();
        let mut inner = self.lock();
        if inner.generation != plan.generation {
            return; // It may have found nothing because of that.
        }
        for seen in &claimed.seen {
            let Some(state) = inner.lanes.get_mut(&seen.lane_id) else {
                continue;
            };
            if seen.exhausted && state.wake_no == seen.wake_no {
                state.awake = false;
            }
            state.saw(now, seen.first_ms);
        }
        for host in &claimed.targets_done {
            // Unless it was woken again meanwhile.
            if inner.targets.get(host) == plan.targets.get(host) {
                inner.targets.remove(host);
            }
        }
    }
}

impl Inner {
    /// Before a new group: those that no beat came of for long are gone, and when there are too many all the same, the
    /// half that was silent the longest. A runner whose group was forgotten is in a new one with its next beat.
    fn forget_groups(&mut self, now: Instant) {
        let is_time = self.swept.is_none_or(|at| now.duration_since(at) >= SWEEP_EVERY);
        if self.groups.len() < GROUPS_MAX && !is_time {
            return;
        }
        self.swept = Some(now);
        let mut since = now.checked_sub(GROUP_KEEP);
        if self.groups.len() >= GROUPS_MAX {
            let mut used: Vec<Instant> = self.groups.values().map(|group| group.used).collect();
            let (_, median, _) = used.select_nth_unstable(GROUPS_MAX / 2);
            since = since.max(Some(*median));
        }
        let Some(since) = since else { return };
        self.groups.retain(|_, group| group.used > since);
        let groups = &self.groups;
        self.group_ids.retain(|_, id| groups.contains_key(id));
    }
}

impl LaneState {
    fn has_work(&self) -> bool {
        self.awake && !self.frozen
    }

    fn rewind(&mut self, now: Instant) {
        self.rewound = now;
        self.from_ms = 0;
        self.firsts.clear();
    }

    fn saw(&mut self, now: Instant, first_ms: Option<i64>) {
        // A lane that looks empty is scanned from its beginning next time: something may lie behind.
        let every = if first_ms.is_none() {
            REWIND_EMPTY_EVERY
        } else {
            REWIND_EVERY
        };
        if now.duration_since(self.rewound) >= every {
            self.rewind(now);
            return;
        }
        if let Some(first) = first_ms
            && self
                .firsts
                .back()
                .is_none_or(|(at, _)| now.duration_since(*at) >= HINT_AGE / 10)
        {
            self.firsts.push_back((now, first));
        }
        while let Some(&(at, first)) = self.firsts.front() {
            if now.duration_since(at) < HINT_AGE {
                break;
            }
            self.from_ms = self.from_ms.max(first);
            self.firsts.pop_front();
        }
    }
}

fn is_frozen(freezes: &[Freeze], lane: &Lane) -> bool {
    freezes.iter().any(|freeze| freeze.scope.covers_queue(&lane.queue))
}

fn served(lanes: &HashMap<i64, LaneState>, queues: &[String], labels: &Labels) -> Vec<i64> {
    let mut ids: Vec<(u32, i64)> = lanes
        .iter()
        .filter(|(_, state)| serves(queues, labels, &state.lane))
        .map(|(id, state)| (state.lane.priority, *id))
        .collect();
    ids.sort_by_key(|&(priority, id)| (std::cmp::Reverse(priority), id));
    ids.into_iter().map(|(_, id)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::claims::LaneSeen;

    fn lane(priority: u32) -> Lane {
        Lane {
            queue: "default".into(),
            require: Labels::new(),
            priority,
        }
    }

    fn seen(lane_id: i64, wake_no: u64) -> Claimed {
        Claimed {
            seen: vec![LaneSeen {
                lane_id,
                wake_no,
                first_ms: None,
                exhausted: true,
            }],
            ..Claimed::default()
        }
    }

    #[test]
    fn an_exhausted_lane_sleeps_unless_it_was_woken_meanwhile() {
        let lanes = Lanes::default();
        lanes.add(1, lane(5));
        let group = lanes.group(&[], &Labels::new());
        assert!(!lanes.has_work(group, "a"));
        lanes.wake(&[1], []);
        let plan = lanes.plan([group], []);
        lanes.wake(&[1], []);
        lanes.learn(&plan, &seen(1, plan.lanes[&group][0].wake_no));
        assert!(lanes.has_work(group, "a"), "the second wake-up must not be lost");
        let plan = lanes.plan([group], []);
        lanes.learn(&plan, &seen(1, plan.lanes[&group][0].wake_no));
        assert!(!lanes.has_work(group, "a"));
    }

    #[test]
    fn a_frozen_lane_is_in_no_plan_and_wakes_from_its_beginning() {
        let lanes = Lanes::default();
        lanes.add(1, lane(5));
        let group = lanes.group(&[], &Labels::new());
        lanes.wake(&[1], ["a"]);
        let freeze = |scope| Freeze {
            scope,
            by: "ann".into(),
            reason: String::new(),
            since_ms: 0,
            until_ms: None,
            ended_ms: None,
        };
        let frozen = |generation, scopes: Vec<Scope>| Frozen {
            generation,
            freezes: scopes.into_iter().map(freeze).collect(),
            ..Frozen::default()
        };
        let queue = || Scope::Queue("default".into());
        assert!(lanes.freeze(&frozen(2, vec![queue(), Scope::Tag("x".into())])));
        assert!(
            !lanes.freeze(&frozen(2, vec![])),
            "the same generation is the same knowledge"
        );
        assert!(!lanes.has_work(group, "b") && lanes.awake().0.is_empty());
        let plan = lanes.plan([group], ["a"]);
        assert!(plan.lanes[&group].is_empty() && plan.serves[&group].is_empty());
        assert_eq!((plan.generation, plan.frozen_tags.to_vec()), (2, vec!["x".to_owned()]));
        // A lane that is made later is frozen as well.
        lanes.add(2, lane(9));
        lanes.wake(&[2], []);
        assert!(!lanes.has_work(group, "b"));

        // A claim that was planned before found nothing because of that: nothing is learnt from it.
        assert!(lanes.freeze(&frozen(3, vec![])));
        lanes.learn(&plan, &seen(1, 1));
        assert!(lanes.has_work(group, "b"));
        let plan = lanes.plan([group], []);
        assert_eq!(plan.lanes[&group].len(), 2);
        assert!(plan.frozen_tags.is_empty());
    }

    #[test]
    fn sets_of_labels_that_nobody_has_any_more_are_forgotten() {
        let lanes = Lanes::default();
        let start = Instant::now();
        let labels = |n: usize| Labels::from([("pod".into(), n.to_string())]);
        let lasting = Labels::from([("gpu".into(), "1".into())]);
        let first = lanes.group_at(&[], &lasting, start);
        // A new set each second, for hours; each is in use for a moment.
        for n in 0..4_000 {
            let now = start + Duration::from_secs(u64::try_from(n).expect("small"));
            lanes.group_at(&[], &labels(n), now);
            assert_eq!(lanes.group_at(&[], &lasting, now), first, "it is in use all the time");
        }
        let known = lanes.lock().groups.len();
        assert!(known <= 662, "{known}");
        // All at once: bounded, though some that are in use begin anew.
        for n in 4_000..12_000 {
            lanes.group_at(&[], &labels(n), start + Duration::from_secs(30_000));
        }
        let inner = lanes.lock();
        assert!(inner.groups.len() <= GROUPS_MAX && inner.group_ids.len() == inner.groups.len());
    }

    #[test]
    fn lanes_are_planned_by_priority_and_new_ones_join_old_groups() {
        let lanes = Lanes::default();
        let group = lanes.group(&[], &Labels::new());
        lanes.add(1, lane(0));
        lanes.add(2, lane(9));
        lanes.wake(&[1, 2], []);
        let order: Vec<i64> = lanes.plan([group], []).lanes[&group]
            .iter()
            .map(|lane| lane.lane_id)
            .collect();
        assert_eq!(order, [2, 1]);
    }

    #[test]
    fn a_scan_begins_no_later_than_what_was_first_five_seconds_ago() {
        let start = Instant::now();
        let mut state = LaneState {
            lane: lane(5),
            frozen: false,
            awake: true,
            wake_no: 0,
            firsts: VecDeque::new(),
            from_ms: 0,
            rewound: start,
        };
        state.saw(start, Some(100));
        state.saw(start + Duration::from_secs(4), Some(900));
        assert_eq!(state.from_ms, 0);
        state.saw(start + Duration::from_secs(6), Some(1_500));
        assert_eq!(state.from_ms, 100);
        state.saw(start + Duration::from_secs(61), Some(9_000));
        assert_eq!(state.from_ms, 0, "rewound");
    }
}
