//! The administration of the cluster as a whole.

use super::{actor, check_reason, invalid, until};
use crate::context::Context;
use crate::flow::Refusal;
use crate::flow::alarms::{self, Kind};
use crate::flow::backup::{self, Piece};
use crate::flow::doctor;
use crate::flow::freezes;
use crate::flow::status::{self, ClusterStatus};
use crate::store::freeze::FreezeOrder;
use std::sync::Arc;
use systole_proto::convert::time_to_wire;
use systole_proto::v1;
use systole_proto::v1::cluster_admin_server::ClusterAdmin;
use systole_shared::error::Invalid;
use systole_shared::policy::freeze::{Freeze, Scope};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

const DAY_MS: i64 = 86_400_000;
/// Pieces of a backup that wait for a slow reader.
const PIECES_MAX: usize = 4;

pub struct Cluster {
    pub ctx: Arc<Context>,
}

#[tonic::async_trait]
impl ClusterAdmin for Cluster {
    async fn alarms(&self, _: Request<v1::AlarmsRequest>) -> Result<Response<v1::AlarmsResponse>, Status> {
        let alarms = alarms::open(&self.ctx)
            .await
            .map_err(|error| super::status(&Refusal::from(error)))?;
        Ok(Response::new(v1::AlarmsResponse {
            alarms: alarms
                .into_iter()
                .map(|alarm| v1::Alarm {
                    kind: alarm.kind.name().into(),
                    message: alarm.message,
                    since_ms: time_to_wire(alarm.since_ms),
                })
                .collect(),
        }))
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
        let since_ms = match request.into_inner().since_ms {
            0 => -DAY_MS,
            ms => i64::try_from(ms).unwrap_or(i64::MAX),
        };
        let read = status::read(&self.ctx, since_ms)
            .await
            .map_err(|error| super::status(&Refusal::from(error)))?;
        Ok(Response::new(to_wire(read)))
    }

    async fn examine(&self, _: Request<v1::ExamineRequest>) -> Result<Response<v1::ExamineResponse>, Status> {
        let (findings, database_now_ms) = doctor::examine(&self.ctx)
            .await
            .map_err(|error| super::status(&Refusal::from(error)))?;
        Ok(Response::new(v1::ExamineResponse {
            findings: findings
                .into_iter()
                .map(|finding| v1::Finding {
                    check: finding.check,
                    subject: finding.subject,
                    level: finding.level.name().into(),
                    message: finding.message,
                    remedy: finding.remedy,
                })
                .collect(),
            replica: self.ctx.replica.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            now_ms: time_to_wire(systole_shared::clock::now_ms()),
            database_now_ms: time_to_wire(database_now_ms),
        }))
    }

    async fn confirm(&self, request: Request<v1::ConfirmRequest>) -> Result<Response<v1::ConfirmResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        check_reason(&request.reason)?;
        let kind = Kind::parse(&request.kind).ok_or_else(|| {
            invalid(Invalid::new(
                "kind",
                format!("{:?} is no alarm; write clock or restore", request.kind),
            ))
        })?;
        let message = alarms::confirm(&self.ctx, kind, &by, &request.reason)
            .await
            .map_err(|refusal| super::status(&refusal))?;
        Ok(Response::new(v1::ConfirmResponse { message }))
    }

    async fn pause(&self, request: Request<v1::PauseRequest>) -> Result<Response<v1::PauseResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        check_reason(&request.reason)?;
        let order = FreezeOrder {
            scope: Scope::parse(&request.scope, &request.name).map_err(invalid)?,
            until: until(request.until_ms, request.for_ms)?,
            by,
            reason: request.reason,
        };
        let (freeze, already) = freezes::freeze(&self.ctx, order)
            .await
            .map_err(|refusal| super::status(&refusal))?;
        Ok(Response::new(v1::PauseResponse {
            freeze: Some(freeze_to_wire(&freeze)),
            already,
        }))
    }

    async fn resume(&self, request: Request<v1::ResumeRequest>) -> Result<Response<v1::ResumeResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        check_reason(&request.reason)?;
        let scope = Scope::parse(&request.scope, &request.name).map_err(invalid)?;
        let (lifted, frozen) = freezes::lift(&self.ctx, scope, by, request.reason)
            .await
            .map_err(|refusal| super::status(&refusal))?;
        Ok(Response::new(v1::ResumeResponse {
            lifted: lifted.as_ref().map(freeze_to_wire),
            frozen: freezes_to_wire(&frozen),
        }))
    }

    type BackupStream = std::pin::Pin<Box<dyn tokio_stream::Stream<Item = Result<v1::BackupPiece, Status>> + Send>>;

    async fn backup(&self, request: Request<v1::BackupRequest>) -> Result<Response<Self::BackupStream>, Status> {
        let by = actor(&request)?.name;
        let reason = request.into_inner().reason;
        check_reason(&reason)?;
        let (sender, mut receiver) = mpsc::channel::<Result<Piece, Refusal>>(PIECES_MAX);
        tokio::spawn(backup::run(Arc::clone(&self.ctx), by, reason, sender));
        // The first piece decides between an error and a stream.
        let first = receiver.recv().await;
        if let Some(Err(refusal)) = first {
            return Err(super::status(&refusal));
        }
        let rest = tokio_stream::StreamExt::chain(tokio_stream::iter(first), ReceiverStream::new(receiver));
        let answer = tokio_stream::StreamExt::map(rest, |piece| match piece {
            Ok(piece) => Ok(piece_to_wire(piece)),
            Err(refusal) => Err(super::status(&refusal)),
        });
        Ok(Response::new(Box::pin(answer)))
    }
}

