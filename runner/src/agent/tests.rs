//! A slot and its warden, with neither a warden nor a scheduler.

use super::unanswered::Order;
use super::*;
use crate::config::tests::config;
use crate::journal::tests::begin;
use crate::warden::client::tests::{client, connect, say, tell_empty_inventory};
use crate::warden::protocol::{FromWarden, LiveTask, NotBegun, Stop, Why};
use std::path::Path;
use systole_shared::heartbeat::react::Slot;
use systole_shared::policy::host_fault::FaultKind;

fn agent(data_dir: &Path) -> Agent {
    let config = config(data_dir);
    let link = Arc::new(Link::new(&config).unwrap());
    let context = Context {
        config,
        fixed: Fixed {
            instance_id: "i".into(),
            start_no: 1,
            boot_id: "b".into(),
            host_facts: String::new(),
            labels: Vec::new(),
        },
        link,
        rounds: None,
        warden: Arc::new(client(data_dir)),
        shutdown: Shutdown::new(),
        max_task_id: AtomicI64::new(0),
    };
    Agent::new(Arc::new(context), 0, false)
}

#[tokio::test]
async fn a_stop_that_no_warden_took_is_told_again_with_the_next_reset() {
    let dir = tempfile::tempdir().unwrap();
    let mut agent = agent(dir.path());
    let mut live = Live::new(begin(7), None);
    live.is_starting = false;
    agent.held.live = Some(live);
    agent.stop(false);
    assert_eq!(agent.held.slot(), Slot::Alive(7), "nobody is there");

    let mut told = connect(&agent.context.warden, 0);
    agent.stop(false);
    agent.stop(false);
    assert_eq!(agent.held.slot(), Slot::Stopping(7));
    assert!(matches!(told.try_recv(), Ok(ToWarden::Stop(Stop { task_id: 7, .. }))));
    assert!(told.try_recv().is_err(), "once");

    // The warden says that it has not heard of it.
    let inventory = |stopping| Inventory {
        live: Some(LiveTask {
            begin: begin(7),
            stopping,
            fenced: false,
        }),
        ..Inventory::default()
    };
    agent.take_inventory(inventory(false)).await;
    agent.stop(false);
    assert!(matches!(told.try_recv(), Ok(ToWarden::Stop(Stop { task_id: 7, .. }))));
    agent.take_inventory(inventory(true)).await;
    agent.stop(false);
    assert!(told.try_recv().is_err(), "it is known there");
}

fn too_late(task_id: i64) -> FromWarden {
    FromWarden::NotBegun(NotBegun {
        task_id,
        slot: 0,
        why: Why::TooLate,
    })
}

#[tokio::test]
async fn no_order_goes_out_before_the_slot_knows_what_the_warden_holds() {
    let dir = tempfile::tempdir().unwrap();
    let mut agent = agent(dir.path());
    let warden = Arc::clone(&agent.context.warden);
    let run = || v1::RunNew {
        task_id: 7,
        ..v1::RunNew::default()
    };
    // The connection is a new one, the slot has the order in its hand, and has not heard the inventory, which lacks it.
    tell_empty_inventory(&warden, 0);
    let mut told = connect(&warden, 0);
    let next = agent.start(run(), "c".into(), boottime::now_ms(), 30_000).await;
    assert_eq!(next, Next::After(REST_MIN * 4));
    assert!(
        agent.held.is_empty() && told.try_recv().is_err(),
        "it is in nobody's hand"
    );

    agent.rest(Duration::from_secs(60)).await;
    say(&warden, too_late(7));
    agent.start(run(), "c".into(), boottime::now_ms(), 30_000).await;
    assert!(told.try_recv().is_ok(), "it has heard it");
}

#[tokio::test]
async fn an_answer_that_came_during_the_look_at_the_journal_is_no_silence() {
    let dir = tempfile::tempdir().unwrap();
    let mut agent = agent(dir.path());
    let warden = Arc::clone(&agent.context.warden);
    // Its time was over long ago, and it is not in the journal.
    let left = |task_id| {
        let mut live = Live::new(begin(task_id), Some(Order::new(0, 0)));
        live.is_told = true;
        live
    };
    agent.held.live = Some(left(7));
    say(&warden, too_late(7));
    assert!(agent.look_at_order().await);
    assert!(agent.held.live.is_none() && agent.held.has_result(7));
    assert_eq!(warden.health(), (0, None));

    agent.held.live = Some(left(8));
    assert!(agent.look_at_order().await);
    assert!(agent.held.live.is_none() && agent.held.has_result(8));
    let (_, fault) = warden.health();
    assert_eq!(fault.map(|fault| fault.kind), Some(FaultKind::WardenStalled));
}
