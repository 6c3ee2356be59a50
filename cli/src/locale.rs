//! The language in which this user wants to be answered by a scheduler.

use crate::args::Global;
use crate::paths;
use systole_shared::locale::Locale;

/// Of these the first that says something counts, as everywhere.
const VARIABLES: [&str; 4] = ["SYSTOLE_LOCALE", "LC_ALL", "LC_MESSAGES", "LANG"];

/// What is wished for, in this order: the option, else the variables. A wish that nobody can fulfil is English.
pub fn wanted(global: &Global) -> Locale {
    let variables = VARIABLES
        .iter()
        .filter_map(|name| paths::variable(name)?.into_string().ok());
    choose(global.locale.clone(), variables)
}

fn choose(option: Option<String>, mut variables: impl Iterator<Item = String>) -> Locale {
    let value = option.or_else(|| variables.next()).unwrap_or_default();
    let tag = Locale::tag_of_posix(&value);
    tag.and_then(|tag| Locale::of_tag(&tag)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_goes_before_the_variables_and_the_first_of_them_counts() {
        let choose = |option: Option<&str>, variables: &[&str]| {
            choose(
                option.map(str::to_owned),
                variables.iter().map(|&value| value.to_owned()),
            )
        };
        assert_eq!(choose(Some("fr"), &["de_DE.UTF-8"]), Locale::Fr);
        assert_eq!(choose(None, &["de_DE.UTF-8", "fr_FR"]), Locale::De);
        assert_eq!(choose(None, &["C", "fr_FR"]), Locale::En);
        assert_eq!(choose(Some("tlh"), &["de"]), Locale::En);
        assert_eq!(choose(None, &[]), Locale::En);
    }
}
