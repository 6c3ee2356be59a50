//! Rings of jobs that start each other: each run is the cause of the next, and none is the last. Those of some files are looked for
//! all at once ([`rings`]), those of what is stored for the one job that changes ([`closed`]).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Jobs of one ring that are named.
const NAMES_MAX: usize = 8;

#[derive(Debug, PartialEq, Eq)]
pub struct Ring {
    /// Index of the edge that closes it. Without these edges there is no ring.
    pub edge: usize,
    /// `p -> q -> p`: the end of each starts the next.
    pub words: String,
}

/// The rings of these edges, each from a job to one that starts after it. As many as edges at most, and each edge is
/// looked at once. Not recursive: a chain may be as long as files allow.
pub fn rings(edges: &[(&str, &str)]) -> Vec<Ring> {
    let mut follow: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, &(before, _)) in edges.iter().enumerate() {
        follow.entry(before).or_default().push(index);
    }
    let mut rings = Vec::new();
    let mut done: BTreeSet<&str> = BTreeSet::new();
    for &start in follow.keys() {
        if done.contains(start) {
            continue;
        }
        // Jobs from the start on, each with the number of its edges that were looked at.
        let mut path: Vec<(&str, usize)> = vec![(start, 0)];
        let mut places: BTreeMap<&str, usize> = BTreeMap::from([(start, 0)]);
        while let Some(&(name, looked_at)) = path.last() {
            let Some(&edge) = follow.get(name).and_then(|those| those.get(looked_at)) else {
                places.remove(name);
                done.insert(name);
                path.pop();
                continue;
            };
            if let Some((_, looked_at)) = path.last_mut() {
                *looked_at += 1;
            }
            let next = edges[edge].1;
            if let Some(&begin) = places.get(next) {
                let words = words(path[begin..].iter().map(|&(name, _)| name));
                rings.push(Ring { edge, words });
            } else if !done.contains(next) {
                places.insert(next, path.len());
                path.push((next, 0));
            }
        }
    }
    rings
}

/// The shortest ring that a job closes when it starts after these: the job is one of those that are before them. `edge` is an index
/// into `after`. `edges`: what is known of the others; those that lead to the job itself are what it is to have no longer.
pub fn closed(job: &str, after: &[&str], edges: &[(&str, &str)]) -> Option<Ring> {
    let mut before: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for &(earlier, later) in edges.iter().filter(|(_, later)| *later != job) {
        before.entry(later).or_default().push(earlier);
    }
    // From each job that was reached to the one that it starts, up to the edge that the search came from.
    let mut starts: BTreeMap<&str, (&str, usize)> = BTreeMap::new();
    let mut todo: VecDeque<&str> = VecDeque::new();
    for (edge, &name) in after.iter().enumerate() {
        if let Entry::Vacant(free) = starts.entry(name) {
            free.insert((job, edge));
            todo.push_back(name);
        }
    }
    while let Some(name) = todo.pop_front() {
        let edge = starts.get(name)?.1;
        if name == job {
            // Once around, up to where it began.
            let next = |name: &&str| starts.get(*name).map(|&(later, _)| later).filter(|&later| later != job);
            let words = words(std::iter::successors(Some(job), next));
            return Some(Ring { edge, words });
        }
        for &earlier in before.get(name).into_iter().flatten() {
            if let Entry::Vacant(free) = starts.entry(earlier) {
                free.insert((name, edge));
                todo.push_back(earlier);
            }
        }
    }
    None
}

