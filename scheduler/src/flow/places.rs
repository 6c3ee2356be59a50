//! Who may be delivered to at once: places for deliveries, so that receivers which hang cannot take all of them. Pure.

use std::collections::HashMap;

/// Deliveries under way at once.
const PLACES: usize = 64;
/// Of them for one receiver that answers.
const ANSWERING_MAX: usize = 8;
/// For one that is not known, or that did not answer in time the last time.
const OTHER_MAX: usize = 1;
/// For all receivers together that did not answer in time the last time.
const SILENT_PLACES: usize = 16;
/// Receivers that are remembered; those that are forgotten are unknown again.
const REMEMBERED_MAX: usize = 1_024;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Manner {
    #[default]
    Unknown,
    Answers,
    Silent,
}

#[derive(Clone, Copy, Debug, Default)]
struct Receiver {
    manner: Manner,
    busy: usize,
}

#[derive(Debug, Default)]
pub struct Places {
    receivers: HashMap<String, Receiver>,
}

impl Places {
    pub fn free(&self) -> usize {
        PLACES.saturating_sub(self.receivers.values().map(|receiver| receiver.busy).sum())
    }

    /// How many deliveries each receiver may get now. One that is not named here is unknown, and may get one.
    pub fn rooms(&self) -> Vec<(&str, usize)> {
        let silent_busy: usize = self
            .receivers
            .values()
            .filter(|receiver| receiver.manner == Manner::Silent)
            .map(|receiver| receiver.busy)
            .sum();
        let mut silent_left = SILENT_PLACES.saturating_sub(silent_busy);
        let mut rooms = Vec::with_capacity(self.receivers.len());
        for (name, receiver) in &self.receivers {
            let room = match receiver.manner {
                Manner::Answers => ANSWERING_MAX.saturating_sub(receiver.busy),
                Manner::Unknown => OTHER_MAX.saturating_sub(receiver.busy),
                Manner::Silent => {
                    let room = OTHER_MAX.saturating_sub(receiver.busy).min(silent_left);
                    silent_left -= room;
                    room
                }
            };
            rooms.push((name.as_str(), room));
        }
        rooms
    }

    pub fn take(&mut self, receiver: &str) {
        self.receivers.entry(receiver.to_owned()).or_default().busy += 1;
    }

    /// A delivery is over. `answered`: not by its deadline.
    pub fn give_back(&mut self, receiver: &str, answered: bool) {
        let entry = self.receivers.entry(receiver.to_owned()).or_default();
        entry.busy = entry.busy.saturating_sub(1);
        entry.manner = if answered { Manner::Answers } else { Manner::Silent };
        if self.receivers.len() > REMEMBERED_MAX {
            self.receivers
                .retain(|_, receiver| receiver.busy > 0 || receiver.manner == Manner::Silent);
        }
        if self.receivers.len() > REMEMBERED_MAX {
            self.receivers.retain(|_, receiver| receiver.busy > 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(places: &Places, name: &str) -> usize {
        let found = places.rooms().into_iter().find(|(receiver, _)| *receiver == name);
        found.map_or(OTHER_MAX, |(_, room)| room)
    }

    #[test]
    fn a_receiver_earns_its_places_by_answering() {
        let mut places = Places::default();
        assert_eq!((room(&places, "a"), places.free()), (1, 64));
        places.take("a");
        assert_eq!((room(&places, "a"), places.free()), (0, 63));
        places.give_back("a", true);
        assert_eq!((room(&places, "a"), places.free()), (8, 64));
        places.take("a");
        places.give_back("a", false);
        assert_eq!(room(&places, "a"), 1);
    }

    #[test]
    fn receivers_that_hang_leave_places_for_others() {
        let mut places = Places::default();
        let names: Vec<String> = (0..200).map(|n| format!("hangs-{n}")).collect();
        for name in &names {
            places.take(name);
            places.give_back(name, false);
        }
        // As often as one asks: no more than their share.
        for _ in 0..3 {
            let due: Vec<String> = places
                .rooms()
                .into_iter()
                .filter(|(_, room)| *room > 0)
                .map(|(name, _)| name.to_owned())
                .collect();
            due.iter().for_each(|name| places.take(name));
        }
        assert_eq!(places.free(), PLACES - SILENT_PLACES);
        assert_eq!(room(&places, "new"), 1);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut places = Places::default();
        places.take("busy");
        for n in 0..5_000 {
            let name = n.to_string();
            places.take(&name);
            places.give_back(&name, n % 2 == 0);
        }
        assert!(places.receivers.len() <= REMEMBERED_MAX);
        assert_eq!(room(&places, "busy"), 0);
    }
}
