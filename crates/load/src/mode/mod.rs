//! The kinds of load, one a file.

pub mod barrier;
pub mod chase;
pub mod compute;
pub mod fib;
pub mod idle;
pub mod lock;
pub mod memory;
pub mod nqueens;
pub mod ping;
pub mod pipeline;
pub mod serial;
pub mod steal;
pub mod stream;
