//! `<vcpu placement='auto'>` with a real libvirtd: it asks a link to `instep` where the domain shall start, as it asks numad.

use super::common::text;
use super::libvirt::{DOMAIN, Libvirt};
use super::stage::Stage;
use instep_core::idset::NodeSet;
use instep_madehost::skip;
use instep_testguest::affinity;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Where libvirt looks for numad, as it was built.
const NUMAD: &str = "/usr/bin/numad";

/// Puts a link to `instep` in the place of numad, for the daemon alone; false, with a note, where that cannot be done.
fn link_numad(libvirt: &Libvirt, stage: &Stage) -> bool {
    let dir = stage.file("bin");
    fs::create_dir(&dir).unwrap();
    symlink(env!("CARGO_BIN_EXE_instep"), dir.join("numad")).unwrap();
    let layers = format!("lowerdir={}:/usr/bin", dir.display());
    let mut mount = libvirt.beside(Path::new("mount"));
    let mounted =
        mount.args(["-t", "overlay", "none", "-o", &layers, "/usr/bin"]).output().unwrap();
    if !mounted.status.success() {
        skip::note(&format!(
            "no overlay over /usr/bin: {}",
            String::from_utf8_lossy(&mounted.stderr)
        ));
    }
    mounted.status.success()
}

#[test]
fn domain_of_automatic_placement_starts_where_instep_advises() {
    let Some(stage) = Stage::new() else { return };
    let Some(mut libvirt) = Libvirt::start_alone(&stage) else { return };
    let domain = DOMAIN.replace("<vcpu>2</vcpu>", "<vcpu placement='auto'>2</vcpu>");
    if !Path::new(NUMAD).exists() {
        // Without numad libvirt starts no such domain.
        let refused = libvirt.create(&stage, &domain);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("numad"), "{refused:?}");
        if !said.contains(NUMAD) && !said.contains("Failed to query") {
            return skip::note(&format!("this libvirt asks no numad: {}", said.trim()));
        }
    }
    if !link_numad(&libvirt, &stage) {
        return;
    }
    let created = libvirt.create(&stage, &domain);
    assert!(created.status.success(), "{created:?}");
    let status = fs::read_to_string(libvirt.file(&format!("{}.xml", libvirt.name))).unwrap();
    let advised = status.split("<numad nodeset='").nth(1).and_then(|rest| rest.split('\'').next());
    let advised = NodeSet::parse_list(advised.unwrap_or_else(|| panic!("{status}"))).unwrap();
    let topology = instep_host::topology::read(&instep_host::Root::live()).unwrap();
    let cpus = topology.cpus_of(&advised);
    assert!(!cpus.is_empty(), "nodes {advised}");
    let threads = affinity::of_process(libvirt.pid()).unwrap();
    let vcpus: Vec<_> = threads.values().filter(|(name, _)| name.starts_with("CPU ")).collect();
    assert_eq!(vcpus.len(), 2, "{threads:?}");
    assert!(vcpus.iter().all(|(_, allowed)| *allowed == cpus.to_string()), "{threads:?} {cpus}");
    // The answer was Instep's: it keeps room for a minute for what it advised.
    let args = ["advise", "--vcpus", "1", "--memory", "64MiB", "--json", "--window", "10ms"];
    let next = libvirt.instep(&args).expect(0).json();
    assert_eq!(
        (&next["reserved"], text(&next, "schema")),
        (&1.into(), "instep.advice/1"),
        "{next}"
    );
}
