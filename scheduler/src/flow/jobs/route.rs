//! Choosing hosts: for runs whose job says how, and for retries that are to go elsewhere. Any replica does it, a bounded number in one
//! transaction. A choice stands until the host takes the run up, cannot any more, or has not done so for a while.

use crate::context::Context;
use crate::flow::fleet;
use crate::store::jobs::routes::{self, BATCH_MAX, Counts, Decision, RouteRow, UseRow};
use crate::store::jobs::{self as store};
use crate::store::{Class, StoreError, Tx, read};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use systole_shared::policy::lane::{missing_labels, serves_queue};
use systole_shared::policy::route::{Asked, Choice, Host, RoutePolicy, choose, policy, random_of};
use systole_shared::policy::why::RunnerView;

/// A host gets nothing by choice that was silent for this long: two beats of three, after which it would be lost.
pub fn live_ms(ctx: &Context) -> i64 {
    ctx.lost_after_ms() / 3 * 2
}

/// What is to be told after the commit.
#[derive(Debug, Default)]
struct Told {
    lanes: BTreeSet<i64>,
    hosts: BTreeSet<String>,
    /// There may be more that were never looked at.
    more: bool,
}

/// Chooses for what is due. True: there may be more.
pub async fn route_due(ctx: &Context) -> Result<bool, StoreError> {
    let live_ms = live_ms(ctx);
    let told = ctx
        .db
        .write("route", Class::Api, move |tx| Box::pin(transact(tx, live_ms)))
        .await?;
    let (lanes, hosts): (Vec<i64>, Vec<String>) = (told.lanes.into_iter().collect(), told.hosts.into_iter().collect());
    ctx.wake.work(&lanes, &hosts);
    // Old choices that are made again and again for a long queue are not worth a busy loop.
    Ok(told.more)
}

async fn transact(tx: &mut Tx, live_ms: i64) -> Result<Told, StoreError> {
    let rows = routes::lock_due(tx, live_ms).await?;
    if rows.is_empty() {
        return Ok(Told::default());
    }
    let mut choices = Choices::read(tx, &rows, live_ms).await?;
    let mut told = Told {
        more: i64::try_from(rows.len()).is_ok_and(|n| n >= BATCH_MAX) && rows.iter().any(|row| row.routed_ms == 0),
        ..Told::default()
    };
    let mut decisions = Vec::with_capacity(rows.len());
    for row in &rows {
        let (host, avoids) = choices.decide(row);
        match &host {
            Some(host) if host.is_empty() => {}
            Some(host) => {
                told.hosts.insert(host.clone());
            }
            None => {
                told.lanes.insert(row.lane_id);
            }
        }
        decisions.push(Decision {
            id: row.id,
            host,
            avoids: i64::from(avoids),
        });
    }
    routes::decide(tx, &decisions).await?;
    routes::put_uses(tx, &choices.made()).await?;
    Ok(told)
}

/// What choices go by, and those that were made.
struct Choices {
    runners: Vec<RunnerView>,
    promised: Counts,
    of_jobs: Counts,
    /// Per job and host: turn and uses.
    uses: HashMap<i64, HashMap<String, (i64, i64)>>,
    changed: BTreeSet<(i64, String)>,
}

fn policy_of(row: &RouteRow) -> Option<&'static dyn RoutePolicy> {
    row.route.as_deref().and_then(policy)
}

impl Choices {
    async fn read(tx: &mut Tx, rows: &[RouteRow], live_ms: i64) -> Result<Self, StoreError> {
        let jobs = |wanted: fn(&dyn RoutePolicy) -> bool| -> Vec<i64> {
            let found: BTreeSet<i64> = rows
                .iter()
                .filter(|row| policy_of(row).is_some_and(wanted))
                .filter_map(|row| row.job_id)
                .collect();
            found.into_iter().collect()
        };
        let (remember, counted) = (jobs(|p| p.remembers()), jobs(|p| p.name() == "busyover"));
        // Nobody else chooses for them meanwhile.
        store::lock(tx, &remember).await?;
        let mut uses: HashMap<i64, HashMap<String, (i64, i64)>> = HashMap::new();
        for row in routes::uses(tx, &remember).await? {
            uses.entry(row.job_id)
                .or_default()
                .insert(row.host, (row.turn, row.uses));
        }
        Ok(Self {
            runners: read::all_runners(tx)
                .await?
                .iter()
                .map(|row| fleet::view(row, live_ms))
                .filter(|view| view.live && view.cordon.is_none() && view.fault.is_none())
                .collect(),
            promised: routes::promised(tx).await?,
            of_jobs: routes::of_jobs(tx, &counted).await?,
            uses,
            changed: BTreeSet::new(),
        })
    }

