//! Submitting many tasks, and waiting for them.

use crate::Result;
use std::time::{Duration, Instant};
use systole_proto::v1;
use systole_tests::replica::Tasks;

pub async fn submit_many(tasks: &mut Tasks, spec: &v1::TaskSpec, count: usize) -> Result<Vec<i64>> {
    let mut ids = Vec::with_capacity(count);
    let mut left = count;
    while left > 0 {
        let size = left.min(1_000);
        left -= size;
        let items = vec![
            v1::SubmitItem {
                spec: Some(spec.clone()),
                key: String::new(),
            };
            size
        ];
        let request = v1::SubmitRequest {
            items,
            reason: String::new(),
        };
        ids.extend(
            tasks
                .submit(request)
                .await?
                .into_inner()
                .results
                .iter()
                .map(|result| result.id),
        );
    }
    Ok(ids)
}

/// Waits for tasks that were submitted in this order. To count all tasks each time would be a load of its
/// own, so the last few are looked at, by id.
pub async fn until_finished(tasks: &mut Tasks, ids: &[i64]) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(120);
    let (rest, mut last) = ids.split_at(ids.len().saturating_sub(32));
    while !last.is_empty() {
        if Instant::now() > end {
            return Err(format!(
                "the tasks do not end; {} of the last {} are open",
                last.len(),
                ids.len()
            )
            .into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        while let Some((id, before)) = last.split_last() {
            if !are_finished(tasks, &[*id]).await? {
                break;
            }
            last = before;
        }
    }
    for chunk in rest.chunks(1_000) {
        while !are_finished(tasks, chunk).await? {
            if Instant::now() > end {
                return Err("some of the tasks do not end".into());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    Ok(())
}

pub async fn are_finished(tasks: &mut Tasks, ids: &[i64]) -> Result<bool> {
    let got = tasks.get(v1::GetRequest { ids: ids.to_vec() }).await?.into_inner();
    Ok(got.results.iter().all(|result| {
        result
            .task
            .as_ref()
            .is_some_and(|task| task.state() == v1::TaskState::Finished)
    }))
}
