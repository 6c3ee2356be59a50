//! A pseudo-terminal for a task that wants one. The child has one end as stdin, stdout, stderr and controlling terminal; a
//! thread brings what comes out of the other end into the file of its stdout, through one small buffer. Everything
//! after it (offsets, caps, upload, the silence clock) sees a file like any other.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::{Winsize, openpty};
use nix::sys::termios::{LocalFlags, SetArg, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use systole_shared::task;

/// Read at once. The kernel itself holds back some KiB more; beyond that a child waits, as for any terminal.
const BUFFER_BYTES: usize = 16 * 1024;
const STACK_BYTES: usize = 64 * 1024;
/// What the first read of stdin finds: the end of it (Ctrl-D). Nobody is there to type.
const END_OF_INPUT: &[u8] = b"\x04";

/// Both ends, before the child has its own.
#[derive(Debug)]
pub struct Terminal {
    pub child: OwnedFd,
    pub own: OwnedFd,
}

impl Terminal {
    pub fn open(size: &task::Terminal) -> io::Result<Self> {
        let side = |side: u32| u16::try_from(side).unwrap_or(u16::MAX);
        let size = Winsize {
            ws_row: side(size.rows),
            ws_col: side(size.columns),
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pair = openpty(Some(&size), None)?;
        for end in [&pair.master, &pair.slave] {
            fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        }
        let mut modes = tcgetattr(&pair.slave)?;
        // Else the end of input below would be part of the output.
        modes.local_flags.remove(LocalFlags::ECHO);
        tcsetattr(&pair.slave, SetArg::TCSANOW, &modes)?;
        let own = File::from(pair.master);
        (&own).write_all(END_OF_INPUT)?;
        Ok(Self {
            child: pair.slave,
            own: own.into(),
        })
    }
}

/// Brings the output to its file until the main process has ended and no other one has the terminal open any more.
#[derive(Debug)]
pub struct Pump {
    thread: JoinHandle<Option<String>>,
    /// Open as long as the main process lives: without it the terminal would be hung up, and that process with it, when it
    /// closes its own.
    held: Option<OwnedFd>,
}

impl Pump {
    pub fn start(terminal: Terminal, to: File) -> io::Result<Self> {
        let Terminal { child, own: from } = terminal;
        let thread = std::thread::Builder::new()
            .name("terminal".into())
            .stack_size(STACK_BYTES)
            .spawn(move || pump(&from, to))?;
        Ok(Self {
            thread,
            held: Some(child),
        })
    }

    /// To be called once the main process has ended.
    pub fn let_go(&mut self) {
        self.held = None;
    }

    pub fn is_done(&self) -> bool {
        self.thread.is_finished()
    }

    /// What a person should know, once it is done.
    pub fn note(self) -> Option<String> {
        if !self.thread.is_finished() {
            return Some("some process still has the terminal open; its last output may be missing".into());
        }
        self.thread
            .join()
            .unwrap_or_else(|_| Some("the output of the terminal is not complete".into()))
    }
}

/// It reads on when nothing can be written any more: a child that waits for its terminal would never end.
fn pump(from: &OwnedFd, mut to: File) -> Option<String> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let (mut lost_bytes, mut why) = (0_u64, None);
    loop {
        match nix::unistd::read(from, &mut buffer) {
            Ok(0) => break,
            Ok(length) if why.is_none() => {
                if let Err(error) = to.write_all(&buffer[..length]) {
                    why = Some(error);
                    lost_bytes += length as u64;
                }
            }
            Ok(length) => lost_bytes += length as u64,
            Err(Errno::EINTR) => {}
            // EIO: the other end is closed, and everything was read.
            Err(_) => break,
        }
    }
    why.map(|error| format!("about {lost_bytes} bytes of the terminal's output could not be written: {error}"))
}
