//! What agent and warden say to each other, over one socket per worker of the warden: frames of a length (four
//! bytes, little end first) and a JSON text.
//!
//! Both sides may be of neighbouring versions, because an agent is upgraded while its warden and the tasks
//! go on. So fields are only ever added, with a default; a frame that is not understood is logged and passed over.

use crate::journal::{Begin, Ended};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use systole_shared::heartbeat::end::StoppedBy;
use systole_shared::policy::host_fault::HostFault;
use systole_shared::task::TaskSpec;

/// Raised when a side must know of a change that a default cannot cover.
pub const PROTOCOL: u32 = 1;
/// Longest frame, bytes: the largest command (2 MiB) with room for JSON's escapes.
pub const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;

/// From the agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToWarden {
    /// First on each connection.
    Hello(Hello),
    Start(Box<Start>),
    /// Writes down the end of a task that is never to be started.
    Record(Record),
    Stop(Stop),
    /// The cluster heard of a fenced task.
    Alive(Alive),
    /// The end was acknowledged, and the output is stored: nothing of it is needed any more.
    Forget(Named),
    /// Nobody wants the end; it is kept where people find it.
    SetAside(Named),
    /// No new tasks; those that run are ended.
    Drain(Drain),
    /// Whether anybody is there. Only to a warden that said that it answers.
    Ping(Ping),
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Hello {
    pub protocol: u32,
    pub version: String,
    pub start_no: u64,
    /// The file with the host's policy, if the agent was told of one.
    #[serde(default)]
    pub policy: Option<PathBuf>,
}