fn freeze_to_wire(freeze: &Freeze) -> v1::Freeze {
    v1::Freeze {
        scope: freeze.scope.kind().into(),
        name: freeze.scope.name().into(),
        by: freeze.by.clone(),
        reason: freeze.reason.clone(),
        since_ms: time_to_wire(freeze.since_ms),
        until_ms: freeze.until_ms.map_or(0, time_to_wire),
    }
}

pub fn freezes_to_wire(freezes: &[Freeze]) -> Vec<v1::Freeze> {
    freezes.iter().map(freeze_to_wire).collect()
}

fn piece_to_wire(piece: Piece) -> v1::BackupPiece {
    let empty = v1::BackupPiece::default();
    match piece {
        Piece::Copied(copied_bytes) => v1::BackupPiece { copied_bytes, ..empty },
        Piece::Data { total_bytes, data } => v1::BackupPiece {
            total_bytes,
            data,
            ..empty
        },
        Piece::End { total_bytes, sha256 } => v1::BackupPiece {
            total_bytes,
            sha256,
            ..empty
        },
        Piece::Elsewhere(postgres_url) => v1::BackupPiece { postgres_url, ..empty },
    }
}

fn to_wire(status: ClusterStatus) -> v1::StatusResponse {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let small = |count: i64| u32::try_from(count).unwrap_or(0);
    let large = |count: i64| u64::try_from(count).unwrap_or(0);
    let us = |took: std::time::Duration| u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    let counts = status.jobs.counts;
    v1::StatusResponse {
        replicas: status
            .replicas
            .into_iter()
            .map(|replica| v1::Replica {
                name: replica.name,
                version: replica.version,
            })
            .collect(),
        database: status.database.into(),
        database_version: status.database_version,
        database_bytes: large(status.database_bytes),
        hosts: Some(v1::HostCounts {
            ready: number(status.hosts.ready),
            cordoned: number(status.hosts.cordoned),
            faulty: number(status.hosts.faulty),
            lost: number(status.hosts.lost),
            left: number(status.hosts.left),
            slots: small(status.hosts.slots),
            busy: small(status.hosts.busy),
        }),
        queued: large(status.queued),
        oldest_queued_ms: large(status.oldest_queued_ms),
        running: large(status.running),
        since_ms: time_to_wire(status.since_ms),
        ended_badly: status
            .ended_badly
            .into_iter()
            .map(|row| v1::BadEnds {
                kind: row.kind,
                count: large(row.n),
                newest_id: row.newest,
            })
            .collect(),
        attention: status.attention,
        frozen: freezes_to_wire(&status.frozen),
        late: status
            .late
            .into_iter()
            .map(|row| v1::LateJob {
                job: row.job,
                since_ms: time_to_wire(row.since_ms),
                rule: row.words,
            })
            .collect(),
        alarms_undelivered: large(status.alarms_undelivered),
        occurrences: Some(v1::OccurrenceCounts {
            expected: large(counts.fired) + large(counts.coalesced) + large(counts.skipped),
            fired: large(counts.fired),
            coalesced: large(counts.coalesced),
            skipped: large(counts.skipped),
            late: large(counts.late),
            asked_for: large(counts.asked_for),
        }),
        commits: Some(v1::CommitTimes {
            count: number(status.commits.count),
            median_us: us(status.commits.median),
            slowest_us: us(status.commits.slowest),
        }),
        standbys: status
            .standbys
            .into_iter()
            .map(|row| v1::Standby {
                name: row.name,
                state: row.state,
                sync: row.sync,
                lag_ms: row.lag_ms.map(large),
                lag_bytes: row.lag_bytes.map(large),
            })
            .collect(),
        skipped: status
            .jobs
            .skipped
            .into_iter()
            .map(|row| v1::SkippedFires {
                job: row.job,
                reason: row.reason,
                fires: large(row.fires),
                from_ms: time_to_wire(row.from_ms),
                to_ms: time_to_wire(row.to_ms),
            })
            .collect(),
    }
}
