//! How long `decide` takes by number of VMs and by policy.

fn main() {}
