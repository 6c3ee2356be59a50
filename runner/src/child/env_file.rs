//! A file of variables on this host (`--env-file`): read with the rights of the task's user, so that no task gets to see through
//! it what it could not read itself. The values go into the child's environment and nowhere else: no message repeats a line.
//!
//! Format: lines `NAME=VALUE`, `export ` before it is allowed. Blank lines and lines that begin with `#` are nothing. Blanks around
//! the value are dropped. In single quotes every byte is itself, in double quotes `\n`, `\t`, `\\`, `\"`, `\$` and `` \` `` are
//! known; both may hold newlines. Nothing is expanded.

use super::bounded::within;
use super::fork::Identity;
use super::prepare::Environment;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use systole_shared::limits::{ENV_FILE_BYTES_MAX, ENV_NAME_BYTES_MAX, ENV_VARS_MAX};
use systole_shared::task::limits::exact_bytes;

pub type Variables = Vec<(String, Vec<u8>)>;

/// An open file whose place is known.
#[derive(Debug)]
pub struct Opened {
    file: File,
    /// With all links followed.
    pub real: PathBuf,
}

/// Opens it as that user. An error is a sentence for a person.
pub fn open(path: &Path, identity: Option<&Identity>, host: &str) -> Result<Opened, String> {
    let shown = path.display();
    let opened = within({
        let (path, identity) = (path.to_owned(), identity.cloned());
        // On that thread, whose rights change with it and end with it.
        move || {
            if let Some(identity) = &identity {
                see_files_as(identity)?;
            }
            // A pipe must not be waited for, and a terminal not be taken over.
            let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
            OpenOptions::new().read(true).custom_flags(flags).open(path)
        }
    });
    let refused = |why: String| {
        let by = if identity.is_some() {
            " by the user of the task"
        } else {
            ""
        };
        format!("the file of variables {shown} on {host} cannot be read{by}: {why}")
    };
    let file = opened
        .and_then(|opened| opened)
        .map_err(|error| refused(error.to_string()))?;
    let meta = file.metadata().map_err(|error| refused(error.to_string()))?;
    if !meta.is_file() {
        return Err(refused("it is not a file".into()));
    }
    if meta.len() > ENV_FILE_BYTES_MAX {
        return Err(refused(format!("it has more than {}", exact_bytes(ENV_FILE_BYTES_MAX))));
    }
    let real = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|e| refused(e.to_string()))?;
    Ok(Opened { file, real })
}

impl Opened {
    pub fn read(self, given: &Path, host: &str) -> Result<Variables, String> {
        let shown = given.display();
        let file = self.file;
        let read = within(move || {
            let mut bytes = Vec::new();
            // It may have grown.
            file.take(ENV_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map(|_| bytes)
        });
        let bytes = read
            .and_then(|read| read)
            .map_err(|error| format!("the file of variables {shown} on {host} cannot be read: {error}"))?;
        parse(&bytes).map_err(|(line, why)| format!("the file of variables {shown} on {host}, line {line}: {why}"))
    }
}

/// For access to files only, and for this thread only: the whole identity of the user would let that user's processes signal this
/// one. The kernel drops the rights of root over files along with it.
#[expect(unsafe_code, reason = "per-thread identities have no safe form")]
fn see_files_as(identity: &Identity) -> std::io::Result<()> {
    // SAFETY: system calls on numbers and on a list that outlives them, past the C library, which would change all threads.
    unsafe {
        if libc::syscall(libc::SYS_setgroups, identity.groups.len(), identity.groups.as_ptr()) < 0 {
            return Err(std::io::Error::last_os_error());
        }
        libc::syscall(libc::SYS_setfsgid, identity.gid);
        libc::syscall(libc::SYS_setfsuid, identity.uid);
        // They tell no errors; a number that does not exist changes nothing and tells what is.
        let [gid, uid] = [libc::SYS_setfsgid, libc::SYS_setfsuid].map(|call| libc::syscall(call, -1_i32));
        if gid != libc::c_long::from(identity.gid.cast_signed()) && gid != libc::c_long::from(identity.gid)
            || uid != libc::c_long::from(identity.uid.cast_signed()) && uid != libc::c_long::from(identity.uid)
        {
            return Err(std::io::Error::from_raw_os_error(libc::EPERM));
        }
    }
    Ok(())
}

/// An error has its line, counted from 1, and never what stands there.
fn parse(bytes: &[u8]) -> Result<Variables, (usize, String)> {
    let mut variables = Variables::new();
    let mut rest = Text { bytes, at: 0, line: 1 };
    while let Some(begin) = rest.next_content() {
        if begin == b'#' {
            rest.skip_line();
            continue;
        }
        let line = rest.line;
        let bad = |why: &str| (line, why.to_owned());
        let name = rest.name().ok_or_else(|| {
            bad("is not NAME=VALUE with a name of letters, digits and _ that does not begin with a digit")
        })?;
        if name.starts_with("SYSTOLE_") {
            return Err(bad(
                "a name begins with SYSTOLE_, which is kept for what systole tells the child",
            ));
        }
        if name.len() > ENV_NAME_BYTES_MAX {
            return Err((line, format!("a name has more than {ENV_NAME_BYTES_MAX} bytes")));
        }
        let value = rest.value().map_err(bad)?;
        if value.contains(&0) {
            return Err(bad("a value contains a NUL byte"));
        }
        if variables.iter().any(|(known, _)| *known == name) {
            return Err(bad("this name was given before"));
        }
        if variables.len() == ENV_VARS_MAX {
            return Err((line, format!("more than {ENV_VARS_MAX} variables")));
        }
        variables.push((name, value));
    }
    Ok(variables)
}

struct Text<'a> {
    bytes: &'a [u8],
    at: usize,
    line: usize,
}

