//! As whom a task is to run, in the form that can be checked without the host's user database.

use crate::error::Invalid;
use crate::limits::ACCOUNT_CHARS_MAX;

/// A name or a number of a user or group.
pub fn check_account(text: &str, field: &str) -> Result<(), Invalid> {
    let shown = |c: char| !c.is_control() && !c.is_whitespace() && !matches!(c, ':' | '/' | ',');
    if text.is_empty() || text.chars().count() > ACCOUNT_CHARS_MAX || text.starts_with('-') || !text.chars().all(shown)
    {
        return Err(Invalid::new(
            field,
            format!(
                "{text:?} must be a name of at most {ACCOUNT_CHARS_MAX} characters, without blanks, ':', '/', ',' and a leading '-', or a number"
            ),
        ));
    }
    // The kernel takes the highest number for "leave it as it is".
    if account_number(text).is_some_and(|number| number.is_none_or(|number| number == u32::MAX)) {
        return Err(Invalid::new(
            field,
            format!(
                "{text} is more than the highest number of a user or group, {}",
                u32::MAX - 1
            ),
        ));
    }
    Ok(())
}

/// `None`: a name, because not all of it is digits. `Some(None)`: a number that is too large.
pub fn account_number(text: &str) -> Option<Option<u32>> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_of_accounts() {
        for text in [
            "nobody",
            "www-data",
            "svc$",
            "a.b@corp.example",
            "CORP\\ann",
            "0",
            "4294967294",
            "ü",
        ] {
            assert_eq!(check_account(text, "user"), Ok(()), "{text}");
        }
        let long = "x".repeat(64);
        for text in [
            "",
            "-x",
            "a b",
            "a:b",
            "a/b",
            "a,b",
            "a\n",
            "4294967295",
            "99999999999",
            &long,
        ] {
            assert_eq!(
                check_account(text, "user").map_err(|e| e.field),
                Err("user".into()),
                "{text}"
            );
        }
        assert_eq!(account_number("12"), Some(Some(12)));
        assert_eq!(account_number("12a"), None);
    }
}
