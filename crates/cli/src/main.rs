//! The instep command.

fn main() {}
