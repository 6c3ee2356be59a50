//! Rings of jobs that start each other: each run is the cause of the next, and none is the last.

use std::collections::{BTreeMap, BTreeSet};

/// Jobs of one ring that are named.
const NAMES_MAX: usize = 8;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ring {
    /// Index of the edge that closes it. Without these edges there is no ring.
    pub(super) edge: usize,
    /// `p -> q -> p`: the end of each starts the next.
    pub(super) words: String,
}

/// The rings of these edges, each from a job to one that starts after it. As many as edges at most, and each edge is
/// looked at once. Not recursive: a chain may be as long as files allow.
pub(super) fn rings(edges: &[(&str, &str)]) -> Vec<Ring> {
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
                let words = words(&path[begin..]);
                rings.push(Ring { edge, words });
            } else if !done.contains(next) {
                places.insert(next, path.len());
                path.push((next, 0));
            }
        }
    }
    rings
}

fn words(ring: &[(&str, usize)]) -> String {
    let first = ring.first().map_or("", |(name, _)| name);
    let mut names: Vec<String> = ring
        .iter()
        .take(NAMES_MAX)
        .map(|(name, _)| (*name).to_owned())
        .collect();
    if ring.len() > NAMES_MAX {
        names.push(format!("({} more)", ring.len() - NAMES_MAX));
    }
    names.push(first.to_owned());
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
}
