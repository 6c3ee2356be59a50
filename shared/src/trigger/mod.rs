//! Triggers: when a job fires. Pure: no clock is read and nothing is stored here; `now` is an argument.
//!
//! From the outside in: [`definition`] is what stands in files and is stored; it compiles to a [`plan::Trigger`], which
//! [`plan::plan`] asks what to do now: fires, and ranges of slots that do not fire ([`occurrence`]), by [`misfire`]
//! policy, [`calendar`]s and [`jitter`]. [`schedule`] is when it is due: [`cron`], [`rrule`] and [`window`] give local
//! times ([`wall`]), which [`dst`] turns into instants of a [`zone`]; [`custom`] is the registry of further kinds.
//! [`state`] has the six states.

pub mod backfill;
pub mod calendar;
pub mod cron;
pub mod custom;
pub mod definition;
pub mod dst;
pub mod ics;
pub mod jitter;
pub mod misfire;
pub mod occurrence;
pub mod plan;
pub mod rrule;
pub mod schedule;
pub mod state;
pub mod wall;
pub mod window;
pub mod words;
pub mod zone;
