//! Options of `systole why`.

use super::value::{task_id, word};
use clap::Args;
use systole_shared::clock::now_ms;
use systole_shared::time::parse_time_in;
use systole_shared::trigger::zone::Zone;

#[derive(Debug, Args)]
#[command(after_help = "\
Of a task that waits: everything that holds it, and who can lift that with which command. Of one that has ended: what happened.
Of a job: what becomes of it now, and what became of its last time, or of the time after @.
A time without an offset is one of the zone of this machine, as everywhere; the answer names the zone, and --zone reads it in another.

Examples:
  systole why 1851                        what it waits for, or what became of it
  systole why nightly-backup              what happens, or happened last
  systole why nightly-backup@02:30        what became of that time; --at 02:30 is the same
  systole why nightly-backup --at '2027-03-28 02:30' --zone Europe/Berlin")]
pub struct WhyArgs {
    /// Id of a task, or name of a job, with one of its times after @; a number is a task unless --at is given
    #[arg(value_name = "TASK|JOB[@TIME]", value_parser = subject, allow_negative_numbers = true)]
    pub subject: Subject,
    /// A scheduled time of the job
    #[arg(long, value_name = "TIME", value_parser = typed_time, allow_hyphen_values = true)]
    pub at: Option<String>,
    /// Read the time in this IANA time zone, such as Europe/Berlin [default: this machine's]
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    Task(i64),
    Job { name: String, at: Option<String> },
}

fn subject(text: &str) -> Result<Subject, String> {
    if text.parse::<i64>().is_ok() {
        return task_id(text).map(Subject::Task);
    }
    let (name, at) = match text.split_once('@') {
        Some((name, at)) => (name, Some(typed_time(at)?)),
        None => (text, None),
    };
    Ok(Subject::Job { name: word(name)?, at })
}

/// A time that is read once its zone is known; any zone tells whether it is one.
fn typed_time(text: &str) -> Result<String, String> {
    parse_time_in(text, now_ms(), &Zone::utc()).map(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_task_and_a_word_is_a_job() {
        let job = |name: &str, at: Option<&str>| Subject::Job {
            name: name.into(),
            at: at.map(str::to_owned),
        };
        assert_eq!(subject("1851"), Ok(Subject::Task(1851)));
        assert_eq!(subject("etl.load"), Ok(job("etl.load", None)));
        let at = subject("a@2027-03-28T02:30:00+01:00");
        assert_eq!(at, Ok(job("a", Some("2027-03-28T02:30:00+01:00"))));
        for (bad, remedy) in [
            ("0", "no task id"),
            ("-5", "no task id"),
            ("a@noon", "is not a time"),
            ("A B", "A B"),
            ("@02:30", ""),
        ] {
            let message = subject(bad).expect_err(bad);
            assert!(message.contains(remedy), "{bad}: {message}");
        }
    }
}
