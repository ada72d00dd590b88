//! Tests of whole scans.

mod garbage;
mod live;
mod qmp;
mod rates;
mod shared;
mod tree;
