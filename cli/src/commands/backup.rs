//! `systole backup`: a copy of the database in a file of this machine.

use crate::args::{BackupArgs, Global};
use crate::client::Client;
use crate::exit_code;
use crate::failure::{Failure, io_cause};
use crate::output::notes::Notes;
use crate::output::{self, Output, json, text};
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use systole_proto::v1;

/// How each SQLite database begins.
const MAGIC: &[u8] = b"SQLite format 3\0";

pub async fn run(global: &Global, args: &BackupArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let to_stdout = args.file == Path::new("-");
    if to_stdout && io::stdout().is_terminal() {
        return Err(Failure::usage(
            "FILE: a database is not for a terminal; name a file, or send stdout somewhere",
        ));
    }
    if !to_stdout {
        check(&args.file, args.force)?;
    }
    let client = Client::new(global)?;
    let request = v1::BackupRequest {
        reason: args.reason.clone().unwrap_or_default(),
    };
    let mut answer = client.backup(request).await?;
    let notes = Notes::new(global.quiet);
    let mut copy = Copy::new(if to_stdout { None } else { Some(&args.file) });
    loop {
        let piece = match answer.message().await {
            Ok(Some(piece)) => piece,
            Ok(None) => return Err(broken("the scheduler ended it before its end")),
            Err(status) => return Err(Failure::from_status(&status, client.url())),
        };
        if !piece.postgres_url.is_empty() {
            let line = pg_dump((!to_stdout).then_some(args.file.as_path()), &piece.postgres_url);
            // On stdout a database was meant, or a document.
            let for_people = !to_stdout && output.format.is_for_people();
            let tell: fn(&str) = if for_people { output::line } else { output::note };
            tell(&line);
            return Err(Failure::refused(
                "the database is PostgreSQL, which has a tool of its own: use the line above",
            ));
        }
        if piece.copied_bytes > 0 {
            notes.status(&format!("copying, {} so far", text::size(piece.copied_bytes)));
        }
        if !piece.data.is_empty() {
            copy.add(&piece.data).map_err(|error| cannot(&args.file, &error))?;
            if notes.is_terminal() {
                notes.status(&format!(
                    "receiving, {} of {}",
                    text::size(copy.bytes),
                    text::size(piece.total_bytes)
                ));
            }
        }
        if !piece.sha256.is_empty() {
            notes.clear();
            copy.check(piece.total_bytes, &piece.sha256)?;
            break;
        }
    }
    let done = json::Backup {
        file: args.file.display().to_string(),
        bytes: copy.bytes,
        sha256: copy.end(args.force).map_err(|error| cannot(&args.file, &error))?,
    };
    if to_stdout {
        output.note(&format!("{}, SHA-256 {}", text::size(done.bytes), done.sha256));
        return Ok(exit_code::OK);
    }
    match output.format {
        crate::args::Format::Json => json::document(&done),
        crate::args::Format::Jsonl => json::object(&done),
        crate::args::Format::Id => output::line(&done.file),
        crate::args::Format::Table | crate::args::Format::Wide => output::line(&format!(
            "{}  {}  SHA-256 {}",
            text::clean(&done.file),
            text::size(done.bytes),
            done.sha256
        )),
    }
    Ok(exit_code::OK)
}

/// Before anybody is asked: a backup of hours must not end with this.
fn check(file: &Path, force: bool) -> Result<(), Failure> {
    match std::fs::symlink_metadata(file) {
        Ok(meta) if meta.is_dir() => Err(Failure::usage(format!(
            "FILE: {0} is a folder; name a file in it, such as {0}/systole.db",
            file.display()
        ))),
        Ok(meta) if !meta.is_file() => Err(Failure::usage(format!(
            "FILE: {} is no plain file; name another",
            file.display()
        ))),
        Ok(_) if !force => Err(exists(file)),
        _ => match std::fs::metadata(folder(file)) {
            Ok(meta) if meta.is_dir() => Ok(()),
            Ok(_) => Err(cannot(file, &io::ErrorKind::NotADirectory.into())),
            Err(error) => Err(cannot(file, &error)),
        },
    }
}

fn exists(file: &Path) -> Failure {
    Failure::refused(format!(
        "{} exists; name another file, or replace it with --force",
        file.display()
    ))
}

fn folder(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn cannot(file: &Path, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::AlreadyExists => exists(file),
        _ => Failure::unexpected(format!(
            "FILE: {} cannot be written: {}",
            file.display(),
            io_cause(error)
        )),
    }
}

fn broken(what: &str) -> Failure {
    Failure::new(
        exit_code::UNREACHABLE,
        format!("the backup is not complete: {what}. Nothing was kept; try again"),
    )
}

/// What makes a backup of a PostgreSQL database.
fn pg_dump(file: Option<&Path>, url: &str) -> String {
    let words = |text: &str| text::command_line(&[text.to_owned()]);
    let file = file.map_or_else(String::new, |file| {
        format!(" --file {}", words(&file.display().to_string()))
    });
    format!("pg_dump --format custom{file} {}", words(url))
}

