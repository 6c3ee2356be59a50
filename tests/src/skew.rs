//! A process whose wall clock is off, by as much as a test says while it runs.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

pub struct Skew {
    folder: TempDir,
}

impl Skew {
    /// The clock is off by this to begin with.
    pub fn new(off_ms: i64) -> Self {
        let skew = Self {
            folder: TempDir::new().expect("a folder"),
        };
        std::fs::write(skew.file(), off_ms.to_ne_bytes()).expect("written");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/skew.c");
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([skew.library(), source])
            .output()
            .expect("a C compiler, which the build of systole needs, too");
        assert!(output.status.success(), "{output:?}");
        skew
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("off_ms")
    }

    fn library(&self) -> PathBuf {
        self.folder.path().join("skew.so")
    }

    /// From now on.
    pub fn set(&self, off_ms: i64) {
        // Without cutting the file off first: it is mapped.
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .open(self.file())
            .expect("the file");
        file.write_all(&off_ms.to_ne_bytes()).expect("written");
    }

    /// The variables of a process that has this clock.
    pub fn env(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("LD_PRELOAD", self.library()), ("SYSTOLE_TEST_CLOCK", self.file())]
    }
}
