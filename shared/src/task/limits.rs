//! What a task may use, as the kernel limits it: bounds, and sizes as people write them.

use crate::error::Invalid;
use crate::limits::{
    CORE_BYTES_MAX, CPU_MILLIS_MAX, CPU_MILLIS_MIN, FILE_BYTES_MAX, MEMORY_BYTES_MAX, MEMORY_BYTES_MIN, NICE_MAX,
    OPEN_FILES_MAX, OPEN_FILES_MIN, PIDS_MAX,
};
use serde::{Deserialize, Serialize};

/// Limits of each process of a task; the last three are of all its processes together.
// No field is written when it has its default; see `TaskSpec`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Highest number of open descriptors; without it that of the runner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u32>,
    /// Largest core file; 0: none is written.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub core_bytes: u64,
    /// Largest file that a process may write, its output included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_bytes: Option<u64>,
    /// From 0 to 19, the higher the more the processes leave to others; without it that of the runner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nice: Option<u32>,
    /// Of all processes together, without swap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Thousandths of one processor, of all processes together, in each tenth of a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u32>,
    /// Processes and threads at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

impl Limits {
    pub fn validate(&self) -> Result<(), Invalid> {
        let outside = |field: &str, value: u64, min: u64, max: u64, remedy: &str| {
            if (min..=max).contains(&value) {
                return Ok(());
            }
            Err(Invalid::new(
                field,
                format!("{value} is outside {min} to {max}; {remedy}"),
            ))
        };
        if let Some(files) = self.open_files {
            let (min, max) = (u64::from(OPEN_FILES_MIN), u64::from(OPEN_FILES_MAX));
            let remedy = "leave it out for the runner's own";
            outside("limits.open_files", files.into(), min, max, remedy)?;
        }
        let remedy = "0 bytes write no core file";
        outside("limits.core_bytes", self.core_bytes, 0, CORE_BYTES_MAX, remedy)?;
        if let Some(bytes) = self.file_bytes {
            let remedy = "leave it out for no limit but the host's";
            outside("limits.file_bytes", bytes, 1, FILE_BYTES_MAX, remedy)?;
        }
        if let Some(nice) = self.nice {
            let remedy = "no task may go before others of its host";
            outside("limits.nice", nice.into(), 0, NICE_MAX.into(), remedy)?;
        }
        let remedy = "leave it out for no limit but the host's";
        if let Some(bytes) = self.memory_bytes {
            outside("limits.memory", bytes, MEMORY_BYTES_MIN, MEMORY_BYTES_MAX, remedy)?;
        }
        if let Some(millis) = self.cpu_millis
            && !(CPU_MILLIS_MIN..=CPU_MILLIS_MAX).contains(&millis)
        {
            let [asked, min, max] = [millis, CPU_MILLIS_MIN, CPU_MILLIS_MAX].map(exact_cpus);
            return Err(Invalid::new(
                "limits.cpus",
                format!("{asked} is outside {min} to {max}; {remedy}"),
            ));
        }
        if let Some(pids) = self.pids {
            outside("limits.pids", pids.into(), 1, PIDS_MAX.into(), remedy)?;
        }
        Ok(())
    }
}

const UNITS: [(char, u32); 4] = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];

/// Reads `512K`, `10M`, `2G`, `1T`, also as `10MiB`; a bare number is bytes.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is not a size; write for example 512K, 10M, 2G, or a number of bytes");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let unit = unit.strip_suffix("iB").unwrap_or(unit);
    let shift = match UNITS.iter().find(|(name, _)| unit == name.encode_utf8(&mut [0; 4])) {
        Some((_, shift)) => *shift,
        None if text.len() == digits.len() => 0,
        None => return Err(bad()),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(bad());
    }
    let number: u64 = digits.parse().map_err(|_| bad())?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("{text:?} is more bytes than can be counted"))
}

