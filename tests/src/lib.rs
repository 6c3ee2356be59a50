//! The harness of the whole-system tests: real databases, real replicas, real sockets.

pub mod chaos;
pub mod databases;
pub mod door;
pub mod evidence;
pub mod home;
pub mod output;
pub mod person;
pub mod picture;
pub mod postgres;
pub mod random;
pub mod receiver;
pub mod replica;
pub mod sim;
pub mod skew;
pub mod slots;
pub mod smtp;
pub mod system;
pub mod terminal;
pub mod tls;
pub mod wait;

pub use databases::TestDb;
pub use receiver::Receiver;
pub use replica::Replica;
pub use sim::SimRunner;
pub use system::System;
