//! Options of `systole cron`.

use super::value::{brief, time};
use clap::{Args, Subcommand, ValueEnum};
use systole_shared::trigger::cron::Dialect;
use systole_shared::trigger::dst::{Gap, Overlap};

/// Fires that one call shows at most.
const FIRES_MAX: u64 = 1_000;

#[derive(Debug, Args)]
#[command(
    about = "Show when a cron expression fires, and read it back in words; needs no scheduler",
    after_help = "\
Examples:
  systole cron next '30 2 * * 1-5' --zone Europe/Berlin -n 20
  systole cron next '0 0/15 8-18 ? * MON-FRI' --dialect quartz
  systole cron next '30 2 * * *' --zone Europe/Berlin --after 2027-03-26T00:00:00Z
  systole cron explain '0 9 13 * 5'"
)]
pub struct CronArgs {
    #[command(subcommand)]
    pub action: CronAction,
}

#[derive(Debug, Subcommand)]
pub enum CronAction {
    /// The next fires with their offsets, and the days on which a clock change touches them
    Next(CronNextArgs),
    /// What each field means, and the next fires
    Explain(CronExplainArgs),
}

#[derive(Debug, Args)]
pub struct Expression {
    /// The expression, in quotes
    #[arg(value_name = "EXPR", allow_hyphen_values = true)]
    pub text: String,
    /// Whose rules: unix has 5 fields, as crontab; quartz has 6 or 7, with seconds, as Quartz and xxl-job
    #[arg(long, value_name = "DIALECT", default_value = "unix")]
    pub dialect: DialectName,
    /// IANA time zone, such as Europe/Berlin [default: this machine's]
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
    /// A fixed time that does not exist: fires when the clock jumps, or not at all that day
    #[arg(long, value_name = "POLICY", default_value = "shift")]
    pub dst_gap: GapName,
    /// A fixed time that exists twice fires in this pass; interval expressions (`*/15`) always run in both
    #[arg(long, value_name = "POLICY", default_value = "first")]
    pub dst_overlap: OverlapName,
}

#[derive(Debug, Args)]
pub struct CronNextArgs {
    #[command(flatten)]
    pub expression: Expression,
    /// How many fires, 1 to 1000
    #[arg(short = 'n', long = "number", value_name = "N", default_value = "10", value_parser = fires)]
    pub number: u64,
    /// Fires after this time [default: now]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time)]
    pub after: Option<i64>,
}

#[derive(Debug, Args)]
pub struct CronExplainArgs {
    #[command(flatten)]
    pub expression: Expression,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DialectName {
    Unix,
    Quartz,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GapName {
    Shift,
    Skip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OverlapName {
    First,
    Second,
    Both,
}

impl From<DialectName> for Dialect {
    fn from(name: DialectName) -> Self {
        match name {
            DialectName::Unix => Self::Unix,
            DialectName::Quartz => Self::Quartz,
        }
    }
}

impl From<GapName> for Gap {
    fn from(name: GapName) -> Self {
        match name {
            GapName::Shift => Self::Shift,
            GapName::Skip => Self::Skip,
        }
    }
}

impl From<OverlapName> for Overlap {
    fn from(name: OverlapName) -> Self {
        match name {
            OverlapName::First => Self::First,
            OverlapName::Second => Self::Second,
            OverlapName::Both => Self::Both,
        }
    }
}

fn fires(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(count @ 1..=FIRES_MAX) => Ok(count),
        _ => Err(format!(
            "{:?} is no number of fires; write 1 to {FIRES_MAX}",
            brief(text)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Command, parse};

    fn next(line: &[&str]) -> CronNextArgs {
        match parse(line).expect("a command line").command {
            Command::Cron(CronArgs {
                action: CronAction::Next(args),
            }) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_expression_is_one_argument_also_with_a_star_or_a_dash_in_front() {
        let args = next(&["systole", "cron", "next", "*/5 * * * *", "--zone", "UTC", "-n", "20"]);
        assert_eq!((args.expression.text.as_str(), args.number), ("*/5 * * * *", 20));
        let args = next(&["systole", "cron", "next", "-1 * * * *", "--dst-overlap", "both"]);
        assert_eq!(args.expression.text, "-1 * * * *");
        assert_eq!(args.expression.dst_overlap, OverlapName::Both);
    }

    #[test]
    fn the_number_of_fires_is_bounded() {
        for number in ["0", "1001", "-1", "x"] {
            let error = parse(["systole", "cron", "next", "* * * * *", &format!("-n={number}")]).expect_err(number);
            assert!(error.to_string().contains("1 to 1000"), "{error}");
        }
    }
}