impl Text<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn take(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        self.line += usize::from(byte == b'\n');
        Some(byte)
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r')) {
            self.at += 1;
        }
    }

    fn next_content(&mut self) -> Option<u8> {
        loop {
            self.skip_blanks();
            match self.peek()? {
                b'\n' => drop(self.take()),
                byte => return Some(byte),
            }
        }
    }

    fn skip_line(&mut self) {
        while self.take().is_some_and(|byte| byte != b'\n') {}
    }

    fn word(&mut self) -> String {
        let begin = self.at;
        while self
            .peek()
            .is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        {
            self.at += 1;
        }
        String::from_utf8_lossy(&self.bytes[begin..self.at]).into_owned()
    }

    /// With its `=`.
    fn name(&mut self) -> Option<String> {
        let mut name = self.word();
        if name == "export" && matches!(self.peek(), Some(b' ' | b'\t')) {
            self.skip_blanks();
            name = self.word();
        }
        let good = name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
        (good && self.take() == Some(b'=')).then_some(name)
    }

    fn value(&mut self) -> Result<Vec<u8>, &'static str> {
        self.skip_blanks();
        let value = match self.peek() {
            Some(b'\'') => self.quoted(b'\'')?,
            Some(b'"') => self.quoted(b'"')?,
            _ => {
                let begin = self.at;
                while self.peek().is_some_and(|byte| byte != b'\n') {
                    self.at += 1;
                }
                return Ok(self.bytes[begin..self.at].trim_ascii_end().to_vec());
            }
        };
        self.skip_blanks();
        match self.peek() {
            None | Some(b'\n') => Ok(value),
            Some(b'#') => {
                self.skip_line();
                Ok(value)
            }
            Some(_) => Err("something follows the closing quote"),
        }
    }

    fn quoted(&mut self, quote: u8) -> Result<Vec<u8>, &'static str> {
        self.take();
        let mut value = Vec::new();
        loop {
            match self.take() {
                None => return Err("a quote is not closed"),
                Some(byte) if byte == quote => return Ok(value),
                Some(b'\\') if quote == b'"' => match self.take() {
                    Some(b'n') => value.push(b'\n'),
                    Some(b't') => value.push(b'\t'),
                    Some(byte @ (b'\\' | b'"' | b'$' | b'`')) => value.push(byte),
                    Some(other) => value.extend([b'\\', other]),
                    None => return Err("a quote is not closed"),
                },
                Some(byte) => value.push(byte),
            }
        }
    }
}