/// Writes a size so that [`parse_bytes`] reads the same value, in the largest unit that fits.
pub fn exact_bytes(bytes: u64) -> String {
    let fits = |shift: u32| bytes != 0 && bytes.is_multiple_of(1 << shift);
    match UNITS.iter().rev().find(|(_, shift)| fits(*shift)) {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// Reads `2`, `0.5`, `1.25` as thousandths of a processor.
pub fn parse_cpus(text: &str) -> Result<u32, String> {
    let bad =
        || format!("{text:?} is no number of processors; write for example 2 or 0.5, with at most three decimals");
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 3 {
        return Err(bad());
    }
    let number = |text: &str| text.parse::<u32>().map_err(|_| bad());
    let thousandths = number(&format!("{part:0<3}"))?;
    let millis = number(whole)?
        .checked_mul(1_000)
        .and_then(|millis| millis.checked_add(thousandths));
    millis.ok_or_else(bad)
}

/// Writes it so that [`parse_cpus`] reads the same value.
pub fn exact_cpus(millis: u32) -> String {
    match (millis / 1_000, millis % 1_000) {
        (whole, 0) => whole.to_string(),
        (whole, part) => format!("{whole}.{part:03}").trim_end_matches('0').to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_read_and_written_alike() {
        for (text, millis) in [
            ("2", 2_000),
            ("0.5", 500),
            ("1.25", 1_250),
            ("0.01", 10),
            ("0", 0),
            ("64.001", 64_001),
        ] {
            assert_eq!((parse_cpus(text), exact_cpus(millis).as_str()), (Ok(millis), text));
        }
        assert_eq!(parse_cpus("1.50"), Ok(1_500));
        for text in ["", ".", ".5", "1.", "1.2345", "-1", "1e3", "1,5", "5000000"] {
            assert!(parse_cpus(text).is_err(), "{text}");
        }
    }

    #[test]
    fn limits_of_all_processes_together_have_ranges() {
        let limits = |memory_bytes, cpu_millis, pids| Limits {
            memory_bytes,
            cpu_millis,
            pids,
            ..Limits::default()
        };
        for (limits, refused) in [
            (limits(Some(1 << 20), Some(10), Some(1)), None),
            (limits(Some(1 << 50), Some(4_096_000), Some(4_194_304)), None),
            (limits(Some((1 << 20) - 1), None, None), Some("limits.memory")),
            (limits(Some((1 << 50) + 1), None, None), Some("limits.memory")),
            (limits(None, Some(9), None), Some("limits.cpus")),
            (limits(None, Some(4_096_001), None), Some("limits.cpus")),
            (limits(None, None, Some(0)), Some("limits.pids")),
            (limits(None, None, Some(4_194_305)), Some("limits.pids")),
        ] {
            let field = limits.validate().err().map(|invalid| invalid.field);
            assert_eq!(field.as_deref(), refused, "{limits:?}");
        }
        let message = limits(None, Some(5), None).validate().expect_err("refused").message;
        assert!(message.starts_with("0.005 is outside 0.01 to 4096; "), "{message}");
    }

    #[test]
    fn each_limit_has_its_range() {
        let limits = |open_files, core_bytes, file_bytes, nice| Limits {
            open_files,
            core_bytes,
            file_bytes,
            nice,
            ..Limits::default()
        };
        for (limits, refused) in [
            (Limits::default(), None),
            (limits(Some(16), 0, Some(1), Some(0)), None),
            (limits(Some(1 << 30), 1 << 50, Some(1 << 50), Some(19)), None),
            (limits(Some(15), 0, None, None), Some("limits.open_files")),
            (limits(Some((1 << 30) + 1), 0, None, None), Some("limits.open_files")),
            (limits(None, (1 << 50) + 1, None, None), Some("limits.core_bytes")),
            (limits(None, 0, Some(0), None), Some("limits.file_bytes")),
            (limits(None, 0, Some((1 << 50) + 1), None), Some("limits.file_bytes")),
            (limits(None, 0, None, Some(20)), Some("limits.nice")),
        ] {
            let field = limits.validate().err().map(|invalid| invalid.field);
            assert_eq!(field.as_deref(), refused, "{limits:?}");
        }
        let message = limits(Some(3), 0, None, None).validate().expect_err("refused").message;
        assert!(message.starts_with("3 is outside 16 to 1073741824; "), "{message}");
    }

    #[test]
    fn sizes_are_read_and_written_alike() {
        for (text, bytes) in [
            ("0", 0),
            ("1000", 1_000),
            ("1025", 1_025),
            ("512K", 512 << 10),
            ("10M", 10 << 20),
            ("2G", 2 << 30),
            ("3T", 3 << 40),
        ] {
            assert_eq!((parse_bytes(text), exact_bytes(bytes).as_str()), (Ok(bytes), text));
        }
        assert_eq!(parse_bytes("10MiB"), Ok(10 << 20));
        for text in [
            "",
            "K",
            "1k",
            "1 K",
            "-1",
            "+1",
            "1.5G",
            "1GB",
            "1KK",
            "iB",
            "5iB",
            "16777216T",
            "1日",
        ] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}
