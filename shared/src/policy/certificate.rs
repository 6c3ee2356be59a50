//! When a server certificate is made anew, and what a fingerprint looks like.

use crate::error::Invalid;

/// How long before now a certificate is valid already: clocks of other hosts may be a day behind.
pub const BACKDATED_MS: i64 = 2 * 24 * 3_600_000;

/// Whether a certificate that was made at `issued_ms` and is valid until `until_ms` is to be replaced. After two thirds,
/// so that a clock that is a day ahead accepts it all the time. A clock that was set back must not keep one for longer.
pub fn renewal_due(issued_ms: i64, until_ms: i64, now_ms: i64) -> bool {
    let lifetime = until_ms - issued_ms;
    now_ms >= issued_ms + lifetime / 3 * 2 || now_ms < issued_ms - BACKDATED_MS
}

/// The SHA-256 of a certificate, of what people paste: hex of either case, with or without colons and a leading `sha256:`.
pub fn parse_fingerprint(text: &str, field: &str) -> Result<String, Invalid> {
    let lower = text.trim().to_ascii_lowercase();
    let hex: String = lower
        .strip_prefix("sha256:")
        .unwrap_or(&lower)
        .chars()
        .filter(|c| *c != ':')
        .collect();
    if hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        Ok(hex)
    } else {
        Err(Invalid::new(
            field,
            "is no SHA-256: 64 hex digits, as `systole join-command` prints them",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_of_its_time() {
        let (issued, until) = (1_000_000, 1_090_000);
        for (now, due) in [
            (issued, false),
            (1_059_999, false),
            (1_060_000, true),
            (until + 1, true),
        ] {
            assert_eq!(renewal_due(issued, until, now), due, "{now}");
        }
    }

    #[test]
    fn a_certificate_of_the_future_is_renewed() {
        let issued = 10 * BACKDATED_MS;
        assert!(!renewal_due(issued, issued + BACKDATED_MS, issued - BACKDATED_MS));
        assert!(renewal_due(issued, issued + BACKDATED_MS, issued - BACKDATED_MS - 1));
    }

    #[test]
    fn fingerprints_are_taken_as_people_have_them() {
        let hex = "0123456789abcdef".repeat(4);
        let colons: Vec<String> = hex
            .to_uppercase()
            .as_bytes()
            .chunks(2)
            .map(|pair| String::from_utf8_lossy(pair).into_owned())
            .collect();
        for good in [
            hex.clone(),
            format!("SHA256:{hex}"),
            colons.join(":"),
            format!(" {hex}\n"),
        ] {
            assert_eq!(parse_fingerprint(&good, "f"), Ok(hex.clone()));
        }
        for bad in ["", "sha256:", &hex[1..], "zz", &format!("{hex}0"), &"g".repeat(64)] {
            assert_eq!(parse_fingerprint(bad, "f").expect_err("refused").field, "f");
        }
    }
}
