//! Processes under measurement, and what they use.

use crate::Result;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use systole_proto::v1;
use systole_proto::v1::runner_admin_client::RunnerAdminClient;
use systole_proto::v1::runner_service_client::RunnerServiceClient;
use systole_proto::v1::task_service_client::TaskServiceClient;
use systole_tests::TestDb;
use systole_tests::postgres::free_port;
use systole_tests::replica::{Admin, Beats, Tasks, Token};
use tonic::transport::{Channel, Endpoint};

/// A scheduler process of the release binary.
pub struct Process {
    pub child: Child,
    url: String,
    tokens: PathBuf,
}

impl Process {
    pub async fn scheduler(binary: &Path, db: &TestDb) -> Result<Self> {
        Self::scheduler_with(binary, db, &[]).await
    }

    pub async fn scheduler_with(binary: &Path, db: &TestDb, options: &[&str]) -> Result<Self> {
        let port = free_port();
        let tokens = db.token_dir();
        let child = Command::new(binary)
            .args([
                "scheduler",
                "--database",
                &db.url,
                "--listen",
                &format!("127.0.0.1:{port}"),
                "--connections",
                "12",
            ])
            .arg("--token-dir")
            .arg(&tokens)
            .args(options)
            .env("SYSTOLE_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let process = Self {
            child,
            url: format!("http://127.0.0.1:{port}"),
            tokens,
        };
        for _ in 0..200 {
            if process.tasks().await.is_ok() {
                return Ok(process);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err("the scheduler does not come up".into())
    }

    pub fn runner(&self, binary: &Path, slots: u32, folder: &Path) -> Result<Child> {
        Ok(Command::new(binary)
            .args([
                "runner",
                "--url",
                &self.url,
                "--slots",
                &slots.to_string(),
                "--name",
                "bench",
            ])
            .arg("--data-dir")
            .arg(folder)
            .arg("--token-file")
            .arg(self.tokens.join("runner.token"))
            .env("SYSTOLE_LOG", "warn")
            .stdin(Stdio::null())
            .spawn()?)
    }

    /// The command line, as its admin types it.
    pub fn command(&self, binary: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(binary);
        command
            .args(args)
            .env("SYSTOLE_URL", &self.url)
            .env("SYSTOLE_TOKEN_FILE", self.tokens.join("admin.token"))
            .env_remove("SYSTOLE_CONTEXT")
            .stdin(Stdio::null());
        command
    }

    pub fn token(&self, name: &str) -> Result<Token> {
        let text = std::fs::read_to_string(self.tokens.join(format!("{name}.token")))?;
        Ok(Token(Some(format!("Bearer {}", text.trim()).parse()?)))
    }

    pub async fn channel(&self) -> Result<Channel> {
        Ok(Endpoint::from_shared(self.url.clone())?
            .tcp_nodelay(true)
            .connect()
            .await?)
    }

    pub async fn tasks(&self) -> Result<Tasks> {
        let mut tasks = TaskServiceClient::with_interceptor(self.channel().await?, self.token("admin")?);
        tasks.count(v1::CountRequest::default()).await?;
        Ok(tasks)
    }

    pub async fn admin(&self) -> Result<Admin> {
        Ok(RunnerAdminClient::with_interceptor(
            self.channel().await?,
            self.token("admin")?,
        ))
    }

    pub async fn beats(&self) -> Result<Beats> {
        Ok(RunnerServiceClient::with_interceptor(
            self.channel().await?,
            self.token("runner")?,
        ))
    }

    /// Resident memory, KiB.
    pub fn rss(&self) -> f64 {
        status_kib(self.child.id(), "VmRSS:")
    }

    /// CPU time used so far, s.
    pub fn cpu(&self) -> f64 {
        cpu(self.child.id())
    }
}

fn status_kib(pid: u32, field: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap_or_default();
    line.split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .unwrap_or(f64::NAN)
}

/// The most memory that was ever resident.
pub fn peak_mib(pid: u32) -> f64 {
    status_kib(pid, "VmHWM:") / 1_024.0
}

/// Resident memory now.
pub fn resident_mib(pid: u32) -> f64 {
    status_kib(pid, "VmRSS:") / 1_024.0
}

/// CPU time that a process used so far without its children, s.
pub fn cpu(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after = text.rsplit(')').next().unwrap_or_default();
    let fields: Vec<f64> = after
        .split_whitespace()
        .filter_map(|field| field.parse().ok())
        .collect();
    // user and system time are fields 14 and 15; the name and the state are not numbers.
    (fields.get(10).unwrap_or(&0.0) + fields.get(11).unwrap_or(&0.0)) / 100.0
}

/// CPU time that no process used so far, all cores together, s.
pub fn idle() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = text.lines().next().unwrap_or_default();
    let fields: Vec<f64> = first
        .split_whitespace()
        .filter_map(|field| field.parse().ok())
        .collect();
    // user, nice, system, idle, iowait
    (fields.get(3).unwrap_or(&0.0) + fields.get(4).unwrap_or(&0.0)) / 100.0
}

/// The warden that serves this data folder.
pub fn warden_of(folder: &Path) -> Option<u32> {
    let folder = folder.display().to_string();
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let text = std::fs::read(entry.path().join("cmdline")).ok()?;
        let arguments: Vec<_> = text.split(|&byte| byte == 0).collect();
        (arguments.contains(&b"warden".as_slice()) && arguments.contains(&folder.as_bytes())).then_some(pid)
    })
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
