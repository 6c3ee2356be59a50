//! Lanes: one distinct triple (queue, required labels, priority), stored once and referenced by tasks.
//!
//! A picker works out in memory which lanes a runner serves; claiming is then an index scan per lane
//! whose cost does not grow with the backlog.

use std::collections::BTreeMap;

pub type Labels = BTreeMap<String, String>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane {
    pub queue: String,
    pub require: Labels,
    pub priority: u32,
}

/// True when a runner with these queues and labels may take tasks of the lane.
pub fn serves(queues: &[String], labels: &Labels, lane: &Lane) -> bool {
    serves_queue(queues, &lane.queue) && missing_labels(labels, &lane.require).is_empty()
}

/// A runner that names no queue serves `default`.
pub fn serves_queue(queues: &[String], queue: &str) -> bool {
    if queues.is_empty() {
        queue == "default"
    } else {
        queues.iter().any(|q| q == queue)
    }
}

/// The required labels that the runner does not have, as `key=value`.
pub fn missing_labels(labels: &Labels, require: &Labels) -> Vec<String> {
    require
        .iter()
        .filter(|(key, value)| labels.get(*key) != Some(value))
        .map(|(key, value)| format!("{key}={value}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn a_runner_serves_a_lane_when_queue_and_all_labels_match() {
        let lane = |queue: &str, require: &[(&str, &str)]| Lane {
            queue: queue.into(),
            require: labels(require),
            priority: 5,
        };
        let has = labels(&[("gpu", "1"), ("dc", "fra")]);
        let cases: [(&[&str], Lane, bool); 7] = [
            (&[], lane("default", &[]), true),
            (&[], lane("gpu", &[]), false),
            (&["gpu", "default"], lane("gpu", &[]), true),
            (&["gpu"], lane("default", &[]), false),
            (&[], lane("default", &[("gpu", "1")]), true),
            (&[], lane("default", &[("gpu", "2")]), false),
            (&[], lane("default", &[("gpu", "1"), ("rack", "7")]), false),
        ];
        for (queues, lane, expected) in cases {
            let queues: Vec<String> = queues.iter().map(|&q| q.to_owned()).collect();
            assert_eq!(serves(&queues, &has, &lane), expected, "{queues:?} {lane:?}");
        }
    }
}
