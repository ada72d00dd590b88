//! The topology read from a made host is the one built from its spec, on random hosts.

use instep_core::topology::Topology;
use instep_host::{Root, topology};
use instep_madehost::{Limits, MadeHost, random, scratch};

#[test]
fn reading_a_written_host_gives_what_it_was_made_of() {
    for seed in 0..40 {
        let made = random(seed, Limits { vms: 0, ..Limits::default() });
        let dir = tempfile::tempdir_in(scratch()).unwrap();
        MadeHost { noise: false, ..made.clone() }.write(dir.path()).unwrap();
        let built = Topology::build(made.host.cpu_facts(), made.host.node_facts()).unwrap();
        let read = topology::read(&Root::at(dir.path())).unwrap();
        assert_eq!(read, built, "seed {seed}: {:?}", made.host);
        assert_eq!(built.warnings(), &[] as &[String], "seed {seed}: {:?}", made.host);
    }
}