/// The jobs of a ring, in the order in which they start each other.
fn words<'a>(ring: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = Vec::new();
    let mut more = 0_usize;
    for name in ring {
        if names.len() < NAMES_MAX {
            names.push(name);
        } else {
            more += 1;
        }
    }
    let first = names.first().copied().unwrap_or_default();
    let more = (more > 0).then(|| format!("({more} more)"));
    names.extend(more.as_deref());
    names.push(first);
    names.join(" -> ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(edges: &[(&str, &str)]) -> Vec<String> {
        let say = |ring: Ring| format!("{}: {}", ring.edge, ring.words);
        rings(edges).into_iter().map(say).collect()
    }

    #[test]
    fn jobs_that_start_each_other_are_found() {
        assert!(found(&[]).is_empty());
        // Two ways to one job are no ring, nor is a job that nobody has.
        assert!(found(&[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("nobody", "a")]).is_empty());
        assert_eq!(found(&[("q", "p"), ("p", "q")]), ["0: p -> q -> p"]);
        assert_eq!(
            found(&[("x", "a"), ("a", "b"), ("b", "c"), ("c", "a"), ("c", "y")]),
            ["3: a -> b -> c -> a"]
        );
        // Each trigger that closes one, and rings beside each other.
        assert_eq!(
            found(&[("a", "b"), ("b", "a"), ("b", "a"), ("m", "n"), ("n", "m")]),
            ["1: a -> b -> a", "2: a -> b -> a", "4: m -> n -> m"]
        );
    }

    #[test]
    fn a_long_ring_is_found_and_said_shortly() {
        let names: Vec<String> = (0..50_000).map(|n| format!("j{n:05}")).collect();
        let mut edges: Vec<(&str, &str)> = names
            .windows(2)
            .map(|pair| (pair[0].as_str(), pair[1].as_str()))
            .collect();
        assert!(found(&edges).is_empty());
        edges.push((names[49_999].as_str(), names[0].as_str()));
        assert_eq!(
            found(&edges),
            [
                "49999: j00000 -> j00001 -> j00002 -> j00003 -> j00004 -> j00005 -> j00006 -> j00007 -> (49992 more) -> j00000"
            ]
        );
    }

    #[test]
    fn a_job_that_closes_a_ring_with_what_is_known_is_found() {
        let ring = |job: &str, after: &[&str], edges: &[(&str, &str)]| {
            closed(job, after, edges).map(|ring| format!("{}: {}", ring.edge, ring.words))
        };
        let chain = [("a", "b"), ("b", "c"), ("c", "d"), ("x", "c")];
        assert_eq!(ring("e", &["d"], &chain), None);
        assert_eq!(ring("a", &["nobody"], &chain), None);
        assert_eq!(ring("a", &[], &chain), None);
        assert_eq!(
            ring("a", &["x", "d"], &chain).as_deref(),
            Some("1: a -> b -> c -> d -> a")
        );
        // Of two the shortest, and the same job twice.
        assert_eq!(ring("a", &["d", "b", "b"], &chain).as_deref(), Some("1: a -> b -> a"));
        assert_eq!(ring("a", &["a"], &chain).as_deref(), Some("0: a -> a"));
        // What it starts after now it starts after no longer.
        assert_eq!(ring("b", &["x"], &chain), None);
        assert_eq!(ring("b", &["x"], &[("b", "a"), ("a", "b")]), None);
        // A ring of others is not its fault, and ends the search all the same.
        let others = [("p", "q"), ("q", "p"), ("p", "a"), ("a", "b")];
        assert_eq!(ring("a", &["p"], &others), None);
        assert_eq!(ring("a", &["q", "b"], &others).as_deref(), Some("1: a -> b -> a"));
    }

    #[test]
    fn a_long_chain_that_is_closed_is_said_shortly() {
        let names: Vec<String> = (0..50_000).map(|n| format!("j{n:05}")).collect();
        let edges: Vec<(&str, &str)> = names
            .windows(2)
            .map(|pair| (pair[0].as_str(), pair[1].as_str()))
            .collect();
        let ring = closed("j00000", &["j49999"], &edges).expect("a ring");
        assert_eq!(
            ring.words,
            "j00000 -> j00001 -> j00002 -> j00003 -> j00004 -> j00005 -> j00006 -> j00007 -> (49992 more) -> j00000"
        );
    }
}
