//! Tests of whole scans.

mod garbage;
mod live;
mod rates;
mod shared;
mod tree;
