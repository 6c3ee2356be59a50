//! What becomes of a task's output: how much of a stream is stored, which bytes of it, and what follows when there is
//! more.
//!
//! Of a stream that is longer than its limit the first half of the limit is stored and the last half: how a program
//! began says what it was doing, how it ended says why it ended, and which of the two matters is not known before. The
//! bytes keep their true offsets; between head and tail there is one gap.

use crate::error::Invalid;
use crate::limits::{
    DURATION_MS_MAX, OUTPUT_CHUNK_BYTES_MAX, OUTPUT_MAX_BYTES_DEFAULT, OUTPUT_MAX_BYTES_MAX, OUTPUT_MAX_BYTES_MIN,
};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// What follows when a stream gets longer than its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLimit {
    /// The task goes on; the middle of its output is not stored.
    #[default]
    Truncate,
    /// The task is ended, and fails.
    Kill,
}

impl OnLimit {
    pub const ALL: [OnLimit; 2] = [OnLimit::Truncate, OnLimit::Kill];

    pub fn name(self) -> &'static str {
        match self {
            OnLimit::Truncate => "truncate",
            OnLimit::Kill => "kill",
        }
    }
}

// No field is written when it has its default; see `TaskSpec`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputPolicy {
    /// Stored bytes of each stream; without it [`OUTPUT_MAX_BYTES_DEFAULT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "is_truncate")]
    pub on_limit: OnLimit,
    /// How long the stored output is kept after the end; without it as long as the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_ms: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_truncate(on_limit: &OnLimit) -> bool {
    *on_limit == OnLimit::Truncate
}

impl OutputPolicy {
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes.unwrap_or(OUTPUT_MAX_BYTES_DEFAULT)
    }

    pub fn validate(&self) -> Result<(), Invalid> {
        if let Some(bytes) = self.max_bytes
            && !(OUTPUT_MAX_BYTES_MIN..=OUTPUT_MAX_BYTES_MAX).contains(&bytes)
        {
            return Err(Invalid::new(
                "output.max_bytes",
                format!("{bytes} is outside {OUTPUT_MAX_BYTES_MIN} to {OUTPUT_MAX_BYTES_MAX} (16K to 256M)"),
            ));
        }
        match self.keep_ms {
            Some(0) => Err(Invalid::new(
                "output.keep_ms",
                "must be at least 1 ms; leave it out to keep the output as long as the task",
            )),
            Some(ms) if ms > DURATION_MS_MAX => Err(Invalid::new("output.keep_ms", "is longer than 366 days")),
            Some(_) | None => Ok(()),
        }
    }
}

/// While a child runs and is further ahead than this, what lies between is left out for now: live output is of now.
pub const LIVE_BEHIND_BYTES_MAX: u64 = 1024 * 1024;
/// How much of such a flood is sent at a time.
const LIVE_BYTES: u64 = OUTPUT_CHUNK_BYTES_MAX as u64;

/// First bytes of a stream that are stored whatever follows.
pub fn head_bytes(max: u64) -> u64 {
    max - max / 2
}

/// Which bytes of a stream are stored: all before `end` but those of the gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    pub gap_start: u64,
    /// Where the tail begins; as `gap_start` where there is no gap.
    pub gap_end: u64,
    pub end: u64,
}

impl Stored {
    pub fn bytes(&self) -> u64 {
        self.end.saturating_sub(self.gap_bytes())
    }

    pub fn gap_bytes(&self) -> u64 {
        self.gap_end.saturating_sub(self.gap_start)
    }

    pub fn has_gap(&self) -> bool {
        self.gap_bytes() > 0
    }

    /// The gap, if a reader at `offset` is in it.
    pub fn gap_at(&self, offset: u64) -> Option<Range<u64>> {
        (self.gap_start..self.gap_end)
            .contains(&offset)
            .then_some(offset..self.gap_end)
    }

    /// How far a reader at `offset` can read on without a break.
    pub fn readable_to(&self, offset: u64) -> u64 {
        if self.has_gap() && offset < self.gap_start {
            self.gap_start
        } else {
            self.end
        }
    }
}

/// What storing a piece means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    pub stored: Stored,
    /// Bytes of the piece that are to be written.
    pub write: Option<Range<u64>>,
    /// The gap grew: what lies wholly in it is to be deleted.
    pub shed: bool,
}

