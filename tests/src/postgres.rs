//! One PostgreSQL cluster per test process: `initdb` into a temporary folder, as a user that is not
//! root, on a free port of the loopback interface. It dies with the process. Never skipped: without
//! server binaries the tests fail and say what to install.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A running cluster.
pub struct Cluster {
    pub port: u16,
    pub folder: PathBuf,
    bin: PathBuf,
    user: Option<(u32, u32)>,
    next: AtomicU32,
    /// Where stopped and restarted clusters get their postmaster from.
    spawner: std::sync::Mutex<std::sync::mpsc::Sender<Order>>,
}

enum Order {
    Start(std::sync::mpsc::Sender<()>),
}

impl Cluster {
    /// The cluster of this process.
    pub fn shared() -> &'static Cluster {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(Cluster::new)
    }

    /// A cluster of its own, for tests that stop it.
    pub fn new() -> Cluster {
        let bin = binaries();
        let user = unprivileged();
        let folder = tempfile::Builder::new()
            .prefix("systole-pg-")
            .tempdir()
            .expect("temporary folder")
            .keep();
        if let Some((uid, gid)) = user {
            std::os::unix::fs::chown(&folder, Some(uid), Some(gid)).expect("chown");
        }
        let data = folder.join("data");
        let mut initdb = Command::new(bin.join("initdb"));
        initdb
            .args([
                "--username=systole",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
                "-D",
            ])
            .arg(&data)
            .stdin(Stdio::null());
        let output = as_user(&mut initdb, user, &folder).output().expect("initdb starts");
        assert!(
            output.status.success(),
            "initdb: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let port = free_port();
        let (spawner, orders) = std::sync::mpsc::channel();
        let cluster = Cluster {
            port,
            folder,
            bin,
            user,
            next: AtomicU32::new(1),
            spawner: std::sync::Mutex::new(spawner),
        };
        cluster.keep_thread(orders);
        cluster.start();
        cluster
    }

    /// The parent-death signal follows the thread that forked: this one lives as long as the process.
    fn keep_thread(&self, orders: std::sync::mpsc::Receiver<Order>) {
        let (bin, folder, port, user) = (self.bin.clone(), self.folder.clone(), self.port, self.user);
        std::thread::spawn(move || {
            let mut children = Vec::new();
            for Order::Start(done) in orders {
                children.push(spawn(&bin, &folder.join("data"), &folder, port, user));
                let _ = done.send(());
            }
        });
    }

    /// Starts the postmaster and waits until it answers.
    pub fn start(&self) {
        let (done, started) = std::sync::mpsc::channel();
        self.spawner
            .lock()
            .expect("lock")
            .send(Order::Start(done))
            .expect("thread lives");
        started.recv().expect("thread lives");
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let mut ready = Command::new(self.bin.join("pg_isready"));
            ready
                .args(["-q", "-h", "127.0.0.1", "-U", "systole", "-p"])
                .arg(self.port.to_string());
            if ready.status().expect("pg_isready starts").success() {
                return;
            }
            let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            assert!(Instant::now() < end, "PostgreSQL does not come up: {log}");
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Stops it, `immediate` (as a crash) or `fast`.
    pub fn stop(&self, mode: &str) {
        let mut stop = Command::new(self.bin.join("pg_ctl"));
        stop.args(["stop", "-w", "-m", mode, "-D"])
            .arg(self.folder.join("data"))
            .stdout(Stdio::null());
        let status = as_user(&mut stop, self.user, &self.folder)
            .status()
            .expect("pg_ctl starts");
        assert!(status.success(), "pg_ctl stop");
    }

    /// URL of a database of this cluster.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://systole@127.0.0.1:{}/{database}", self.port)
    }

    /// A new, empty database.
    pub fn create_database(&self) -> String {
        let name = format!("t{}", self.next.fetch_add(1, Ordering::SeqCst));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        name
    }

    /// Runs a text by psql and returns what it prints.
    pub fn sql(&self, database: &str, text: &str) -> String {
        let output = Command::new(self.bin.join("psql"))
            .args([
                "-X",
                "-q",
                "-A",
                "-t",
                "-v",
                "ON_ERROR_STOP=1",
                "-h",
                "127.0.0.1",
                "-U",
                "systole",
                "-p",
            ])
            .arg(self.port.to_string())
            .args(["-d", database, "-c", text])
            .output()
            .expect("psql starts");
        assert!(
            output.status.success(),
            "psql: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

/// A copy that streams from a cluster, on a port of its own.
pub struct Standby {
    child: std::process::Child,
    receiver: nix::unistd::Pid,
}

impl Cluster {
    /// A standby of this cluster, under this name. It streams when this returns.
    pub fn standby(&self, name: &str) -> Standby {
        let data = self.folder.join(name);
        let source = format!("host=127.0.0.1 port={} user=systole application_name={name}", self.port);
        let mut copy = Command::new(self.bin.join("pg_basebackup"));
        copy.args([
            "--checkpoint=fast",
            "--no-sync",
            "-R",
            "-X",
            "stream",
            "-d",
            &source,
            "-D",
        ])
        .arg(&data)
        .stdin(Stdio::null());
        let output = as_user(&mut copy, self.user, &self.folder)
            .output()
            .expect("pg_basebackup starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let port = free_port();
        let child = spawn(&self.bin, &data, &self.folder, port, self.user);
        let end = Instant::now() + Duration::from_secs(60);
        let receiver = loop {
            let asked = Command::new(self.bin.join("psql"))
                .args(["-X", "-A", "-t", "-h", "127.0.0.1", "-U", "systole", "-p"])
                .arg(port.to_string())
                .args(["-d", "postgres", "-c"])
                .arg("SELECT pid FROM pg_stat_wal_receiver WHERE status = 'streaming'")
                .output()
                .expect("psql starts");
            if let Ok(pid) = String::from_utf8_lossy(&asked.stdout).trim().parse() {
                break nix::unistd::Pid::from_raw(pid);
            }
            let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            assert!(Instant::now() < end, "the standby does not stream: {log}");
            std::thread::sleep(Duration::from_millis(50));
        };
        Standby { child, receiver }
    }
}

impl Standby {
    /// What it receives stays where it is, though it is connected.
    pub fn freeze(&self) {
        nix::sys::signal::kill(self.receiver, nix::sys::signal::Signal::SIGSTOP).expect("signal");
    }

    pub fn thaw(&self) {
        nix::sys::signal::kill(self.receiver, nix::sys::signal::Signal::SIGCONT).expect("signal");
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        let _ = nix::sys::signal::kill(self.receiver, nix::sys::signal::Signal::SIGCONT);
        if let Ok(pid) = i32::try_from(self.child.id()) {
            let pid = nix::unistd::Pid::from_raw(pid);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGQUIT);
        }
        let _ = self.child.wait();
    }
}

impl Default for Cluster {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop("immediate");
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

/// `127.0.0.1` port that is free now.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    listener.local_addr().expect("address").port()
}

fn as_user<'a>(command: &'a mut Command, user: Option<(u32, u32)>, folder: &Path) -> &'a mut Command {
    command.current_dir(folder).env("HOME", folder);
    if let Some((uid, gid)) = user {
        command.uid(uid).gid(gid);
    }
    command
}

fn spawn(bin: &Path, data: &Path, folder: &Path, port: u16, user: Option<(u32, u32)>) -> std::process::Child {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.join("log"))
        .expect("log file");
    let mut postgres = Command::new(bin.join("postgres"));
    postgres
        .arg("-D")
        .arg(data)
        .arg("-p")
        .arg(port.to_string())
        .arg("-k")
        .arg(folder)
        .args([
            "-h",
            "127.0.0.1",
            "-c",
            "max_connections=400",
            "-c",
            "shared_buffers=128MB",
        ])
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("log file"))
        .stderr(log);
    as_user(&mut postgres, user, folder);
    die_with_us(&mut postgres);
    postgres.spawn().expect("postgres starts")
}

