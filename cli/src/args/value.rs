//! Values of options, as far as one value alone can be wrong. A wrong one is repeated in its message, but not at length.

use super::runners::Until;
use crate::url::DEFAULT_PORT;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::net::SocketAddr;
use std::time::Duration;
use systole_shared::clock::now_ms;
use systole_shared::error::Invalid;
use systole_shared::id::Target;
use systole_shared::limits::{
    NICE_MAX, OPEN_FILES_MAX, OPEN_FILES_MIN, PIDS_MAX, PRIORITY_MAX, RETRIES_MAX, SLOTS_MAX, UMASK_MAX,
};
use systole_shared::task::TaskState;
use systole_shared::task::run_as::check_account;
use systole_shared::task::trace::is_traceparent;
use systole_shared::time::{parse_duration, parse_time, parse_time_ahead};

/// A label that some slots of a runner have beside those of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotLabel {
    pub from: u32,
    pub to: u32,
    pub key: String,
    pub value: String,
}

/// A wrong value is repeated up to this length.
const ECHO_CHARS_MAX: usize = 60;

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let ms = parse_duration(text)?;
    if ms > systole_shared::limits::DURATION_MS_MAX {
        return Err(format!("{text:?} is too long; the longest duration is 366d"));
    }
    Ok(Duration::from_millis(ms))
}

pub(super) fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be longer than 0".into()),
        duration => Ok(duration),
    }
}

/// The value as far as a message may repeat it.
pub(super) fn brief(text: &str) -> String {
    if text.chars().count() <= ECHO_CHARS_MAX {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(ECHO_CHARS_MAX - 1).collect();
    short.push('…');
    short
}

/// The message of a check in `shared`, which repeats the value quoted or as it is.
fn brief_message(invalid: Invalid, text: &str) -> String {
    if text.chars().count() <= ECHO_CHARS_MAX {
        return invalid.message;
    }
    let quoted = format!("{:?}", brief(text));
    invalid
        .message
        .replace(&format!("{text:?}"), &quoted)
        .replace(text, &brief(text))
}

fn number(text: &str, max: u32) -> Result<u32, String> {
    match text.parse::<i64>() {
        Ok(number) => u32::try_from(number)
            .ok()
            .filter(|&number| number <= max)
            .ok_or_else(|| format!("{number} is out of range; write 0 to {max}")),
        Err(_) => Err(format!("{} is no number; write 0 to {max}", brief(text))),
    }
}

pub(super) fn priority(text: &str) -> Result<u32, String> {
    number(text, PRIORITY_MAX)
}

pub(super) fn retries(text: &str) -> Result<u32, String> {
    number(text, RETRIES_MAX)
}

pub(super) fn listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let port = text.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
        format!(
            "{:?} is no IP address with port; write for example 127.0.0.1:{}",
            brief(text),
            port.unwrap_or(DEFAULT_PORT)
        )
    })
}

pub(super) fn time(text: &str) -> Result<i64, String> {
    parse_time(text, now_ms())
}

/// A time that lies ahead: a time of day that is over is that of tomorrow.
pub(super) fn coming(text: &str) -> Result<i64, String> {
    parse_time_ahead(text, now_ms())
}

/// A time; a duration is that long ago.
pub(super) fn since(text: &str) -> Result<i64, String> {
    match parse_duration(text) {
        Ok(ms) => Ok(now_ms().saturating_sub(i64::try_from(ms).unwrap_or(i64::MAX)).max(1)),
        Err(_) => time(text),
    }
}

/// A time; a duration is so long from now.
pub(super) fn ahead(text: &str) -> Result<i64, String> {
    match parse_duration(text) {
        Ok(ms) => Ok(now_ms().saturating_add(i64::try_from(ms).unwrap_or(i64::MAX))),
        Err(_) => coming(text),
    }
}

/// A time that lies ahead, or a duration from now.
pub(super) fn until(text: &str) -> Result<Until, String> {
    if parse_duration(text).is_ok() {
        let within = positive_duration(text)?;
        return Ok(Until::Within(u64::try_from(within.as_millis()).unwrap_or(u64::MAX)));
    }
    let ms = coming(text)?;
    match u64::try_from(ms) {
        Ok(at) if ms > now_ms() => Ok(Until::Time(at)),
        _ => Err(format!(
            "{:?} is over already; write a time that lies ahead, or 2h",
            brief(text)
        )),
    }
}

/// Bytes with a unit: `512MiB`, `10GiB`. A bare number is refused, as with durations.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is not a size; write for example 512MiB or 10GiB");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| bad())?;
    let unit: u64 = match &text[digits..] {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        "" => return Err(format!("{text:?} has no unit; write \"{text}MiB\" or \"{text}GiB\"")),
        _ => return Err(bad()),
    };
    number
        .checked_mul(unit)
        .filter(|&bytes| i64::try_from(bytes).is_ok())
        .ok_or_else(|| format!("{text:?} is too large"))
}

pub(super) fn count(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(format!("{text:?} is no number of tasks; write 1 or more")),
    }
}

/// Of a job; they count from 1.
pub(super) fn version(text: &str) -> Result<i64, String> {
    match text.parse() {
        Ok(version) if version > 0 => Ok(version),
        _ => Err(format!("{text:?} is no version of a job; write 1 or more")),
    }
}

pub(super) fn lines(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no number of lines; write 0 or more"))
}

pub(super) fn open_files(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(files) if (OPEN_FILES_MIN..=OPEN_FILES_MAX).contains(&files) => Ok(files),
        _ => Err(format!(
            "{:?} is no number of files; write {OPEN_FILES_MIN} to {OPEN_FILES_MAX}",
            brief(text)
        )),
    }
}

