//! The warden's end of the socket to the agent: frames in, frames out, nothing that blocks.

use super::protocol::{self, Frames, FromWarden};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;

/// What may wait for an agent that does not read, bytes; then the connection is given up, and it asks again.
const WAITING_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Read at once.
const READ_BYTES: usize = 16 * 1024;

/// Edges: reading goes on until there is nothing more, and so does writing.
const FLAGS: EpollFlags = EpollFlags::EPOLLIN
    .union(EpollFlags::EPOLLOUT)
    .union(EpollFlags::EPOLLRDHUP)
    .union(EpollFlags::EPOLLET);

pub struct Connection {
    stream: UnixStream,
    pub frames: Frames,
    out: Vec<u8>,
    written: usize,
}

impl Connection {
    pub fn new(stream: UnixStream, epoll: &Epoll, token: u64) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        epoll.add(&stream, EpollEvent::new(FLAGS, token))?;
        Ok(Self {
            stream,
            frames: Frames::default(),
            out: Vec::new(),
            written: 0,
        })
    }

    /// Events of it come under another name from now on.
    pub fn rename(&self, epoll: &Epoll, token: u64) -> io::Result<()> {
        epoll.modify(&self.stream, &mut EpollEvent::new(FLAGS, token))?;
        Ok(())
    }

    /// Reads all there is. False: the agent has gone.
    pub fn read(&mut self) -> bool {
        let buffer = self.frames.buffer();
        loop {
            let length = buffer.len();
            buffer.resize(length + READ_BYTES, 0);
            let read = self.stream.read(&mut buffer[length..]);
            buffer.truncate(length + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }

    pub fn put(&mut self, message: &FromWarden) -> io::Result<()> {
        if self.out.len() - self.written > WAITING_BYTES_MAX {
            return Err(io::Error::other("too much waits to be read"));
        }
        protocol::put(&mut self.out, message)
    }

    pub fn flush(&mut self) -> io::Result<()> {
        while self.written < self.out.len() {
            match self.stream.write(&self.out[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.written = 0;
        Ok(())
    }
}
