//! When a host can start nothing, and when it can again: what is wrong with it is told once and cordons it, instead
//! of failing task after task.
//!
//! A fault is raised by the first thing that fails, and ends only after its probe has passed several times in a row:
//! a host that is given work at every second breath of a full disk would fail one task for each.

use serde::{Deserialize, Serialize};

/// Times that a probe must pass in a row, and the pause between two of them, ms.
pub const PASSES_MIN: u32 = 3;
pub const PROBE_EVERY_MS: u64 = 1_000;
/// How often a host without a fault is looked at, ms.
pub const LOOK_EVERY_MS: u64 = 5_000;
/// A fault that comes back this soon after its end has to pass twice as often, ms.
pub const RELAPSE_WITHIN_MS: u64 = 60_000;
/// At most so often: a minute.
pub const PASSES_MAX: u32 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    DiskFull,
    /// The data directory can be written by nobody, or not by this user; a broken disk, too.
    FolderUnwritable,
    ProcessLimit,
    NoMemory,
    FileLimit,
    /// The process that has the children of the host does not answer, or is gone: told by the one beside it.
    WardenStalled,
}

impl FaultKind {
    pub const ALL: [FaultKind; 6] = [
        Self::DiskFull,
        Self::FolderUnwritable,
        Self::ProcessLimit,
        Self::NoMemory,
        Self::FileLimit,
        Self::WardenStalled,
    ];

    /// On the wire and in the database.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::DiskFull => "disk_full",
            FaultKind::FolderUnwritable => "folder_unwritable",
            FaultKind::ProcessLimit => "process_limit",
            FaultKind::NoMemory => "no_memory",
            FaultKind::FileLimit => "file_limit",
            FaultKind::WardenStalled => "warden_stalled",
        }
    }
}

