//! Two hosts, each with a network, a name and a user of its own, and a cable between them: how the second one joins, and what is said of
//! its task when the cable is cut.
//!
//! The hosts are network namespaces, which takes root. Where they are not permitted the tests say so and show nothing; with CI set
//! they fail.

use nix::sys::signal::Signal;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use systole_tests::home::{Home, json};
use systole_tests::system::{Process, Said, until};

/// Of the address that is the scheduler's.
const SCHEDULER: &str = "10.77.0.1";
const URL: &str = "https://10.77.0.1:7410";

fn ip(args: &[&str]) -> Said {
    let output = Command::new("ip").args(args).output();
    let output = output.expect("`ip` starts: it is in the package iproute2, which scripts/test installs");
    output.into()
}

/// A machine: what is started on it sees its network and its name alone, and has a home of its own.
struct Host {
    home: Home,
    name: &'static str,
    /// Of its network namespace.
    net: String,
}

impl Host {
    /// `None`: this user may not make one, which was said.
    fn new(name: &'static str) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let net = format!("systole-{}-{number}", std::process::id());
        let made = ip(&["netns", "add", &net]);
        if made.code == Some(0) {
            let host = Self {
                home: Home::new(),
                name,
                net,
            };
            host.ip(&["link", "set", "lo", "up"]);
            return Some(host);
        }
        let refused = made.stderr.contains("not permitted") || made.stderr.contains("Permission denied");
        assert!(refused, "{made:?}");
        let message = format!(
            "NOT TESTED: network namespaces take root's rights here: {}",
            made.stderr.trim()
        );
        assert!(
            std::env::var_os("CI").is_none(),
            "{message}; on CI they must be permitted"
        );
        eprintln!("{message}");
        None
    }

    #[track_caller]
    fn ip(&self, args: &[&str]) {
        let said = ip(&[&["-n", &self.net][..], args].concat());
        assert_eq!(said.code, Some(0), "{args:?}: {said:?}");
    }

    /// A line for the shell of this machine, not started yet.
    fn shell(&self, line: &str) -> Command {
        // Only the network and the name: with `ip netns exec` /sys would be another one, without control groups.
        let program = self.home.program("nsenter");
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", self.net))
            .args(["unshare", "--uts", "--", "sh", "-c"])
            .arg(format!("hostname {}; {line}", self.name))
            .stdin(std::process::Stdio::null())
            .current_dir(self.home.dir.path());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        // What stands in the README finds the scheduler by itself.
        command.env_remove("SYSTOLE_URL");
        command
    }

    fn say(&self, line: &str) -> Said {
        self.shell(line).output().expect("nsenter starts").into()
    }

    fn start(&self, line: &str) -> Process {
        let log = self.home.path(&format!("{}.log", self.name));
        Process::spawn(&mut self.shell(&format!("exec {line}")), log)
    }

    fn task(&self, id: &str) -> serde_json::Value {
        json(&self.say(&format!("systole -o json show {id}")))["task"].take()
    }

    fn until_task(&self, id: &str, what: &str, fact: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        let mut task = self.task(id);
        until(&format!("task {id}: {what}"), || {
            task = self.task(id);
            fact(&task)
        });
        task
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Its end of the cable goes with it, and so does the other end.
        let _ = ip(&["netns", "del", &self.net]);
    }
}

/// A scheduler on one host, another one beside it, and the cable.
struct Cluster {
    one: Host,
    two: Host,
    up: Process,
}

impl Cluster {
    fn new(options: &str) -> Option<Self> {
        let (one, two) = (Host::new("one")?, Host::new("two")?);
        let peer = [
            "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", &two.net,
        ];
        one.ip(&peer);
        for (host, address) in [(&one, SCHEDULER), (&two, "10.77.0.2")] {
            host.ip(&["address", "add", &format!("{address}/24"), "dev", "cable"]);
            host.ip(&["link", "set", "cable", "up"]);
        }
        let up = one.start(&format!(
            "systole up --listen 0.0.0.0:7410 --tls-self-signed --slots 1 {options}"
        ));
        until("it answers over TLS", || one.say("systole ls").code == Some(0));
        Some(Self { one, two, up })
    }

    /// What `systole join-command` prints, as it is typed in the README.
    fn line(&self) -> String {
        let said = self.one.say("systole join-command");
        assert_eq!(said.code, Some(0), "{said:?}");
        said.stdout.trim().to_owned()
    }

    fn join(&self) -> Process {
        let line = self.line();
        assert!(
            line.contains(&format!("--join {URL} ")),
            "by the address of the cable: {line}"
        );
        let (token, runner) = line.split_once(" | ").expect("a pipe");
        // `exec`, so that a signal reaches the runner.
        let log = self.two.home.path("two.log");
        let token = token.trim_start_matches("echo ");
        let words = format!("exec {runner} --slots 1 <<'END'\n{token}\nEND");
        let process = Process::spawn(&mut self.two.shell(&words), log);
        until("it is seen", || self.one.say("systole runners").stdout.contains("two"));
        process
    }

    /// A task on the second host that ticks into a file until it is told to end, with exit code 5.
    fn ticking(&self) -> String {
        let folder = self.two.home.dir.path().display();
        let script = format!(
            "cd {folder}; until test -e go; do echo tick >> ticks; sleep 0.1; done; echo last words; echo ended >> end; exit 5"
        );
        let said = self
            .one
            .say(&format!("systole -o id submit --runner two --shell '{script}'"));
        assert_eq!(said.code, Some(0), "{said:?}");
        let id = said.stdout.trim().to_owned();
        self.one.until_task(&id, "runs", |task| task["state"] == "RUNNING");
        until("it ticks", || self.ticks() > 0);
        id
    }

