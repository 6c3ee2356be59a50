//! Secrets as they are written and stored. Whoever makes one brings the random bytes.

use crate::error::Invalid;
use sha2::{Digest, Sha256};

/// SHA-256 of a token, hex.
pub fn hash(token: &str) -> String {
    hex(&Sha256::digest(token.as_bytes()))
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|nibble| char::from(DIGITS[usize::from(nibble)]))
        .collect()
}

/// A secret: a prefix that people recognise, and 32 bytes that must be random.
pub fn of_random(prefix: &str, random: [u8; 32]) -> String {
    format!("{prefix}_{}", hex(&random))
}

/// A hash as [`hash`] makes it.
pub fn check_hash(text: &str, field: &str) -> Result<(), Invalid> {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if text.len() == 64 && text.bytes().all(hex) {
        Ok(())
    } else {
        Err(Invalid::new(field, "is no SHA-256; write its 64 lower-case hex digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_64_digits_in_lower_case() {
        let hash = hash("abc");
        assert_eq!(hash, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(check_hash(&hash, "f"), Ok(()));
        for bad in ["", &hash[1..], &hash.to_uppercase()] {
            assert_eq!(check_hash(bad, "f").expect_err("refused").field, "f");
        }
        assert_eq!(of_random("x", [0xa5; 32]), format!("x_{}", "a5".repeat(32)));
    }
}
