//! How many there are of something, in words.

use std::fmt::Display;

/// "1 task", "412 tasks"; of words that take an s.
pub fn counted<N: Display + PartialEq + From<u8>>(n: N, one: &str) -> String {
    let s = if n == N::from(1) { "" } else { "s" };
    format!("{n} {one}{s}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_the_only_one_without_an_s() {
        assert_eq!(
            [0_u64, 1, 2].map(|n| counted(n, "task")),
            ["0 tasks", "1 task", "2 tasks"]
        );
        assert_eq!(counted(1_usize, "slot"), "1 slot");
        assert_eq!(counted(-1_i64, "day"), "-1 days");
    }
}
