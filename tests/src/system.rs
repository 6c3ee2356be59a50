//! The system as people run it: the binary's own processes, real children, real signals.

use crate::TestDb;
use crate::postgres::free_port;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The program that is tested: that of `SYSTOLE_BIN`, such as one out of a package, else the one beside the test executables.
pub fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("SYSTOLE_BIN") {
        let path = PathBuf::from(named);
        assert!(
            path.is_absolute() && path.is_file() && path.ends_with("systole"),
            "SYSTOLE_BIN is {}; it must be the absolute path of a program called systole",
            path.display()
        );
        return path;
    }
    let exe = std::env::current_exe().expect("own path");
    let path = exe
        .parent()
        .and_then(Path::parent)
        .expect("target folder")
        .join("systole");
    assert!(
        path.exists(),
        "{} is missing; build it with `cargo build --bin systole`",
        path.display()
    );
    path
}

/// A process that ends with the test.
pub struct Process {
    pub child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts it; what it writes goes to the log.
    pub fn spawn(command: &mut Command, log: PathBuf) -> Self {
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .expect("log file");
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("log file"))
            .stderr(file)
            .spawn()
            .expect("the process starts");
        Self { child, log }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("pid"))
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("signal");
    }

    /// Waits for its end; the exit code, or `None` after a signal.
    pub fn wait(&mut self, limit: Duration) -> Option<i32> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status.code();
            }
            assert!(
                Instant::now() < end,
                "the process does not end within {limit:?}; its log:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.log());
        }
        // A stopped process must go on to be ended in order.
        let _ = kill(self.pid(), Signal::SIGCONT);
        self.kill();
    }
}

/// What a command line said and how it ended.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// A deployment: one database, schedulers, runners, and a command line that finds them.
pub struct System {
    pub db: TestDb,
    pub folder: TempDir,
    /// Where the command line goes.
    pub url: String,
    pub ports: Vec<u16>,
}

/// The process that has the children of a runner with this data directory.
fn warden_of(data_dir: &Path) -> Option<Pid> {
    let text = std::fs::read_to_string(data_dir.join("warden.lock")).ok()?;
    let pid: i32 = text.trim().parse().ok()?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    name.contains("warden").then(|| Pid::from_raw(pid))
}

/// Runners leave their wardens behind on purpose.
impl Drop for System {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(self.folder.path()).into_iter().flatten().flatten() {
            if let Some(pid) = warden_of(&entry.path()) {
                let _ = kill(pid, Signal::SIGKILL);
            }
        }
    }
}

impl System {
    /// The warden of a runner.
    pub fn warden(&self, name: &str) -> Pid {
        let dir = self.folder.path().join(name);
        warden_of(&dir).unwrap_or_else(|| panic!("{name} has no warden"))
    }

    /// `kill -9` of a runner's warden; returns when it is gone.
    pub fn kill_warden(&self, name: &str) {
        self.warden(name);
        self.kill_warden_if_there(name);
    }

    /// The same, where it may just have been killed.
    pub fn kill_warden_if_there(&self, name: &str) {
        if let Some(pid) = warden_of(&self.folder.path().join(name)) {
            // It may end by itself between the look and the signal.
            let _ = kill(pid, Signal::SIGKILL);
            until("the warden is gone", || !alive(&pid.to_string()));
        }
    }

    pub fn new(db: TestDb) -> Self {
        let port = free_port();
        Self {
            db,
            folder: TempDir::new().expect("temporary folder"),
            url: format!("http://127.0.0.1:{port}"),
            ports: vec![port],
        }
    }

    pub fn sqlite() -> Self {
        Self::new(TestDb::sqlite())
    }

    pub fn postgres() -> Self {
        Self::new(TestDb::postgres())
    }

    /// A port for one more scheduler.
    pub fn another_port(&mut self) -> u16 {
        let port = free_port();
        self.ports.push(port);
        port
    }

    /// A scheduler with fast clocks on the `index`-th port.
    pub fn scheduler(&self, index: usize) -> Process {
        self.scheduler_with(index, &["--beat", "2s", "--lost-after", "6s", "--check", "500ms"])
    }

    pub fn scheduler_with(&self, index: usize, options: &[&str]) -> Process {
        self.scheduler_in(index, options, &[])
    }

    /// With variables of its environment.
    pub fn scheduler_in(&self, index: usize, options: &[&str], env: &[(&str, PathBuf)]) -> Process {
        let port = self.ports[index];
        let mut command = Command::new(binary());
        command
            .args([
                "scheduler",
                "--database",
                &self.db.url,
                "--listen",
                &format!("127.0.0.1:{port}"),
            ])
            .arg("--token-dir")
            .arg(self.db.token_dir())
            .args([
                "--connections",
                "8",
                "--callback-allow-private",
                "--callback-backoff",
                "200ms",
            ])
            .args(options)
            .envs(env.iter().cloned());
        let process = Process::spawn(&mut command, self.folder.path().join(format!("scheduler-{index}.log")));
        self.until_ready(port, &process);
        process
    }

