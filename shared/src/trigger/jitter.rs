//! Spreading fires: the same trigger and the same slot always get the same delay, on every replica.

/// The delay of one slot, from 0 to `jitter_ms` (inclusive).
pub fn delay_ms(trigger: &str, slot_ms: i64, jitter_ms: u64) -> u64 {
    if jitter_ms == 0 {
        return 0;
    }
    // FNV-1a over the name and the slot, then the mixing of splitmix64: neighbours must not look alike.
    let bytes = trigger.bytes().chain(slot_ms.to_le_bytes());
    let mut hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^= hash >> 31;
    // Multiply and shift, so that no value is preferred.
    let range = u128::from(jitter_ms) + 1;
    u64::try_from((u128::from(hash) * range) >> 64).unwrap_or(jitter_ms)
}

#[cfg(test)]
mod tests {
    use super::delay_ms;

    #[test]
    fn a_slot_always_gets_the_same_delay_and_slots_are_spread() {
        assert_eq!(delay_ms("a/b", 60_000, 0), 0);
        assert_eq!(delay_ms("a/b", 60_000, 10_000), delay_ms("a/b", 60_000, 10_000));
        let delays: Vec<u64> = (0..1_000).map(|slot| delay_ms("a/b", slot * 60_000, 10_000)).collect();
        assert!(delays.iter().all(|&delay| delay <= 10_000));
        let mean = delays.iter().sum::<u64>() / 1_000;
        assert!((4_500..5_500).contains(&mean), "{mean}");
        // Two triggers of one schedule do not fire together.
        let same =
            (0..1_000).filter(|&slot| delay_ms("a/b", slot * 60_000, 10_000) == delay_ms("a/c", slot * 60_000, 10_000));
        assert!(same.count() < 10);
    }
}
