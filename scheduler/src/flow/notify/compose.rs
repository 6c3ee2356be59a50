//! What is looked up of an alarm when it is sent: how the task stands now, its next attempt, and its last output lines.

use crate::context::Context;
use crate::store::StoreError;
use crate::store::output::Stream;
use crate::store::read::{Filter, TaskRow};
use std::sync::Arc;
use systole_shared::alarm::channel::Channel;
use systole_shared::alarm::message::{Now, TaskNow};
use systole_shared::alarm::tail::last_lines;
use systole_shared::alarm::{Kind, Notice};

/// Bytes of output in which the last lines are looked for.
const TAIL_BYTES: u64 = 16 * 1024;

pub async fn look(ctx: &Context, kind: Kind, notice: &Notice, channel: &Channel) -> Result<Now, StoreError> {
    let mut now = Now {
        channel: channel.name.clone(),
        ..Now::default()
    };
    let row = match kind {
        Kind::Test | Kind::HostLost | Kind::Skipped => None,
        Kind::Late => newest(ctx, &notice.job).await?,
        Kind::Failure | Kind::Recovery | Kind::Slow => match notice.tasks.last() {
            Some(task) => ctx.db.tasks(vec![task.id]).await?.into_iter().next(),
            None => None,
        },
    };
    let Some(row) = row else {
        return Ok(now);
    };
    now.task = Some(task_now(ctx, &row).await?);
    if kind != Kind::Recovery {
        (now.output_of, now.output) = tail(ctx, row.id, channel.output_lines).await?;
    }
    Ok(now)
}

/// The newest task of a job, if one is kept still.
async fn newest(ctx: &Context, job: &str) -> Result<Option<TaskRow>, StoreError> {
    let filter = Filter {
        job: Some(job.to_owned()),
        ..Filter::default()
    };
    let (rows, _) = ctx.db.list(Arc::new(filter), 1).await?;
    Ok(rows.into_iter().next())
}

async fn task_now(ctx: &Context, row: &TaskRow) -> Result<TaskNow, StoreError> {
    let next = match row.retried_by {
        None => None,
        Some(id) => {
            let rows = ctx.db.tasks(vec![id]).await?;
            rows.first()
                .map(|next| (id, next.run_at_ms.unwrap_or(next.created_at_ms)))
        }
    };
    Ok(TaskNow {
        id: row.id,
        state: row.state()?.name().to_owned(),
        runner: match (&row.host, row.slot) {
            (Some(host), Some(slot)) => format!("{host}/{slot}"),
            _ => String::new(),
        },
        attempt: row.attempt,
        attempts: row.max_retries + 1,
        started_ms: row.started_at_ms.unwrap_or(0),
        next,
    })
}

/// Of the error stream, or of the other where that has nothing.
async fn tail(ctx: &Context, task_id: i64, lines: usize) -> Result<(&'static str, Vec<String>), StoreError> {
    if lines == 0 {
        return Ok(("", Vec::new()));
    }
    let sizes = ctx.db.output_sizes(task_id).await?;
    for (stream, name, size) in [
        (Stream::Stderr, "stderr", sizes[1]),
        (Stream::Stdout, "stdout", sizes[0]),
    ] {
        let end = size.stored.end;
        // Bytes that were left out lie in a gap before the tail.
        let mut at = end.saturating_sub(TAIL_BYTES).max(if end > size.stored.gap_end {
            size.stored.gap_end
        } else {
            0
        });
        let mut bytes = Vec::new();
        while at < end {
            let parts = ctx.db.read_output(task_id, stream, at, end).await?;
            let before = bytes.len();
            for part in parts {
                bytes.extend_from_slice(&part.data);
            }
            let read = (bytes.len() - before) as u64;
            if read == 0 {
                break;
            }
            at += read;
        }
        let found = last_lines(&bytes, lines);
        if !found.is_empty() {
            return Ok((name, found));
        }
    }
    Ok(("", Vec::new()))
}
