//! The schedule of a CronJob: five fields as its controller reads them, which is not quite as cron does.

use crate::limits::PERIOD_MS_MIN;
use crate::time::{exact_duration, parse_duration};
use crate::trigger::cron::{Cron, Dialect};
use crate::trigger::definition::TriggerSpec;

/// The highest value of each field.
const LAST: [u32; 5] = [59, 23, 31, 12, 6];

/// A field in the words of our unix dialect. `both`: day of month and day of week are restricted.
fn field(index: usize, text: &str, both: bool) -> String {
    let item = |item: &str| {
        let Some((range, step)) = item.split_once('/') else {
            return if item == "?" { "*".into() } else { item.to_owned() };
        };
        let last = LAST[index];
        match range {
            // For the controller */2 restricts; for cron a field that begins with * does not.
            "*" | "?" if both && (index == 2 || index == 4) && step != "1" => {
                format!("{}-{last}/{step}", if index == 2 { 1 } else { 0 })
            }
            "*" | "?" => format!("*/{step}"),
            // 5/10 is from 5 to the end.
            number if number.bytes().all(|b| b.is_ascii_digit()) => format!("{number}-{last}/{step}"),
            _ => item.to_owned(),
        }
    };
    text.split(',').map(item).collect::<Vec<_>>().join(",")
}

fn is_restricted(field: &str) -> bool {
    !matches!(field, "*" | "?" | "*/1" | "?/1")
}

/// The trigger that a schedule means; its zone where the schedule names one.
pub fn trigger(text: &str) -> Result<TriggerSpec, String> {
    let mut rest = text.trim();
    let mut trigger = TriggerSpec {
        name: "schedule".into(),
        ..TriggerSpec::default()
    };
    for prefix in ["CRON_TZ=", "TZ="] {
        if let Some(after) = rest.strip_prefix(prefix) {
            let (zone, schedule) = after.split_once(' ').ok_or("has a zone and no time")?;
            (trigger.zone, rest) = (Some(zone.to_owned()), schedule.trim_start());
        }
    }
    if let Some(every) = rest.strip_prefix("@every ") {
        let ms = parse_duration(every.trim())?;
        // The controller counts whole seconds, too.
        let whole = (ms / 1_000 * 1_000).max(PERIOD_MS_MIN.unsigned_abs());
        trigger.fixed_rate = Some(exact_duration(whole));
        return Ok(trigger);
    }
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let cron = match fields[..] {
        [_, _, day, _, weekday] => {
            let both = is_restricted(day) && is_restricted(weekday);
            let fields = fields.iter().enumerate().map(|(index, text)| field(index, text, both));
            fields.collect::<Vec<_>>().join(" ")
        }
        _ => rest.to_owned(),
    };
    Cron::parse(&cron, Dialect::Unix).map_err(|fault| fault.message)?;
    trigger.cron = Some(cron);
    Ok(trigger)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_read_as_the_controller_does() {
        for (text, cron) in [
            ("0 3 * * *", "0 3 * * *"),
            ("*/5 * * * ?", "*/5 * * * *"),
            ("5/10 * ? * 1-5", "5-59/10 * * * 1-5"),
            ("0 3 */2 * 1", "0 3 1-31/2 * 1"),
            ("0 3 1,15 * */2", "0 3 1,15 * 0-6/2"),
            ("0 3 */2 * *", "0 3 */2 * *"),
            ("@daily", "@daily"),
        ] {
            let found = trigger(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(found.cron.as_deref(), Some(cron), "{text}");
        }
        let every = trigger("@every 1h30m").expect("interval");
        assert_eq!((every.fixed_rate.as_deref(), every.cron), (Some("1h30m"), None));
        let zone = trigger("CRON_TZ=Asia/Tokyo 0 6 * * *").expect("zone");
        assert_eq!(zone.zone.as_deref(), Some("Asia/Tokyo"));
        for text in ["", "0 3 * *", "61 * * * *", "@reboot", "@every x", "TZ=UTC"] {
            assert!(trigger(text).is_err(), "{text}");
        }
    }
}