/// What the task says itself wins, and nothing replaces what systole says.
pub fn add(environment: &mut Environment, variables: Variables, said: &[(String, String)]) {
    for (name, value) in variables {
        if !said.iter().any(|(known, _)| *known == name) {
            environment.insert(name.into(), OsString::from_vec(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn shown(text: &str) -> Vec<(String, String)> {
        let variables = parse(text.as_bytes()).unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        variables.into_iter().map(|(name, value)| (name, text(value))).collect()
    }

    #[test]
    fn lines_comments_and_quotes() {
        for (text, expected) in [
            ("", &[][..]),
            ("\n  # nothing\n\t\n", &[]),
            ("A=b", &[("A", "b")]),
            ("A=b\r\nB=c\r\n", &[("A", "b"), ("B", "c")]),
            ("export A=b c  \n_x1= \"d\" # why\n", &[("A", "b c"), ("_x1", "d")]),
            ("A=\nB=''", &[("A", ""), ("B", "")]),
            // As with the environment files of others, it is part of the value.
            ("A=b # c\nB=$A", &[("A", "b # c"), ("B", "$A")]),
            ("A='x\\n$y\"'", &[("A", "x\\n$y\"")]),
            ("A=\"x\\n\\t\\\"\\\\\\$\\q\"", &[("A", "x\n\t\"\\$\\q")]),
            ("A=\"x\ny\"\nB=c", &[("A", "x\ny"), ("B", "c")]),
            ("export=1", &[("export", "1")]),
            ("A=b=c", &[("A", "b=c")]),
        ] {
            let expected: Vec<_> = expected
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
                .collect();
            assert_eq!(shown(text), expected, "{text:?}");
        }
        assert_eq!(parse(b"A=\xff\xfe").unwrap(), [("A".to_owned(), vec![0xff, 0xfe])]);
    }

    #[test]
    fn a_mistake_is_told_by_its_line_and_not_by_what_stands_there() {
        for (text, line, why) in [
            ("A=1\n\nsecret", 3, "is not NAME=VALUE"),
            ("A secret=1", 1, "is not NAME=VALUE"),
            ("1A=secret", 1, "is not NAME=VALUE"),
            ("=secret", 1, "is not NAME=VALUE"),
            ("A='secret\n\n", 1, "a quote is not closed"),
            ("A=\"secret\\", 1, "a quote is not closed"),
            ("A=\"x\ny\"\nB='secret'secret", 3, "something follows"),
            ("A=secret\nA=secret", 2, "given before"),
            ("SYSTOLE_X=secret", 1, "SYSTOLE_"),
            ("A=secret\0", 1, "NUL"),
        ] {
            let (at, message) = parse(text.as_bytes()).expect_err(text);
            assert_eq!(at, line, "{text:?}");
            assert!(
                message.contains(why) && !message.contains("secret"),
                "{text:?}: {message}"
            );
        }
        let many: String = (0..1_001).map(|n| format!("V{n}=\n")).collect();
        assert_eq!(parse(many.as_bytes()).unwrap_err().0, 1_001);
    }

    #[test]
    fn only_a_small_file_is_read_and_nothing_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |path: &Path| open(path, None, "h").unwrap_err();
        assert!(refused(&dir.path().join("none")).contains("No such file"));
        assert!(refused(dir.path()).contains("not a file"));
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(refused(&pipe).contains("not a file"));
        let large = dir.path().join("large");
        std::fs::write(&large, vec![b'#'; 256 * 1024 + 1]).unwrap();
        assert!(refused(&large).contains("more than 256K"));
        let link = dir.path().join("link");
        std::fs::write(dir.path().join("file"), "A=b\n").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        let opened = open(&link, None, "h").unwrap();
        assert_eq!(opened.real, dir.path().canonicalize().unwrap().join("file"));
        assert_eq!(opened.read(&link, "h").unwrap(), [("A".to_owned(), b"b".to_vec())]);
    }

    #[test]
    fn a_file_is_read_with_the_rights_of_the_user() {
        if !nix::unistd::geteuid().is_root() {
            println!("only root can read as another user");
            return;
        }
        let identity = Identity {
            uid: 3_999_999_999,
            gid: 3_999_999_998,
            groups: vec![3_999_999_998, 3_999_999_997],
        };
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "A=b\n").unwrap();
        let own = |owner, group, mode| {
            std::os::unix::fs::chown(&path, Some(owner), Some(group)).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            open(&path, Some(&identity), "h")
        };
        let refused = own(0, 0, 0o600).unwrap_err();
        assert!(
            refused.contains("cannot be read by the user of the task: Permission denied"),
            "{refused}"
        );
        assert!(own(0, 0, 0o640).is_err(), "the groups of root are given up too");
        for (owner, group, mode) in [(3_999_999_999, 0, 0o600), (0, 3_999_999_997, 0o640), (0, 0, 0o644)] {
            assert!(own(owner, group, mode).is_ok(), "{owner} {group} {mode:o}");
        }
        // This thread is as it was.
        own(0, 0, 0o600).unwrap_err();
        assert!(File::open(&path).is_ok());
    }
}
