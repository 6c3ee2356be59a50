//! Alarms of jobs. Pure: what is stored and sent is done elsewhere.
//!
//! [`rule`] is what stands in a job's `[[job.alarm]]`; [`health`] is what the end of a run means for it, [`late`] what the
//! time means. [`notice`] is what is known of an alarm, [`message`] its words, [`tail`] the last lines of an output, made
//! harmless. [`channel`] reads where alarms go, [`body`] has the forms of the services.

pub mod body;
pub mod channel;
pub mod health;
pub mod late;
pub mod message;
pub mod notice;
pub mod rule;
pub mod tail;

pub use notice::{Kind, Notice};
pub use rule::{Deadline, Rule, When};