/// A task to start.
#[derive(Debug, Serialize, Deserialize)]
pub struct Start {
    pub begin: Begin,
    pub spec: TaskSpec,
    /// When the beat was sent that brought the task, ms by `CLOCK_BOOTTIME`, and how long it could be parked.
    pub beat_sent_ms: u64,
    pub park_ms: u64,
    /// Name of the host, for messages and for the task's environment.
    pub host: String,
    /// From the first signal to KILL, when the task names none, ms.
    pub kill_grace_ms: u64,
    /// A fenced task is ended when the cluster has not heard of it for so long, ms.
    #[serde(default)]
    pub fence_ms: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Record {
    pub begin: Begin,
    /// Name of the outcome.
    pub kind: String,
    pub message: String,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Stop {
    pub task_id: i64,
    pub by: StoppedBy,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Alive {
    pub task_id: i64,
    /// When the beat was sent that was answered, ms by `CLOCK_BOOTTIME`.
    pub sent_ms: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Named {
    pub task_id: i64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Drain {}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Ping {}

/// From the warden.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromWarden {
    /// The answer to `Hello`.
    Welcome(Box<Welcome>),
    Started(Started),
    NotBegun(NotBegun),
    Ended(Box<Ended>),
    /// Whether the host can start tasks, after each change, and before the end of any task that it could not start.
    Health(Told),
    /// The warden was told to stop: it starts nothing any more.
    Draining(Drain),
    /// The answer to `Ping`.
    Pong(Ping),
}

/// All that this worker holds. What is not in it was never begun, or is forgotten.
#[derive(Debug, Serialize, Deserialize)]
pub struct Welcome {
    pub protocol: u32,
    pub version: String,
    pub pid: u32,
    pub instance_id: String,
    /// Highest task id that this host ever held.
    pub max_task_id: i64,
    /// What keeps the processes of a task together; for people.
    #[serde(default)]
    pub guard: String,
    /// Limits of all processes of a task together that hold here; for people.
    #[serde(default)]
    pub limits: Option<String>,
    /// The file with the host's policy; for people.
    #[serde(default)]
    pub policy: Option<String>,
    #[serde(default)]
    pub draining: bool,
    #[serde(default)]
    pub health: Told,
    /// It answers a `Ping`; earlier versions do not.
    #[serde(default)]
    pub answers_pings: bool,
    pub live: Vec<LiveTask>,
    /// Ended and not forgotten.
    pub ended: Vec<Ended>,
}

/// The health of the host, as this warden knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Rises with each change, in this warden's life.
    pub no: u64,
    /// `None`: it is well.
    pub fault: Option<HostFault>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LiveTask {
    pub begin: Begin,
    #[serde(default)]
    pub stopping: bool,
    #[serde(default)]
    pub fenced: bool,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Started {
    pub task_id: i64,
    pub slot: u32,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct NotBegun {
    pub task_id: i64,
    pub slot: u32,
    pub why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The RUN_NEW had lain too long, so the cluster may have given the task up; or the agent took the order back.
    TooLate,
    /// This host has the task already.
    Held,
}

/// Tasks that are to be stopped by one of these messages. A warden that was stopped itself finds the order to begin a task
/// and the order to end it side by side: such a task is not begun at all.
pub fn withdrawn(messages: &[ToWarden]) -> HashSet<i64> {
    let stop = |message: &ToWarden| match message {
        ToWarden::Stop(stop) => Some(stop.task_id),
        _ => None,
    };
    messages.iter().filter_map(stop).collect()
}

/// Appends one frame.
pub fn put<T: Serialize>(buffer: &mut Vec<u8>, message: &T) -> io::Result<()> {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; 4]);
    serde_json::to_writer(&mut *buffer, message)?;
    let length = buffer.len() - start - 4;
    if length > FRAME_BYTES_MAX {
        buffer.truncate(start);
        return Err(too_long(length));
    }
    let length = u32::try_from(length).map_err(|_| too_long(length))?;
    buffer[start..start + 4].copy_from_slice(&length.to_le_bytes());
    Ok(())
}

/// The length of the first frame with its head, if that much is known.
pub fn length(buffer: &[u8]) -> io::Result<Option<usize>> {
    let Some(head) = buffer.first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*head) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(too_long(length));
    }
    Ok(Some(length + 4))
}

fn too_long(length: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("a frame of {length} bytes between agent and warden; at most {FRAME_BYTES_MAX} are allowed"),
    )
}

/// Frames from a stream of bytes.
#[derive(Default)]
pub struct Frames {
    buffer: Vec<u8>,
    read: usize,
}

impl Frames {
    /// Where to put more bytes: the end of this vector.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        if self.read > 0 {
            self.buffer.drain(..self.read);
            self.read = 0;
        }
        &mut self.buffer
    }

    /// The next whole frame that is understood.
    pub fn take<T: for<'de> Deserialize<'de>>(&mut self) -> io::Result<Option<T>> {
        loop {
            let rest = &self.buffer[self.read..];
            let Some(length) = length(rest)? else {
                return Ok(None);
            };
            let Some(frame) = rest.get(4..length) else {
                return Ok(None);
            };
            let parsed = serde_json::from_slice(frame);
            self.read += length;
            match parsed {
                Ok(message) => return Ok(Some(message)),
                Err(error) => tracing::warn!(%error, "a message between agent and warden is not understood"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_whole_however_the_bytes_arrive() {
        let mut bytes = Vec::new();
        for task_id in [1, 2, 3] {
            put(&mut bytes, &ToWarden::Forget(Named { task_id })).unwrap();
        }
        let mut frames = Frames::default();
        let mut seen = Vec::new();
        for byte in bytes {
            frames.buffer().push(byte);
            while let Some(message) = frames.take::<ToWarden>().unwrap() {
                let ToWarden::Forget(Named { task_id }) = message else {
                    panic!("{message:?}")
                };
                seen.push(task_id);
            }
        }
        assert_eq!(seen, [1, 2, 3]);
    }

    #[test]
    fn a_message_of_a_later_version_is_passed_over_and_a_later_field_too() {
        let mut bytes = Vec::new();
        put(&mut bytes, &serde_json::json!({"pause": {"task_id": 1}})).unwrap();
        put(&mut bytes, &serde_json::json!({"forget": {"task_id": 2, "why": "x"}})).unwrap();
        let mut frames = Frames::default();
        frames.buffer().extend(bytes);
        let message: Option<ToWarden> = frames.take().unwrap();
        assert!(matches!(message, Some(ToWarden::Forget(Named { task_id: 2 }))));
    }

    #[test]
    fn a_task_that_is_stopped_in_the_same_breath_is_withdrawn() {
        let stop = |task_id| {
            let by = StoppedBy::Reset;
            ToWarden::Stop(Stop { task_id, by })
        };
        let messages = [
            ToWarden::Ping(Ping {}),
            stop(2),
            ToWarden::Forget(Named { task_id: 3 }),
            stop(4),
        ];
        assert_eq!(withdrawn(&messages), HashSet::from([2, 4]));
        assert_eq!(withdrawn(&[]), HashSet::new());
    }

    #[test]
    fn a_warden_of_an_earlier_version_does_not_answer_pings() {
        let welcome = serde_json::json!({
            "protocol": 1, "version": "x", "pid": 7, "instance_id": "i", "max_task_id": 0, "live": [], "ended": []
        });
        let welcome: Welcome = serde_json::from_value(welcome).unwrap();
        assert!(!welcome.answers_pings);
    }

    #[test]
    fn a_senseless_length_is_refused() {
        let mut frames = Frames::default();
        frames.buffer().extend([255; 8]);
        assert!(frames.take::<ToWarden>().is_err());
    }
}