    fn ticks(&self) -> u64 {
        std::fs::metadata(self.two.home.path("ticks")).map_or(0, |file| file.size())
    }

    fn cut(&self) {
        self.one.ip(&["link", "set", "cable", "down"]);
    }

    fn mend(&self) {
        self.one.ip(&["link", "set", "cable", "up"]);
    }

    /// Lets the task end while nobody hears of it.
    fn end_unheard(&self) {
        let before = self.ticks();
        until("it goes on without the network", || self.ticks() > before);
        self.two.home.write("go", "");
        until("it has ended", || self.two.home.path("end").exists());
    }

    fn stop(mut self, mut runner: Process) {
        runner.signal(Signal::SIGINT);
        runner.wait(Duration::from_secs(60));
        self.up.signal(Signal::SIGINT);
        self.up.wait(Duration::from_secs(60));
        // A warden ends when its agent has let go of it.
        for host in [&self.one, &self.two] {
            until(&format!("nothing is left on {}", host.name), || {
                host.home.processes().is_empty()
            });
        }
    }
}

#[test]
fn the_second_host_joins_with_one_pasted_line_and_runs_what_is_meant_for_it() {
    let Some(cluster) = Cluster::new("") else { return };
    let line = cluster.line();
    let fingerprint = line.rsplit(' ').next().expect("a fingerprint");
    let wrong = line.replace(fingerprint, &"0".repeat(64));
    let refused = cluster.two.say(&format!("{wrong} --join-only"));
    assert_eq!(refused.code, Some(4), "{refused:?}");
    assert!(
        refused.stderr.contains("has not the authority with this fingerprint"),
        "{refused:?}"
    );
    // The token was not sent: it is still good for the true one.
    let joined = cluster.two.say(&format!("{line} --join-only"));
    assert_eq!(joined.code, Some(0), "{joined:?}");
    let again = cluster.two.say(&format!("{line} --join-only"));
    assert!(
        again.code == Some(4) && again.stderr.contains("was used at"),
        "{again:?}"
    );
    // After that the name of the command is enough.
    let runner = cluster.two.start("systole runner --slots 1 --label place=two");
    let said = cluster.one.say("systole run --runner two -- hostname");
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "two\n"), "{said:?}");
    let said = cluster
        .one
        .say("systole run --require place=two -- sh -c 'hostname; exit 3'");
    assert_eq!((said.code, said.stdout.as_str()), (Some(3), "two\n"), "{said:?}");
    let said = cluster.one.say("systole run --runner one -- hostname");
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "one\n"), "{said:?}");
    let status = cluster.one.say("systole status");
    assert!(status.stdout.contains("2 ready"), "{status:?}");
    cluster.stop(runner);
}

#[test]
fn a_task_whose_host_is_cut_off_for_a_while_ends_as_it_did() {
    let Some(cluster) = Cluster::new("--beat 2s --lost-after 5m") else {
        return;
    };
    let runner = cluster.join();
    let id = cluster.ticking();
    cluster.cut();
    cluster.end_unheard();
    assert_eq!(cluster.one.task(&id)["state"], "RUNNING", "nobody has heard of its end");
    cluster.mend();
    let task = cluster
        .one
        .until_task(&id, "has ended", |task| task["state"] != "RUNNING");
    assert_eq!(task["state"], "FAILED", "{task}");
    assert_eq!(
        (&task["outcome"]["kind"], &task["outcome"]["exit_code"]),
        (&"exit_code".into(), &5.into()),
        "{task}"
    );
    let logs = cluster.one.say(&format!("systole logs {id}"));
    assert_eq!(logs.stdout, "last words\n", "{logs:?}");
    cluster.stop(runner);
}

#[test]
fn a_task_whose_host_is_cut_off_for_long_is_lost_and_its_true_end_is_kept() {
    let Some(cluster) = Cluster::new("--beat 2s --lost-after 6s --check 500ms") else {
        return;
    };
    let runner = cluster.join();
    let id = cluster.ticking();
    cluster.cut();
    let task = cluster
        .one
        .until_task(&id, "is given up", |task| task["state"] != "RUNNING");
    assert_eq!(task["outcome"]["kind"], "runner_lost", "{task}");
    let why = cluster.one.say(&format!("systole why {id}"));
    assert!(why.stdout.contains("two"), "{why:?}");
    let status = cluster.one.say("systole status");
    assert!(
        status.code == Some(1) && status.stdout.contains("host two is lost"),
        "somebody has to look: {status:?}"
    );
    cluster.end_unheard();
    cluster.mend();
    let task = cluster
        .one
        .until_task(&id, "has its true end beside the verdict", |task| {
            !task["late_result"].is_null()
        });
    assert_eq!(task["outcome"]["kind"], "runner_lost", "the verdict stays: {task}");
    assert_eq!(task["late_result"]["exit_code"], 5, "{task}");
    let said = cluster.one.say("systole run --runner two -- hostname");
    assert_eq!(
        (said.code, said.stdout.as_str()),
        (Some(0), "two\n"),
        "it is itself again: {said:?}"
    );
    cluster.stop(runner);
}