    /// The hosts that can take a run, by name.
    fn hosts(&self, row: &RouteRow) -> Vec<Host> {
        let (queue, require) = (row.queue.as_deref().unwrap_or_default(), row.require());
        let job = row.job_id.unwrap_or(0);
        let mut hosts: BTreeMap<&str, Host> = BTreeMap::new();
        for runner in &self.runners {
            if !serves_queue(&runner.queues, queue) || !missing_labels(&runner.labels, &require).is_empty() {
                continue;
            }
            let host = hosts.entry(runner.id.host.as_str()).or_default();
            match runner.busy {
                None => host.idle += 1,
                Some(_) => host.busy += 1,
            }
        }
        let of = self.uses.get(&job);
        // One that is new does not get everything until it has caught up.
        let least = of.into_iter().flat_map(HashMap::iter);
        let least = least.filter(|(name, _)| hosts.contains_key(name.as_str()));
        let least = least.map(|(_, (_, uses))| *uses).min().unwrap_or(0);
        hosts
            .into_iter()
            .map(|(name, mut host)| {
                let own = u32::from(row.target_host == name);
                let promised = self.promised.get(&(0, name.to_owned())).copied().unwrap_or(0);
                let promised = promised.saturating_sub(own);
                host.idle = host.idle.saturating_sub(promised);
                host.busy += promised;
                let of_job = self.of_jobs.get(&(job, name.to_owned())).copied().unwrap_or(0);
                host.of_job = of_job.saturating_sub(own);
                (host.turn, host.uses) = of.and_then(|of| of.get(name)).copied().unwrap_or((0, least));
                name.clone_into(&mut host.name);
                host
            })
            .collect()
    }

    /// The host, and whether the run still avoids one.
    fn decide(&mut self, row: &RouteRow) -> (Option<String>, bool) {
        let policy = policy_of(row);
        let hosts = self.hosts(row);
        let turn = self.turn(row.job_id);
        // A host was found for it, and did not take it up in time.
        let waited =
            row.routed_ms > 0 && !row.target_host.is_empty() && hosts.iter().any(|h| h.name == row.target_host);
        let asked = Asked {
            key: row.route_key.as_deref().unwrap_or_default(),
            random: random_of(row.id, row.routed_ms),
        };
        let avoids = row.avoid_host.is_some() && !waited;
        match choose(policy, asked, &hosts, row.avoid_host.as_deref(), waited) {
            Choice::Nobody => (Some(String::new()), avoids),
            Choice::Any => (None, false),
            Choice::Host(at) => {
                let host = &hosts[at];
                self.count(row, host, turn, policy.is_some_and(RoutePolicy::remembers));
                (Some(host.name.clone()), avoids)
            }
        }
    }

    fn turn(&self, job: Option<i64>) -> i64 {
        let of = job.and_then(|job| self.uses.get(&job));
        let turns = of.into_iter().flat_map(HashMap::values).map(|(turn, _)| *turn);
        turns.max().unwrap_or(0) + 1
    }

    fn count(&mut self, row: &RouteRow, host: &Host, turn: i64, remembers: bool) {
        if row.target_host == host.name {
            return;
        }
        let job = row.job_id.unwrap_or(0);
        for (counts, job) in [(&mut self.promised, 0), (&mut self.of_jobs, job)] {
            *counts.entry((job, host.name.clone())).or_default() += 1;
            if !row.target_host.is_empty()
                && let Some(before) = counts.get_mut(&(job, row.target_host.clone()))
            {
                *before = before.saturating_sub(1);
            }
        }
        if remembers && row.job_id.is_some() {
            let of = self.uses.entry(job).or_default();
            of.insert(host.name.clone(), (turn, host.uses + 1));
            self.changed.insert((job, host.name.clone()));
        }
    }

    fn made(&self) -> Vec<UseRow> {
        self.changed
            .iter()
            .filter_map(|(job_id, host)| {
                let &(turn, uses) = self.uses.get(job_id)?.get(host)?;
                Some(UseRow {
                    job_id: *job_id,
                    host: host.clone(),
                    turn,
                    uses,
                })
            })
            .collect()
    }
}
