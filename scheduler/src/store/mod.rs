//! The store: one contract, two databases.
//!
//! Guarantees that the rest of the scheduler builds on, and that the conformance suite shows on both:
//!
//! * S1 Nothing is acknowledged before its commit.
//! * S2 Every change of a task is one guarded write; a terminal task is never written again, except for
//!   its late result.
//! * S3 A beat acts only in the transaction that won its runner row.
//! * S4 A task is dispatched at most once; RUN_NEW is built from the rows that the claim returned.
//! * S5 The end of a task, its callback row and its successor are one transaction.
//! * S6 Rows are locked in one order: host, runner, task, backfill, trigger, concurrency group, job, health of a job, watch, alarm; by
//!   key. What comes later locks tasks only by passing over those that somebody has. Before all of them comes the lock of who stores
//!   triggers after other jobs ([`jobs::after`]).
//!
//! Only this folder contains SQL; only [`db`] names the drivers, and [`backup`], which has connections of its own.

pub mod admin;
pub mod alarms;
pub mod audit;
pub mod backup;
pub mod beats;
pub mod claims;
pub mod clocks;
pub mod cordon;
pub mod db;
pub mod doctor;
pub mod error;
pub mod explain;
pub mod fetch;
pub mod finish;
pub mod forget;
pub mod freeze;
pub mod holds;
pub mod hosts;
pub mod jobs;
pub mod join;
pub mod latency;
pub mod lease;
pub mod listen;
pub mod live;
pub mod look;
pub mod lost;
pub mod outbox;
pub mod outcome;
pub mod output;
pub mod read;
pub mod setup;
pub mod sql;
pub mod sqlite_file;
pub mod stamps;
pub mod status;
pub mod submit;
pub mod tokens;

pub use db::{Class, Db, Tx};
pub use error::StoreError;

/// Every statement that both databases must prepare. For a test.
pub fn statements() -> Vec<&'static sql::Sql> {
    let joined: &[&sql::Sql] = &[&look::OUTLOOK];
    [
        joined,
        admin::STATEMENTS,
        alarms::STATEMENTS,
        alarms::list::STATEMENTS,
        alarms::raise::STATEMENTS,
        audit::STATEMENTS,
        beats::STATEMENTS,
        claims::STATEMENTS,
        clocks::STATEMENTS,
        cordon::STATEMENTS,
        doctor::STATEMENTS,
        explain::STATEMENTS,
        fetch::STATEMENTS,
        finish::STATEMENTS,
        forget::STATEMENTS,
        freeze::STATEMENTS,
        holds::STATEMENTS,
        hosts::STATEMENTS,
        jobs::STATEMENTS,
        jobs::after::STATEMENTS,
        jobs::backfill::STATEMENTS,
        jobs::health::STATEMENTS,
        jobs::kept::STATEMENTS,
        jobs::launch::STATEMENTS,
        jobs::ledger::STATEMENTS,
        jobs::recover::STATEMENTS,
        jobs::routes::STATEMENTS,
        jobs::runs::STATEMENTS,
        jobs::sets::STATEMENTS,
        jobs::settle::STATEMENTS,
        jobs::slots::STATEMENTS,
        jobs::orphans::STATEMENTS,
        jobs::triggers::STATEMENTS,
        jobs::watch::STATEMENTS,
        join::STATEMENTS,
        lease::STATEMENTS,
        lost::STATEMENTS,
        live::STATEMENTS,
        outbox::STATEMENTS,
        output::STATEMENTS,
        read::STATEMENTS,
        setup::STATEMENTS,
        stamps::STATEMENTS,
        status::STATEMENTS,
        submit::STATEMENTS,
        tokens::STATEMENTS,
    ]
    .concat()
}
