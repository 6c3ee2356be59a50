//! The trace that a submission belongs to, as the W3C recommendation "Trace Context" writes it. It is passed on to the child as
//! the variable `TRACEPARENT` and means nothing here.

/// The variable of a child.
pub const TRACEPARENT: &str = "TRACEPARENT";
/// The header of a call.
pub const HEADER: &str = "traceparent";

/// `VERSION-TRACE-PARENT-FLAGS`, in lower-case hexadecimal digits; of a later version than 00 more may follow.
pub fn is_traceparent(text: &str) -> bool {
    let mut parts = text.split('-');
    let mut hex = |digits: usize| {
        parts
            .next()
            .filter(|part| part.len() == digits && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
    };
    let (Some(version), Some(trace), Some(parent), Some(_flags)) = (hex(2), hex(32), hex(16), hex(2)) else {
        return false;
    };
    let is_zero = |part: &str| part.bytes().all(|b| b == b'0');
    version != "ff"
        && !is_zero(trace)
        && !is_zero(parent)
        && (version != "00" || parts.next().is_none())
        && text.len() <= 512
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_recommendation_allows_is_a_traceparent() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert!(is_traceparent(good));
        assert!(is_traceparent(
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-the-future-will-be-like"
        ));
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            " 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
        ] {
            assert!(!is_traceparent(bad), "{bad}");
        }
    }
}
