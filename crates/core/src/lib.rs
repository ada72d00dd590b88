//! The heart of Instep: units, topology, snapshots, decisions, measures and policies.
//!
//! `decide` is a pure function of a [`snapshot::Snapshot`]. Nothing here does I/O, reads a clock
//! or the environment, uses unsafe code or iterates over a hash map.
#![forbid(unsafe_code)]

pub mod conflict;
pub mod decision;
pub mod entitled;
pub mod expected;
pub mod idset;
mod matching;
pub mod measure;
pub mod policy;
pub mod profile;
pub mod reason;
pub mod score;
pub mod snapshot;
pub mod soft;
pub mod topology;
pub mod units;
pub mod wording;
