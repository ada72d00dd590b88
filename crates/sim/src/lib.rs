//! A discrete-event simulator of hosts, hypervisor schedulers and guests.
//!
//! A [`scenario`] is made into a [`engine::Setup`]; the [`engine`] runs it with a [`sched::Scheduler`]
//! to an [`engine::RunTotals`]; [`report`] says what that means. One seed fixes a run to the bit on any
//! machine: time is whole nanoseconds, work whole 1024ths of them, there is one source of randomness
//! and no iteration over hash maps. It sees no host, no kernel and no clock.
#![forbid(unsafe_code)]

pub mod check;
pub mod context;
pub mod engine;
pub mod error;
pub mod guest;
pub mod host;
pub mod library;
pub mod memory;
pub mod params;
pub mod placing;
pub mod report;
pub mod reproduce;
pub mod rng;
pub mod scenario;
pub mod sched;
pub mod schedule;
pub mod speed;
pub mod swarm;
#[doc(hidden)]
pub mod testing;
pub mod timers;

pub use error::Error;
