//! The name that was meant by one that is not there.

/// How much two names must be alike for one to be meant by the other, 0 to 1.
const LIKENESS_MIN: f64 = 0.85;
/// What is longer is compared with nothing: the work grows with its length.
const NAME_BYTES_MAX: usize = 256;

/// Of the names that are known the one that is most like this one, if it is like it at least as much as `least`.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>, least: f64) -> Option<&'a str> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let name = name.to_lowercase();
    known
        .into_iter()
        .map(|known| (strsim::jaro_winkler(&name, &known.to_lowercase()), known))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(likeness, _)| *likeness >= least)
        .map(|(_, known)| known)
}

/// `did you mean "nightly"? `, in front of what else there is to say; empty where no name is near.
pub fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    match nearest(name, known, LIKENESS_MIN) {
        Some(near) if near != name => format!("did you mean {near:?}? "),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_mistyped_is_told_the_one_that_was_meant() {
        let known = ["nightly-backup", "etl.load", "etl.extract", "report", "db-01", "GPU-03"];
        for (typed, meant) in [
            ("nightly", "nightly-backup"),
            ("nigthly-backup", "nightly-backup"),
            ("nightly_backup", "nightly-backup"),
            ("etl.laod", "etl.load"),
            ("etl-extract", "etl.extract"),
            ("reprot", "report"),
            ("db-1", "db-01"),
            ("gpu-03", "GPU-03"),
        ] {
            assert_eq!(
                did_you_mean(typed, known),
                format!("did you mean {meant:?}? "),
                "{typed}"
            );
        }
        let long = "nightly-backup".repeat(99);
        for typed in ["", "invoices", "x", "hello", "web-7", long.as_str()] {
            assert_eq!(did_you_mean(typed, known), "", "{typed}");
        }
        assert_eq!(
            did_you_mean("report", known),
            "",
            "it is there, and something else is not"
        );
        assert_eq!(did_you_mean("report", []), "");
    }
}