    fn until_ready(&self, port: u16, process: &Process) {
        let end = Instant::now() + Duration::from_secs(60);
        while http_get(port, "/readyz").map(|(status, _)| status) != Some(200) {
            assert!(Instant::now() < end, "the scheduler is not ready:\n{}", process.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A runner process. Its host is called `name`, its data stays in the folder of the same name.
    pub fn runner(&self, name: &str, slots: u32, options: &[&str]) -> Process {
        self.runner_at(&[&self.url], name, slots, options)
    }

    pub fn runner_at(&self, urls: &[&str], name: &str, slots: u32, options: &[&str]) -> Process {
        let mut command = Command::new(binary());
        command.arg("runner");
        for url in urls {
            command.args(["--url", url]);
        }
        command
            .args(["--slots", &slots.to_string(), "--name", name])
            .arg("--data-dir")
            .arg(self.folder.path().join(name))
            .arg("--token-file")
            .arg(self.db.token_dir().join("runner.token"))
            .args(options);
        Process::spawn(&mut command, self.folder.path().join(format!("{name}.log")))
    }

    /// The warden of a runner that does not start one itself, not started yet.
    pub fn warden_command(&self, name: &str) -> Command {
        let mut command = Command::new(binary());
        command
            .arg("warden")
            .arg("--data-dir")
            .arg(self.folder.path().join(name));
        command
    }

    /// Starts a process that ends with the test, its output in the log of this name.
    pub fn start(&self, log: &str, command: &mut Command) -> Process {
        Process::spawn(command, self.folder.path().join(format!("{log}.log")))
    }

    /// The command line, not started yet.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command
            .args(args)
            .env("SYSTOLE_URL", &self.url)
            .env("SYSTOLE_TOKEN_FILE", self.db.token_dir().join("admin.token"))
            .env("HOME", self.folder.path())
            .env("SYSTOLE_LOCALE", "en")
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_DATA_HOME")
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs a command line to its end.
    pub fn say(&self, args: &[&str]) -> Said {
        self.command(args).output().expect("systole starts").into()
    }

    /// Submits and returns the id.
    pub fn submit(&self, args: &[&str]) -> String {
        let mut all = vec!["-o", "id", "submit"];
        all.extend(args);
        let said = self.say(&all);
        assert_eq!(said.code, Some(0), "{said:?}");
        said.stdout.trim().to_owned()
    }

    /// A task as JSON.
    pub fn show(&self, id: &str) -> serde_json::Value {
        let said = self.say(&["-o", "json", "show", id]);
        assert_eq!(said.code, Some(0), "{said:?}");
        let value: serde_json::Value = serde_json::from_str(&said.stdout).expect("JSON");
        value.get("task").cloned().unwrap_or(value)
    }

    pub fn state(&self, id: &str) -> String {
        self.show(id)["state"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the task is in one of these states.
    pub fn until(&self, id: &str, states: &[&str]) -> serde_json::Value {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let task = self.show(id);
            if states.contains(&task["state"].as_str().unwrap_or_default()) {
                return task;
            }
            assert!(Instant::now() < end, "task {id} is not {states:?}: {task}");
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Lines of a file that children write.
    pub fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until the file has at least this many lines.
    pub fn until_lines(&self, name: &str, count: usize) -> Vec<String> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let lines = self.lines(name);
            if lines.len() >= count {
                return lines;
            }
            assert!(Instant::now() < end, "{name} has {} of {count} lines", lines.len());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Status and body of a plain HTTP request.
pub fn http_get(port: u16, path: &str) -> Option<(u16, String)> {
    http_get_with(port, path, "")
}

/// The same with a token.
pub fn http_get_with(port: u16, path: &str, token: &str) -> Option<(u16, String)> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let token = match token {
        "" => String::new(),
        token => format!("Authorization: Bearer {token}\r\n"),
    };
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\n{token}Connection: close\r\n\r\n"
    )
    .ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let status = text.split(' ').nth(1)?.parse().ok()?;
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())?;
    Some((status, body))
}

/// True while a process with this id lives.
pub fn alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie has ended.
    stat.rsplit(") ")
        .next()
        .is_some_and(|rest| !stat.is_empty() && !rest.starts_with('Z'))
}

/// Waits until a fact holds.
pub fn until(what: &str, mut fact: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !fact() {
        assert!(Instant::now() < end, "waited a minute for: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
