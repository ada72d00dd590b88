//! Developer tasks: ci, bench, tidy.

fn main() {}
