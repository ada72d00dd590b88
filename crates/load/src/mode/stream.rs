//! `stream`: reads two arrays and writes a third, over and over: bound by memory bandwidth.
//!
//! Models the bandwidth-bound NPB programs (systems.md 4: sp, mg), which gain from local memory.
//! The kernel is STREAM's triad, `a = b + s * c`; 24 bytes are counted for each element, as
//! STREAM does (the read that a write causes in the cache is not counted).

use super::memory::fill;
use crate::args::Args;
use crate::error::LoadError;
use crate::frame::{Mode, Worker};
use crate::json::Object;
use std::hint::black_box;

/// Elements between two looks at the stop flag.
const CHUNK: usize = 8192;
/// Bytes that are counted for an element: two reads and a write.
const BYTES: u64 = 24;

/// See the module.
#[derive(Debug)]
pub struct Stream {
    /// Bytes of one thread's three arrays.
    size: usize,
}

/// The arrays of one thread.
#[derive(Debug)]
pub struct Arrays {
    a: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
}

impl Mode for Stream {
    const NAME: &'static str = "stream";
    const HELP: &'static str = "\
stream: streams through arrays, bound by memory bandwidth
work: bytes read and written
  --size SIZE  memory of each thread [24MiB]; to be larger than the caches
";
    const WORK: &'static str = "bytes";
    type Local = Arrays;

    fn from_args(args: &mut Args, _: usize) -> Result<Self, LoadError> {
        Ok(Self { size: args.size("--size", 24 << 20, BYTES as usize)? })
    }

    fn prepare(&self, _: &Worker<'_>) -> Result<Arrays, LoadError> {
        let length = self.size / BYTES as usize;
        let array = |value: f64| fill("the arrays to stream through", length, |_| value);
        Ok(Arrays { a: array(0.0)?, b: array(1.0)?, c: array(2.0)? })
    }

    fn work(&self, worker: &Worker<'_>, mut arrays: Arrays) -> Result<(), LoadError> {
        while !worker.stopped() {
            let sources = arrays.b.chunks(CHUNK).zip(arrays.c.chunks(CHUNK));
            for (a, (b, c)) in arrays.a.chunks_mut(CHUNK).zip(sources) {
                triad(a, b, c);
                worker.add(BYTES * a.len() as u64);
                if worker.stopped() {
                    break;
                }
            }
        }
        match arrays.a.first() {
            Some(value) if *value != 7.0 => {
                Err(LoadError::Wrong(format!("1 + 3 * 2 came out as {value}")))
            }
            _ => Ok(()),
        }
    }

    fn options(&self, fields: &mut Object) {
        fields.number("size_bytes", self.size as u64);
    }
}

#[inline(never)]
fn triad(a: &mut [f64], b: &[f64], c: &[f64]) {
    let factor = black_box(3.0);
    for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
        *a = b + factor * c;
    }
    black_box(a);
}