/// Where a piece of a stream goes, of which at most `max` bytes are stored.
///
/// A piece is taken when it goes on where the stream is stored to; when it lies beyond, once the head is there; or when
/// it comes before the tail and there is room. All others change nothing, so that what is sent twice, or late, does not.
pub fn place(before: Stored, max: u64, piece: Range<u64>) -> Placed {
    let nothing = Placed {
        stored: before,
        write: None,
        shed: false,
    };
    if piece.is_empty() {
        return nothing;
    }
    let head = head_bytes(max);
    if piece.end > before.end {
        let jumps = piece.start > before.end;
        if jumps && before.end < head {
            return nothing;
        }
        let write = piece.start.max(before.end)..piece.end;
        let mut stored = Stored {
            end: piece.end,
            ..before
        };
        if jumps {
            stored.gap_start = if before.has_gap() { before.gap_start } else { head };
            stored.gap_end = piece.start;
        }
        let excess = stored.bytes().saturating_sub(max);
        if excess > 0 {
            if !stored.has_gap() {
                (stored.gap_start, stored.gap_end) = (head, head);
            }
            stored.gap_end += excess;
        }
        return Placed {
            shed: stored.gap_bytes() > before.gap_bytes(),
            stored,
            write: Some(write),
        };
    }
    // Before the tail, as it is sent once the end is known.
    if before.has_gap() && (before.gap_start..before.gap_end).contains(&piece.start) && piece.end >= before.gap_end {
        let room = max.saturating_sub(before.bytes());
        let start = piece.start.max(before.gap_end.saturating_sub(room));
        if start < before.gap_end {
            return Placed {
                stored: Stored {
                    gap_end: start,
                    ..before
                },
                write: Some(start..before.gap_end),
                shed: false,
            };
        }
    }
    nothing
}

/// What of a stream of `size` bytes is to be sent next, at most one piece. `ended`: the size is the last one.
pub fn next_piece(stored: Stored, max: u64, size: u64, ended: bool) -> Option<Range<u64>> {
    let chunk = OUTPUT_CHUNK_BYTES_MAX as u64;
    let forward = |from: u64, to: u64| (from < to).then(|| from..to.min(from + chunk));
    if size <= max {
        return forward(stored.end, size);
    }
    let head = head_bytes(max);
    if stored.end < head {
        return forward(stored.end, head);
    }
    if !ended {
        let behind = size.saturating_sub(stored.end);
        return forward(
            if behind > LIVE_BEHIND_BYTES_MAX {
                size - LIVE_BYTES
            } else {
                stored.end
            },
            size,
        );
    }
    let tail_from = size - (max - head);
    if stored.end < size {
        return forward(stored.end.max(tail_from), size);
    }
    (stored.has_gap() && stored.gap_end > tail_from)
        .then(|| tail_from.max(stored.gap_end.saturating_sub(chunk))..stored.gap_end)
}

