//! What a runner knows of the end of a task, in words: a line only where there is something to say.

use super::text::size;
use systole_proto::v1;
use systole_shared::task::signal::signal_name;
use systole_shared::time::format_duration;

/// Names and values of the lines. `runner`: where it ran.
pub fn lines(detail: &v1::EndDetail, task_id: i64, runner: &str) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    let signals = signals(&detail.signals);
    match (detail.tree_empty, signals.is_empty()) {
        (Some(false), _) => {
            let after = if signals.is_empty() {
                String::new()
            } else {
                format!(" after {signals}")
            };
            lines.push((
                "tree",
                format!("not empty{after}: processes of it may still run on {runner}"),
            ));
        }
        (Some(true), false) => lines.push(("tree", format!("empty after {signals}"))),
        (None, false) => lines.push(("tree", format!("{signals}; whether it is empty is not known"))),
        (Some(true) | None, true) => {}
    }
    match detail.leftovers {
        0 => {}
        1 => lines.push(("tree", "1 leftover process was killed".into())),
        n => lines.push(("tree", format!("{n} leftover processes were killed"))),
    }
    let usage = detail.usage.unwrap_or_default();
    let seconds = |us: u64, of: &str| format!("{:.2} s {of}", us as f64 / 1_000_000.0);
    let bytes = |bytes: u64, of: &str| format!("{of} {}", size(bytes));
    for (name, parts) in [
        (
            "cpu",
            [
                usage.user_cpu_us.map(|us| seconds(us, "user")),
                usage.system_cpu_us.map(|us| seconds(us, "system")),
            ],
        ),
        (
            "memory",
            [
                usage.peak_memory_bytes.map(|n| bytes(n, "peak")),
                detail.memory_limit_bytes.map(|n| bytes(n, "limit")),
            ],
        ),
        (
            "disk",
            [
                usage.read_bytes.map(|n| bytes(n, "read")),
                usage.written_bytes.map(|n| bytes(n, "written")),
            ],
        ),
    ] {
        let text = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        if !text.is_empty() {
            lines.push((name, text));
        }
    }
    if let Some(until) = detail.output_until_ms.and_then(|ms| u64::try_from(ms).ok()) {
        lines.push((
            "kept",
            format!(
                "all output on {runner} until {}: systole logs --full {task_id}",
                super::text::full_time(until)
            ),
        ));
    }
    match detail.oom_kills {
        0 => {}
        1 => lines.push(("memory", "1 process was ended by the kernel for want of it".into())),
        n => lines.push((
            "memory",
            format!("{n} processes were ended by the kernel for want of it"),
        )),
    }
    if !detail.note.is_empty() {
        lines.push(("note", detail.note.clone()));
    }
    lines
}

/// `SIGTERM, SIGKILL 10.0 s later`: times count from the first, and a signal that was repeated is said once.
fn signals(sent: &[v1::SignalSent]) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut before = None;
    for signal in sent {
        if before == Some(signal.signal) {
            continue;
        }
        before = Some(signal.signal);
        let name = signal_name(signal.signal);
        parts.push(if parts.is_empty() {
            name
        } else {
            let later = signal.at_ms.saturating_sub(sent[0].at_ms).max(0).unsigned_abs();
            format!("{name} {} later", format_duration(later))
        });
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(detail: &v1::EndDetail) -> Vec<String> {
        let lines = lines(detail, 7, "db-01/0");
        lines.into_iter().map(|(name, text)| format!("{name} {text}")).collect()
    }

    fn sent(signals: &[(i32, i64)]) -> Vec<v1::SignalSent> {
        let sent = |&(signal, at_ms)| v1::SignalSent { signal, at_ms };
        signals.iter().map(sent).collect()
    }

    #[test]
    fn only_what_there_is_to_say_is_said() {
        let stopped = sent(&[(15, 1_000), (9, 11_000), (9, 11_500)]);
        for (tree_empty, signals, leftovers, expected) in [
            (None, vec![], 0, vec![]),
            (Some(true), vec![], 0, vec![]),
            (
                Some(true),
                stopped.clone(),
                0,
                vec!["tree empty after SIGTERM, SIGKILL 10.0 s later"],
            ),
            (
                None,
                sent(&[(2, 5)]),
                0,
                vec!["tree SIGINT; whether it is empty is not known"],
            ),
            (Some(true), vec![], 1, vec!["tree 1 leftover process was killed"]),
            (
                Some(true),
                sent(&[(15, 5)]),
                2,
                vec!["tree empty after SIGTERM", "tree 2 leftover processes were killed"],
            ),
            (
                Some(false),
                vec![],
                0,
                vec!["tree not empty: processes of it may still run on db-01/0"],
            ),
            (
                Some(false),
                sent(&[(9, 5)]),
                0,
                vec!["tree not empty after SIGKILL: processes of it may still run on db-01/0"],
            ),
        ] {
            let detail = v1::EndDetail {
                tree_empty,
                signals,
                leftovers,
                ..v1::EndDetail::default()
            };
            assert_eq!(told(&detail), expected, "{detail:?}");
        }
    }

    #[test]
    fn usage_is_told_as_far_as_it_is_known() {
        let mut detail = v1::EndDetail {
            usage: Some(v1::Usage {
                user_cpu_us: Some(510_000),
                system_cpu_us: Some(20_000),
                peak_memory_bytes: Some(12 << 20),
                ..v1::Usage::default()
            }),
            note: "as root".into(),
            ..v1::EndDetail::default()
        };
        assert_eq!(
            told(&detail),
            ["cpu 0.51 s user, 0.02 s system", "memory peak 12 MiB", "note as root"]
        );
        detail.note.clear();
        (detail.memory_limit_bytes, detail.oom_kills) = (Some(16 << 20), 2);
        assert_eq!(
            told(&detail)[1..],
            [
                "memory peak 12 MiB, limit 16 MiB",
                "memory 2 processes were ended by the kernel for want of it"
            ]
        );
        (detail.memory_limit_bytes, detail.oom_kills) = (None, 0);
        detail.usage = Some(v1::Usage {
            written_bytes: Some(2_048),
            ..v1::Usage::default()
        });
        assert_eq!(told(&detail), ["disk written 2.0 KiB"]);
    }
}
