//! A fresh database per test, of either kind.

use crate::postgres::Cluster;
use std::path::PathBuf;
use tempfile::TempDir;

pub struct TestDb {
    pub url: String,
    /// Name of the database in the shared cluster.
    pub postgres: Option<String>,
    pub folder: TempDir,
}

impl TestDb {
    pub fn sqlite() -> Self {
        let folder = TempDir::new().expect("temporary folder");
        Self {
            url: format!("sqlite:{}", folder.path().join("systole.db").display()),
            postgres: None,
            folder,
        }
    }

    pub fn postgres() -> Self {
        let cluster = Cluster::shared();
        let name = cluster.create_database();
        Self {
            url: cluster.url(&name),
            postgres: Some(name),
            folder: TempDir::new().expect("temporary folder"),
        }
    }

    pub fn token_dir(&self) -> PathBuf {
        self.folder.path().join("tokens")
    }

    /// Runs a statement behind the product's back and returns its output.
    pub fn sql(&self, text: &str) -> String {
        match &self.postgres {
            Some(name) => Cluster::shared().sql(name, text),
            None => {
                let path = self.url.trim_start_matches("sqlite:");
                let output = std::process::Command::new("sqlite3")
                    .args(["-cmd", ".timeout 5000", path, text])
                    .output()
                    .expect("sqlite3 starts; install it with `apt-get install sqlite3`");
                assert!(
                    output.status.success(),
                    "sqlite3: {}",
                    String::from_utf8_lossy(&output.stderr)
                );
                String::from_utf8_lossy(&output.stdout).trim().to_owned()
            }
        }
    }
}

/// Stamps facts for both databases. A fact is `async fn name(db: TestDb)`.
#[macro_export]
macro_rules! on_both_databases {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $name() { super::$name($crate::TestDb::sqlite()).await })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $name() { super::$name($crate::TestDb::postgres()).await })*
        }
    };
}