/// An immediate shutdown when this process ends, however it ends.
#[expect(unsafe_code, reason = "pre_exec has no safe form; prctl is async-signal-safe")]
fn die_with_us(command: &mut Command) {
    // SAFETY: between fork and exec only prctl is called, which is async-signal-safe and allocates nothing.
    unsafe {
        command.pre_exec(|| {
            nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGQUIT).map_err(std::io::Error::from)
        });
    }
}

fn binaries() -> PathBuf {
    let mut versions: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .map(|entries| entries.flatten().map(|entry| entry.path().join("bin")).collect())
        .unwrap_or_default();
    versions.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    versions.reverse();
    versions
        .into_iter()
        .chain(std::env::split_paths(&path))
        .find(|folder| {
            ["initdb", "postgres", "psql", "pg_ctl", "pg_isready"]
                .iter()
                .all(|name| folder.join(name).exists())
        })
        .expect(
            "no PostgreSQL server found: install it with `apt-get install postgresql`, or run scripts/test, which does",
        )
}

/// PostgreSQL refuses to run as root.
fn unprivileged() -> Option<(u32, u32)> {
    if !nix::unistd::geteuid().is_root() {
        return None;
    }
    let user = ["postgres", "nobody"]
        .iter()
        .find_map(|name| nix::unistd::User::from_name(name).ok().flatten())
        .expect("a user postgres or nobody");
    Some((user.uid.as_raw(), user.gid.as_raw()))
}
