//! Whether somebody has written to the stdin of a command that passes it on to nobody.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::File;
use std::io::Seek as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileTypeExt as _;

/// What `run` says then.
pub const NOT_PASSED_ON: &str = "what waits on stdin here is not passed on, the task's stdin is empty; \
     let it read a file, such as --here --shell 'wc -l < data.csv'";

/// Certainly, and now: cron and CI often leave a pipe open in which nothing ever comes. Nothing is taken out of it.
pub fn has_bytes() -> bool {
    let copy = std::io::stdin().as_fd().try_clone_to_owned();
    copy.is_ok_and(|copy| holds_bytes(File::from(copy)))
}

fn holds_bytes(mut file: File) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    if metadata.is_file() {
        return file.stream_position().is_ok_and(|at| at < metadata.len());
    }
    // Of a socket or a terminal an end is readable, too; of a pipe only bytes are.
    if !metadata.file_type().is_fifo() {
        return false;
    }
    let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).is_ok() && fds[0].revents().is_some_and(|found| found.contains(PollFlags::POLLIN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::fd::OwnedFd;

    #[test]
    fn a_pipe_has_bytes_only_while_some_are_in_it() {
        let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
        let has = |reader: &std::io::PipeReader| {
            let copy = OwnedFd::from(reader.try_clone().expect("a copy"));
            holds_bytes(File::from(copy))
        };
        assert!(!has(&reader), "open and empty, as in cron");
        writer.write_all(b"x").expect("written");
        assert!(has(&reader));
        assert!(has(&reader), "nothing was taken out of it");
        reader.read_exact(&mut [0]).expect("read");
        assert!(!has(&reader));
        writer.write_all(b"x").expect("written");
        drop(writer);
        assert!(has(&reader));
        reader.read_exact(&mut [0]).expect("read");
        assert!(!has(&reader), "at its end");
    }

    #[test]
    fn a_file_has_bytes_until_its_end() {
        let path = std::env::temp_dir().join(format!("systole-stdin-{}", uuid::Uuid::new_v4()));
        std::fs::write(&path, "x").expect("written");
        assert!(holds_bytes(File::open(&path).expect("there")));
        let mut read = File::open(&path).expect("there");
        read.read_exact(&mut [0]).expect("read");
        assert!(!holds_bytes(read));
        std::fs::write(&path, "").expect("written");
        assert!(!holds_bytes(File::open(&path).expect("there")));
        std::fs::remove_file(&path).expect("removed");
        assert!(!holds_bytes(File::open("/dev/null").expect("there")));
    }
}