pub(super) fn nice(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(nice) if nice <= NICE_MAX => Ok(nice),
        _ => Err(format!("{:?} is no nice value; write 0 to {NICE_MAX}", brief(text))),
    }
}

pub(super) fn pids(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(pids) if (1..=PIDS_MAX).contains(&pids) => Ok(pids),
        _ => Err(format!(
            "{:?} is no number of processes; write 1 to {PIDS_MAX}",
            brief(text)
        )),
    }
}

pub(super) fn umask(text: &str) -> Result<u32, String> {
    let octal = (1..=4).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
    match u32::from_str_radix(text, 8) {
        Ok(mask) if octal && mask <= UMASK_MAX => Ok(mask),
        _ => Err(format!(
            "{:?} is no umask; write an octal number up to 777, such as 027",
            brief(text)
        )),
    }
}

pub(super) fn user(text: &str) -> Result<String, String> {
    check_account(text, "user").map_err(|invalid| invalid.message)?;
    Ok(text.to_owned())
}

pub(super) fn group(text: &str) -> Result<String, String> {
    check_account(text, "group").map_err(|invalid| invalid.message)?;
    Ok(text.to_owned())
}

/// One of a few words, which completions know.
pub(super) fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.map(name)).try_map(move |text| {
        let found = all.into_iter().find(|&value| name(value) == text);
        found.ok_or("is not one of them")
    })
}

pub(super) fn label(text: &str) -> Result<(String, String), String> {
    systole_shared::task::spec::parse_label(text, "label").map_err(|invalid| brief_message(invalid, text))
}

pub(super) fn env_var(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is no variable; write NAME=VALUE, such as STAGE=prod")),
    }
}

pub(super) fn traceparent(text: &str) -> Result<String, String> {
    if is_traceparent(text) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "{:?} is no traceparent; write 00-, 32 and 16 hexadecimal digits, and flags, such as 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        brief(text)
    ))
}

/// `SLOT:K=V` or `FROM-TO:K=V`.
pub(super) fn slot_label(text: &str) -> Result<SlotLabel, String> {
    let wrong = || {
        format!(
            "{:?} is no label of a slot; write SLOT:K=V or FROM-TO:K=V, such as 0:gpu=0",
            brief(text)
        )
    };
    let (slots, pair) = text.split_once(':').ok_or_else(wrong)?;
    let (from, to) = slots.split_once('-').unwrap_or((slots, slots));
    let slot = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        text.parse()
            .ok()
            .filter(|&slot: &u32| digits && slot < SLOTS_MAX)
            .ok_or_else(wrong)
    };
    let (from, to) = (slot(from)?, slot(to)?);
    if from > to {
        return Err(format!("{slots:?} is no range; write the lower slot first"));
    }
    let (key, value) = label(pair)?;
    Ok(SlotLabel { from, to, key, value })
}

pub(super) fn target(text: &str) -> Result<Target, String> {
    Target::parse(text, "runner").map_err(|invalid| brief_message(invalid, text))
}

pub(super) fn word(text: &str) -> Result<String, String> {
    systole_shared::task::spec::check_word(text, "")
        .map(|()| text.to_owned())
        .map_err(|invalid| brief_message(invalid, text))
}

pub(super) fn host(text: &str) -> Result<String, String> {
    systole_shared::id::check_host(text, "")
        .map(|()| text.to_owned())
        .map_err(|invalid| brief_message(invalid, text))
}

pub(super) fn reason(text: &str) -> Result<String, String> {
    systole_shared::task::spec::check_text(text, "", systole_shared::limits::REASON_CHARS_MAX)
        .map(|()| text.to_owned())
        .map_err(|invalid| brief_message(invalid, text))
}

pub(super) fn token_name(text: &str) -> Result<String, String> {
    systole_shared::policy::access::check_token_name(text, "")
        .map(|()| text.to_owned())
        .map_err(|invalid| brief_message(invalid, text))
}

pub(super) fn key(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("the key is empty".into());
    }
    systole_shared::task::spec::check_text(text, "", systole_shared::limits::KEY_CHARS_MAX)
        .map(|()| text.to_owned())
        .map_err(|invalid| brief_message(invalid, text))
}

pub(super) fn state(text: &str) -> Result<TaskState, String> {
    TaskState::parse(text).ok_or_else(|| {
        let names: Vec<_> = TaskState::ALL.iter().map(|state| state.name()).collect();
        format!("{text:?} is no state; the states are {}", names.join(", "))
    })
}

pub(super) fn task_id(text: &str) -> Result<i64, String> {
    match text.parse::<i64>() {
        Ok(id) if id > 0 => Ok(id),
        _ => {
            let number = text.bytes().all(|b| b.is_ascii_digit() || b == b'-');
            let of_a_job = match word(text) {
                Ok(job) if !number => format!("; of a job: systole job history {job}"),
                _ => String::new(),
            };
            Err(format!(
                "{text:?} is no task id; write the number that `systole submit` or `systole ls` shows, such as 12{of_a_job}"
            ))
        }
    }
}

/// A language tag; whether there are texts in it is another question.
pub(super) fn locale(text: &str) -> Result<String, String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.@".contains(&b);
    if (1..=63).contains(&text.len()) && text.bytes().all(plain) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "{:?} is no language tag; write for example de, pt-BR or zh-CN",
        brief(text)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_need_units() {
        assert_eq!(size("10GiB"), Ok(10 << 30));
        assert_eq!(size("0B"), Ok(0));
        for text in ["", "10", "GiB", "1GB", "-1MiB", "9999999999TiB", "1.5GiB"] {
            assert!(size(text).is_err(), "{text:?}");
        }
    }
}
