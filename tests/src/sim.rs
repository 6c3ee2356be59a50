//! A simulated runner: speaks the protocol, starts no processes.

use crate::replica::{Beats, Replica, command};
use systole_proto::v1;
use tonic::Status;

#[derive(Clone)]
pub struct SimRunner {
    pub client: Beats,
    pub beat: v1::HeartbeatRequest,
}

impl SimRunner {
    pub fn new(replica: &Replica, host: &str, slot: u32) -> Self {
        Self {
            client: replica.beats(),
            beat: v1::HeartbeatRequest {
                host: host.into(),
                slot,
                instance_id: format!("instance-{host}"),
                start_no: 1,
                seq: 0,
                boot_id: "boot-1".into(),
                slots: slot + 1,
                version: "sim".into(),
                ..Default::default()
            },
        }
    }

    /// The request of the next beat.
    fn next(&mut self, status: v1::RunnerStatus, task_id: i64, results: Vec<v1::TaskResult>) -> v1::HeartbeatRequest {
        self.beat.seq += 1;
        let highest = self.beat.max_task_id.max(task_id);
        self.beat.max_task_id = highest;
        v1::HeartbeatRequest {
            status: status.into(),
            task_id,
            results,
            sent_at_ms: u64::try_from(systole_shared::clock::now_ms()).expect("after 1970"),
            ..self.beat.clone()
        }
    }

    pub async fn send(&mut self, request: v1::HeartbeatRequest) -> Result<v1::HeartbeatResponse, Status> {
        self.client.heartbeat(request).await.map(tonic::Response::into_inner)
    }

    /// IDLE, answered at once.
    pub async fn idle(&mut self) -> v1::HeartbeatResponse {
        self.try_idle().await.expect("beat")
    }

    pub async fn try_idle(&mut self) -> Result<v1::HeartbeatResponse, Status> {
        let request = self.next(v1::RunnerStatus::Idle, 0, vec![]);
        self.send(request).await
    }

    /// IDLE, parked for up to `ms`.
    pub async fn idle_parked(&mut self, ms: u64) -> v1::HeartbeatResponse {
        let request = v1::HeartbeatRequest {
            park_ms: ms,
            ..self.next(v1::RunnerStatus::Idle, 0, vec![])
        };
        self.send(request).await.expect("beat")
    }

    /// The next beat for a call of many: IDLE, parked for up to `ms`.
    pub fn idle_of_many(&mut self, ms: u64) -> v1::HeartbeatRequest {
        v1::HeartbeatRequest {
            park_ms: ms,
            ..self.next(v1::RunnerStatus::Idle, 0, vec![])
        }
    }

    pub async fn running(&mut self, task_id: i64) -> v1::HeartbeatResponse {
        let request = self.next(v1::RunnerStatus::Running, task_id, vec![]);
        self.send(request).await.expect("beat")
    }

    pub async fn running_parked(&mut self, task_id: i64, ms: u64) -> v1::HeartbeatResponse {
        let request = v1::HeartbeatRequest {
            park_ms: ms,
            ..self.next(v1::RunnerStatus::Running, task_id, vec![])
        };
        self.send(request).await.expect("beat")
    }

    /// FINISHED or FAILED, with the result of the task.
    pub async fn ended(&mut self, result: v1::TaskResult) -> v1::HeartbeatResponse {
        self.try_ended(result).await.expect("beat")
    }

    pub async fn try_ended(&mut self, result: v1::TaskResult) -> Result<v1::HeartbeatResponse, Status> {
        let status = if result.kind == "success" {
            v1::RunnerStatus::Finished
        } else {
            v1::RunnerStatus::Failed
        };
        let request = self.next(status, result.task_id, vec![result]);
        self.send(request).await
    }

    /// A result of a task that this process was given.
    pub fn result(&self, task_id: i64, kind: &str, exit_code: Option<i32>) -> v1::TaskResult {
        let now = u64::try_from(systole_shared::clock::now_ms()).expect("after 1970");
        v1::TaskResult {
            task_id,
            dispatched_start_no: self.beat.start_no,
            kind: kind.into(),
            exit_code,
            started_at_ms: now,
            ended_at_ms: now,
            ..Default::default()
        }
    }

    pub fn success(&self, task_id: i64) -> v1::TaskResult {
        self.result(task_id, "success", Some(0))
    }

    /// A task from its submission to its success.
    pub async fn runs_one(&mut self, replica: &Replica) -> i64 {
        let id = replica.submit(command(&["true"])).await;
        self.take().await;
        let result = self.success(id);
        self.ended(result).await;
        id
    }

    /// Beats IDLE until it is given a task.
    pub async fn take(&mut self) -> v1::RunNew {
        for _ in 0..200 {
            let response = self.idle_parked(500).await;
            if response.command() == v1::Command::RunNew {
                return response.run.expect("RUN_NEW carries a task");
            }
        }
        panic!("no task was given");
    }
}
