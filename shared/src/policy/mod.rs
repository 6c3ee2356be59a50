//! Rules that are functions of values: who is stale, which lane a runner serves, which host a run is given to,
//! what follows a failure, when a runner that is cut off ends its child, whether the time may be acted on,
//! which task a host can have held, when a certificate is made anew, what a doctor says of what it found.

pub mod access;
pub mod backfill;
pub mod blocking;
pub mod broadcast;
pub mod certificate;
pub mod clock;
pub mod doctor;
pub mod fence;
pub mod freeze;
pub mod host_fault;
pub mod lane;
pub mod lease;
pub mod pause;
pub mod restore;
pub mod retry;
pub mod route;
pub mod stale;
pub mod why;