/// The name of a fault for people, also of one that a later version tells.
pub fn words(name: &str) -> String {
    name.replace('_', " ")
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFault {
    pub kind: FaultKind,
    /// One sentence for a person.
    pub detail: String,
}

/// The health of one host over time. Times are of any clock that does not go back, ms.
#[derive(Debug, Default)]
pub struct Monitor {
    fault: Option<HostFault>,
    /// Rises with each change.
    no: u64,
    passes: u32,
    needed: u32,
    ended_ms: Option<u64>,
}

impl Monitor {
    pub fn fault(&self) -> Option<&HostFault> {
        self.fault.as_ref()
    }

    pub fn no(&self) -> u64 {
        self.no
    }

    pub fn pause_ms(&self) -> u64 {
        if self.fault.is_some() {
            PROBE_EVERY_MS
        } else {
            LOOK_EVERY_MS
        }
    }

    /// Something failed for want of what every task needs.
    pub fn failed(&mut self, fault: HostFault, now_ms: u64) {
        self.passes = 0;
        match &self.fault {
            // The words may differ from try to try, such as the bytes that are free: they are no news.
            Some(known) if known.kind == fault.kind => return,
            Some(_) => {}
            None => {
                let relapse = self
                    .ended_ms
                    .is_some_and(|ended| now_ms.saturating_sub(ended) < RELAPSE_WITHIN_MS);
                self.needed = if relapse {
                    (self.needed * 2).min(PASSES_MAX)
                } else {
                    PASSES_MIN
                };
            }
        }
        self.fault = Some(fault);
        self.no += 1;
    }

    /// A probe of all that a task needs.
    pub fn probed(&mut self, found: Result<(), HostFault>, now_ms: u64) {
        match found {
            Err(fault) => self.failed(fault, now_ms),
            Ok(()) if self.fault.is_none() => {}
            Ok(()) => {
                self.passes += 1;
                if self.passes >= self.needed {
                    self.fault = None;
                    self.ended_ms = Some(now_ms);
                    self.no += 1;
                }
            }
        }
    }
}

/// What must be free on a disk of this size for tasks to be started, bytes: a hundredth, 64 MiB at most. What runs
/// already has that to end in. With a fault it must be twice as much before there is none.
pub fn free_bytes_min(total_bytes: u64, has_fault: bool) -> u64 {
    let least = (total_bytes / 100).min(64 * 1024 * 1024);
    if has_fault { least * 2 } else { least }
}

/// How much should go of what may be deleted, bytes; 0: there is room. It begins before the host would be faulty, where a fault
/// would end, and goes on to half as much again, so that each byte more does not begin it anew.
pub fn excess_bytes(total_bytes: u64, free_bytes: u64) -> u64 {
    let enough = free_bytes_min(total_bytes, true);
    if free_bytes >= enough {
        return 0;
    }
    enough + enough / 2 - free_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(kind: FaultKind) -> HostFault {
        HostFault {
            kind,
            detail: "x".into(),
        }
    }

    fn probes_until_healthy(monitor: &mut Monitor, now_ms: &mut u64) -> u32 {
        let mut probes = 0;
        while monitor.fault().is_some() {
            *now_ms += monitor.pause_ms();
            monitor.probed(Ok(()), *now_ms);
            probes += 1;
        }
        probes
    }

    #[test]
    fn a_fault_ends_after_three_probes_in_a_row() {
        let mut monitor = Monitor::default();
        monitor.failed(fault(FaultKind::DiskFull), 0);
        assert_eq!((monitor.no(), monitor.pause_ms()), (1, PROBE_EVERY_MS));
        monitor.probed(Ok(()), 1_000);
        monitor.probed(Ok(()), 2_000);
        monitor.probed(Err(fault(FaultKind::DiskFull)), 3_000);
        assert_eq!(probes_until_healthy(&mut monitor, &mut 3_000), PASSES_MIN);
        assert_eq!((monitor.no(), monitor.pause_ms()), (2, LOOK_EVERY_MS));
    }

    #[test]
    fn a_fault_that_comes_back_at_once_has_to_pass_twice_as_often_up_to_a_minute() {
        let mut monitor = Monitor::default();
        let mut now_ms = 0;
        let mut probes = Vec::new();
        for _ in 0..7 {
            monitor.failed(fault(FaultKind::ProcessLimit), now_ms);
            probes.push(probes_until_healthy(&mut monitor, &mut now_ms));
        }
        assert_eq!(probes, [3, 6, 12, 24, 48, 60, 60]);
        now_ms += RELAPSE_WITHIN_MS;
        monitor.failed(fault(FaultKind::ProcessLimit), now_ms);
        assert_eq!(probes_until_healthy(&mut monitor, &mut now_ms), PASSES_MIN);
    }

    #[test]
    fn the_same_fault_again_is_no_news_and_another_one_is() {
        let mut monitor = Monitor::default();
        monitor.failed(fault(FaultKind::DiskFull), 0);
        monitor.failed(fault(FaultKind::DiskFull), 1);
        assert_eq!(monitor.no(), 1);
        monitor.failed(fault(FaultKind::FileLimit), 2);
        assert_eq!((monitor.no(), monitor.fault()), (2, Some(&fault(FaultKind::FileLimit))));
    }

    #[test]
    fn a_healthy_host_stays_so_without_a_change() {
        let mut monitor = Monitor::default();
        monitor.probed(Ok(()), 0);
        assert_eq!((monitor.no(), monitor.fault()), (0, None));
    }

    #[test]
    fn a_hundredth_of_a_disk_stays_free_and_no_more_than_it_takes() {
        assert_eq!(free_bytes_min(1_000_000, false), 10_000);
        assert_eq!(free_bytes_min(1 << 40, false), 64 << 20);
        assert_eq!(free_bytes_min(1 << 40, true), 128 << 20);
        assert_eq!(free_bytes_min(0, false), 0);
    }

    #[test]
    fn what_may_go_goes_before_the_host_is_faulty_and_no_more_than_makes_room() {
        let (total, least) = (1_000_000, free_bytes_min(1_000_000, false));
        assert_eq!(excess_bytes(total, 2 * least), 0);
        for free in [0, 1, least - 1, least, 2 * least - 1] {
            let excess = excess_bytes(total, free);
            assert_eq!(free + excess, 3 * least, "{free}");
            assert_eq!(excess_bytes(total, free + excess), 0);
        }
        assert_eq!(excess_bytes(1 << 40, 0), 192 << 20, "no more, however large the disk");
        assert_eq!(excess_bytes(0, 0), 0);
    }

    #[test]
    fn names_are_unique_and_readable() {
        let mut names: Vec<String> = FaultKind::ALL.iter().map(|kind| words(kind.name())).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), FaultKind::ALL.len());
        assert_eq!(words("disk_full"), "disk full");
    }
}
