//! The instep command.

#[cfg(test)]
mod topology;

fn main() {}
