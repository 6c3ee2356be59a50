use super::*;
use crate::config::tests::config;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// One that is not connected to anything.
pub(crate) fn client(data_dir: &Path) -> Client {
    let config = config(data_dir);
    let plan = Plan {
        data_dir: config.data_dir,
        stays: false,
        drain_wait: config.drain_wait,
        adopt_window: config.adopt_window,
        policy: config.policy,
        output_file_max: config.output_file_max,
        keep_output: config.keep_output,
    };
    Client::new(plan, Origin::Elsewhere, 1).unwrap()
}

/// As if a worker had greeted; what it is sent from then on.
pub(crate) fn connect(client: &Client, worker: usize) -> mpsc::Receiver<ToWarden> {
    let (sender, messages) = mpsc::channel(16);
    *locked(&client.links[worker]) = Some(sender);
    messages
}

/// As if a worker had greeted anew, and holds nothing.
pub(crate) fn tell_empty_inventory(client: &Client, worker: usize) {
    let welcome = serde_json::json!({
        "protocol": 1, "version": "x", "pid": 7, "instance_id": "i", "max_task_id": 0, "live": [], "ended": []
    });
    client.tell_inventory(worker, &serde_json::from_value(welcome).unwrap());
}

/// As if it came from a worker.
pub(crate) fn say(client: &Client, message: FromWarden) {
    client.route(message);
}

#[tokio::test]
async fn a_warden_that_takes_the_hello_and_says_nothing_is_not_waited_for_without_end() {
    let dir = tempfile::tempdir().unwrap();
    // As the kernel does it for a process that is stopped.
    let _listener = UnixListener::bind(dir.path().join(socket_name(0))).unwrap();
    let opened = client(dir.path()).open(0, Duration::from_millis(50)).await;
    let Err(RunnerError::NoWarden(_, error)) = opened else {
        panic!("there is none");
    };
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(error.to_string().contains("it is stopped"), "{error}");
}
