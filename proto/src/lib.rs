//! The contract: generated messages and services of `systole.v1`, and the conversions to and from
//! the domain types of `systole_shared`. This is the only place where wire and domain types meet.

pub mod convert;
pub mod facts;
pub mod json;

/// Generated code of the package `systole.v1`.
#[expect(
    clippy::all,
    clippy::allow_attributes,
    reason = "generated code is not ours to style; its documentation is in the .proto files"
)]
pub mod v1 {
    tonic::include_proto!("systole.v1");
}

/// The encoded file descriptors, for the reflection service.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/systole.bin"));