/// What has arrived.
struct Copy {
    /// The file and where it is until it is whole; `None`: stdout.
    target: Option<(PathBuf, PathBuf)>,
    file: Option<File>,
    bytes: u64,
    begin: Vec<u8>,
    digest: Sha256,
}

impl Copy {
    fn new(file: Option<&PathBuf>) -> Self {
        Self {
            target: file.map(|file| {
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                let part = folder(file).join(format!(".{name}.{}.part", std::process::id()));
                (file.clone(), part)
            }),
            file: None,
            bytes: 0,
            begin: Vec::new(),
            digest: Sha256::new(),
        }
    }

    fn add(&mut self, data: &[u8]) -> io::Result<()> {
        match &self.target {
            None => output::data(data),
            Some((_, part)) => {
                if self.file.is_none() {
                    let file = std::fs::OpenOptions::new()
                        .write(true)
                        .create_new(true)
                        .mode(0o600)
                        .open(part)?;
                    self.file = Some(file);
                }
                if let Some(file) = &mut self.file {
                    file.write_all(data)?;
                }
            }
        }
        let missing = MAGIC.len().saturating_sub(self.begin.len()).min(data.len());
        self.begin.extend_from_slice(&data[..missing]);
        self.bytes += data.len() as u64;
        self.digest.update(data);
        Ok(())
    }

    fn sum(&self) -> String {
        systole_shared::secret::hex(&self.digest.clone().finalize())
    }

    fn check(&self, bytes: u64, sha256: &str) -> Result<(), Failure> {
        if self.bytes != bytes {
            return Err(broken(&format!("{} of {bytes} bytes arrived", self.bytes)));
        }
        if self.sum() != sha256 {
            return Err(broken("it was changed on its way"));
        }
        if self.begin != MAGIC {
            return Err(broken("it is not an SQLite database"));
        }
        Ok(())
    }

    /// The file gets its name when all of it is on the disk. Returns its SHA-256.
    fn end(&mut self, force: bool) -> io::Result<String> {
        if let (Some(file), Some((target, part))) = (self.file.take(), &self.target) {
            file.sync_all()?;
            if force {
                std::fs::rename(part, target)?;
            } else {
                link(part, target)?;
            }
            File::open(folder(target))?.sync_all()?;
        }
        Ok(self.sum())
    }
}

/// A link never takes the place of another file. Not every file system has links.
fn link(part: &Path, target: &Path) -> io::Result<()> {
    match std::fs::hard_link(part, target) {
        Ok(()) => std::fs::remove_file(part),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        Err(_) if target.exists() => Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => std::fs::rename(part, target),
    }
}

/// What is not whole is nothing.
impl Drop for Copy {
    fn drop(&mut self) {
        if let Some((_, part)) = &self.target {
            let _ = std::fs::remove_file(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_of_test() -> PathBuf {
        let dir = std::env::temp_dir().join(format!("systole-backup-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&dir).expect("made");
        dir
    }

    #[test]
    fn a_file_appears_when_it_is_whole_and_replaces_nothing_unasked() {
        let dir = folder_of_test();
        let file = dir.join("copy.db");
        let whole: Vec<u8> = [MAGIC, &[7; 5_000]].concat();
        let take = |force| {
            let mut copy = Copy::new(Some(&file));
            for piece in whole.chunks(1_000) {
                copy.add(piece).expect("written");
            }
            copy.check(whole.len() as u64, &copy.sum()).expect("whole");
            copy.end(force)
        };
        check(&file, false).expect("free");
        take(false).expect("kept");
        assert_eq!(std::fs::read(&file).expect("read"), whole);
        assert_eq!(check(&file, false).expect_err("taken").exit, exit_code::REFUSED);
        check(&file, true).expect("may be replaced");
        assert_eq!(take(false).expect_err("taken").kind(), io::ErrorKind::AlreadyExists);
        take(true).expect("replaced");
        let left: Vec<_> = std::fs::read_dir(&dir).expect("listed").collect();
        assert_eq!(left.len(), 1, "{left:?}");
        std::fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn what_is_not_whole_or_not_the_same_is_not_kept() {
        let dir = folder_of_test();
        let file = dir.join("copy.db");
        for (data, bytes, sha) in [
            (MAGIC, 17, None),
            (MAGIC, 16, Some("00")),
            (b"something else!!".as_slice(), 16, None),
        ] {
            let mut copy = Copy::new(Some(&file));
            copy.add(data).expect("written");
            let sum = sha.map_or_else(|| copy.sum(), str::to_owned);
            let failure = copy.check(bytes, &sum).expect_err("refused");
            assert_eq!(failure.exit, exit_code::UNREACHABLE, "{failure}");
        }
        assert_eq!(std::fs::read_dir(&dir).expect("listed").count(), 0);
        std::fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn of_postgresql_the_line_to_type_is_told() {
        let url = "postgresql://ann@db:5432/systole";
        assert_eq!(
            pg_dump(Some(Path::new("a b.dump")), url),
            format!("pg_dump --format custom --file 'a b.dump' {url}")
        );
        assert_eq!(pg_dump(None, url), format!("pg_dump --format custom {url}"));
    }
}