/// Bytes that are still to be sent of a stream that has ended with `size` bytes.
pub fn missing_bytes(stored: Stored, max: u64, size: u64) -> u64 {
    if size <= max {
        return size.saturating_sub(stored.end);
    }
    let head = head_bytes(max);
    let tail_from = size - (max - head);
    let in_head = head.saturating_sub(stored.end);
    let ahead = size.saturating_sub(stored.end.max(tail_from));
    let behind = if stored.has_gap() && stored.end >= tail_from {
        stored.gap_end.saturating_sub(tail_from)
    } else {
        0
    };
    in_head + ahead + behind
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 16 * 1024;
    const HEAD: u64 = MAX / 2;

    fn stored(gap_start: u64, gap_end: u64, end: u64) -> Stored {
        Stored {
            gap_start,
            gap_end,
            end,
        }
    }

    #[test]
    fn a_stream_within_its_limit_has_no_gap() {
        let mut state = Stored::default();
        for (piece, end) in [
            (0..5, 5),
            (0..5, 5),
            (2..9, 9),
            (20..30, 9),
            (9..MAX, MAX),
            (0..MAX, MAX),
        ] {
            state = place(state, MAX, piece).stored;
            assert_eq!(state, stored(0, 0, end));
        }
    }

    #[test]
    fn what_is_longer_keeps_its_head_and_its_newest_bytes() {
        let full = place(Stored::default(), MAX, 0..MAX).stored;
        let slid = place(full, MAX, MAX..MAX + 100);
        assert_eq!(
            (slid.stored, slid.write, slid.shed),
            (stored(HEAD, HEAD + 100, MAX + 100), Some(MAX..MAX + 100), true)
        );
        let jumped = place(slid.stored, MAX, 1_000_000..1_000_100);
        assert_eq!(jumped.stored, stored(HEAD, 1_000_000, 1_000_100));
        assert_eq!(jumped.stored.bytes(), HEAD + 100);
        // Once the end is known, the tail is filled backwards, and no further than the limit.
        let filled = place(jumped.stored, MAX, 990_000..1_000_000);
        assert_eq!(filled.write, Some(1_000_100 - HEAD..1_000_000));
        assert_eq!(filled.stored.bytes(), MAX);
        for again in [
            0..MAX,
            990_000..1_000_000,
            1_000_000..1_000_100,
            500_000..500_100,
            HEAD..HEAD + 1,
        ] {
            let nothing = place(filled.stored, MAX, again.clone());
            assert_eq!((nothing.stored, nothing.write), (filled.stored, None), "{again:?}");
        }
    }

    #[test]
    fn nothing_is_stored_behind_an_unfinished_head() {
        let begun = place(Stored::default(), MAX, 0..10).stored;
        assert_eq!(place(begun, MAX, 1_000_000..1_000_010).stored, begun);
    }

    #[test]
    fn a_reader_is_told_where_the_gap_ends() {
        let state = stored(100, 900, 1_000);
        assert_eq!(state.gap_at(100), Some(100..900));
        assert_eq!(state.gap_at(899), Some(899..900));
        assert_eq!((state.gap_at(99), state.gap_at(900)), (None, None));
        assert_eq!((state.readable_to(50), state.readable_to(900)), (100, 1_000));
        assert_eq!(
            Stored {
                end: 7,
                ..Stored::default()
            }
            .gap_at(0),
            None
        );
    }

    /// A small generator of numbers; the same each time.
    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    /// Both sides together, over calls that are lost, repeated and late: in the end exactly head and tail are stored.
    #[test]
    fn whatever_the_connection_does_head_and_tail_are_stored_in_the_end() {
        let mut seed = 0x9E37_79B9_7F4A_7C15;
        for round in 0..2_000_u64 {
            let max = OUTPUT_MAX_BYTES_MIN << (random(&mut seed) % 8);
            let (mut server, mut belief) = (Stored::default(), Stored::default());
            let mut size = 0;
            let mut sent: Vec<Range<u64>> = Vec::new();
            let mut calls = 0;
            let steps = random(&mut seed) % 12;
            for step in 0..=steps {
                size += random(&mut seed) % (max * 2);
                let ended = step == steps;
                while let Some(piece) = next_piece(belief, max, size, ended) {
                    calls += 1;
                    assert!(calls < 100_000, "round {round}: no end");
                    assert!(piece.end - piece.start <= OUTPUT_CHUNK_BYTES_MAX as u64 && piece.end <= size);
                    // Lost on the way.
                    if random(&mut seed).is_multiple_of(7) {
                        continue;
                    }
                    server = place(server, max, piece.clone()).stored;
                    sent.push(piece);
                    // A late copy of an earlier call.
                    if random(&mut seed).is_multiple_of(5) {
                        let which = usize::try_from(random(&mut seed)).unwrap_or(0) % sent.len();
                        server = place(server, max, sent[which].clone()).stored;
                    }
                    assert!(server.bytes() <= max, "round {round}: {server:?}");
                    // The answer may be lost: the belief stays behind.
                    if !random(&mut seed).is_multiple_of(6) {
                        belief = server;
                    }
                    if !ended && random(&mut seed).is_multiple_of(3) {
                        break;
                    }
                }
                // The runner is started again and knows nothing.
                if random(&mut seed).is_multiple_of(4) {
                    belief = Stored::default();
                }
            }
            while let Some(piece) = next_piece(belief, max, size, true) {
                server = place(server, max, piece).stored;
                belief = server;
            }
            let head = head_bytes(max);
            let expected = if size <= max {
                stored(server.gap_start, server.gap_start, size)
            } else {
                stored(head, size - (max - head), size)
            };
            assert_eq!(
                (server, missing_bytes(server, max, size)),
                (expected, 0),
                "round {round}"
            );
        }
    }

    #[test]
    fn what_is_missing_is_counted_without_sending_it() {
        let mut seed = 0xDEAD_BEEF_u64;
        for _ in 0..500 {
            let max = OUTPUT_MAX_BYTES_MIN << (random(&mut seed) % 6);
            let mut state = Stored::default();
            let live = random(&mut seed) % (max * 3);
            for _ in 0..random(&mut seed) % 20 {
                if let Some(piece) = next_piece(state, max, live, false) {
                    state = place(state, max, piece).stored;
                }
            }
            let size = live + random(&mut seed) % max;
            let mut left = missing_bytes(state, max, size);
            while let Some(piece) = next_piece(state, max, size, true) {
                let (was, placed) = (left, place(state, max, piece));
                let written = placed.write.map_or(0, |range| range.end - range.start);
                state = placed.stored;
                left = missing_bytes(state, max, size);
                assert_eq!(was - left, written, "{state:?} of {size}, at most {max}");
            }
            assert_eq!(left, 0);
        }
    }

    #[test]
    fn a_limit_outside_its_range_is_named() {
        let refused = |policy: OutputPolicy| policy.validate().expect_err("refused").field;
        let max = |bytes| OutputPolicy {
            max_bytes: Some(bytes),
            ..OutputPolicy::default()
        };
        assert_eq!(OutputPolicy::default().validate(), Ok(()));
        assert_eq!(max(OUTPUT_MAX_BYTES_MIN).validate(), Ok(()));
        assert_eq!(refused(max(OUTPUT_MAX_BYTES_MIN - 1)), "output.max_bytes");
        assert_eq!(refused(max(OUTPUT_MAX_BYTES_MAX + 1)), "output.max_bytes");
        let keep = |ms| OutputPolicy {
            keep_ms: Some(ms),
            ..OutputPolicy::default()
        };
        assert_eq!(keep(1).validate(), Ok(()));
        assert_eq!(refused(keep(0)), "output.keep_ms");
        assert_eq!(refused(keep(DURATION_MS_MAX + 1)), "output.keep_ms");
    }
}
