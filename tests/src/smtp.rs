//! A real mail server that keeps what it gets: aiosmtpd, with a Maildir.

use crate::postgres::free_port;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub struct MailServer {
    child: Child,
    pub port: u16,
    folder: TempDir,
}

impl MailServer {
    pub fn start() -> Self {
        let folder = TempDir::new().expect("temporary folder");
        let port = free_port();
        let mail = folder.path().join("mail");
        let child = Command::new("aiosmtpd")
            .args([
                "-n",
                "-l",
                &format!("127.0.0.1:{port}"),
                "-c",
                "aiosmtpd.handlers.Mailbox",
            ])
            .arg(&mail)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("aiosmtpd starts; install it with `apt-get install python3-aiosmtpd`");
        let server = Self { child, port, folder };
        let end = Instant::now() + Duration::from_secs(30);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "the mail server does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    fn new_mails(&self) -> PathBuf {
        self.folder.path().join("mail").join("new")
    }

    /// All mails, as they came.
    pub fn mails(&self) -> Vec<String> {
        let mut mails: Vec<String> = std::fs::read_dir(self.new_mails())
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| std::fs::read_to_string(entry.path()).expect("mail"))
            .collect();
        mails.sort();
        mails
    }
}

impl Drop for MailServer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
