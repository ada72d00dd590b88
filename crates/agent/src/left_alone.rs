//! The VMs that a run does not place. The run reports each of them once, with the reason.

use crate::config::Config;
use crate::observe::{Observation, VmKey};
use crate::sink::Sink;
use instep_core::snapshot::OpaqueVm;
use instep_core::units::VmId;
use instep_host::discover::{Owner, is_called};
use std::collections::BTreeMap;

/// The VMs that the cycle before did not place, each with whether it was reported.
#[derive(Debug, Default)]
pub(crate) struct LeftAlone(BTreeMap<VmKey, bool>);

impl LeftAlone {
    /// Reports VMs that are new among those that the run does not place. The next cycle may still identify a VM
    /// that is not identified now, so that its report waits for that cycle, unless there is none (`once`). If VMs
    /// were asked for by name, no other VM is reported.
    pub(crate) fn note(
        &mut self,
        observation: &Observation,
        (config, once): (&Config, bool),
        sink: &mut dyn Sink,
    ) {
        let trust = config.trust();
        let mut now = BTreeMap::new();
        for vm in &observation.snapshot.opaque {
            let Some((key, owner)) = process_of(observation, vm.id) else { continue };
            let before = self.0.get(&key).copied();
            let is_sure = once || before.is_some() || trust.refusal(owner).is_some();
            let is_told = before == Some(true);
            let is_wanted = config.vms.is_empty()
                || config.vms.iter().any(|wanted| is_called((vm.id.0, &vm.name), wanted));
            if is_sure && !is_told && is_wanted {
                sink.notice(&notice(vm));
            }
            now.insert(key, is_told || is_sure);
        }
        self.0 = now;
    }
}

fn notice(vm: &OpaqueVm) -> String {
    format!("the VM {} (process {}) is left alone: {}", vm.name, vm.id, vm.why)
}

/// The key of a VM that is not placed, and its owner.
fn process_of(observation: &Observation, id: VmId) -> Option<(VmKey, &Owner)> {
    let scan = &observation.scan;
    let known = scan.vms.iter().find(|vm| vm.pid == id.0).map(|vm| (vm.start_ticks, &vm.owner));
    let opaque = || scan.opaque.iter().find(|vm| vm.pid == id.0);
    let (start_ticks, owner) = known.or_else(|| opaque().map(|vm| (vm.start_ticks, &vm.owner)))?;
    Some((VmKey { id, start_ticks }, owner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::{Observer, keep_only, keep_trusted};
    use crate::testing::Heard;
    use instep_core::units::{Bytes, NodeId};
    use instep_host::Root;
    use instep_host::discover::ScanOptions;
    use instep_madehost::{HostSpec, MadeHost, VmSpec, Vmm};

    /// `ours` is root's, `jailed` an ordinary user's, `mute` has no names of vCPU threads.
    fn observe_host() -> Observation {
        let dir = instep_madehost::scratch_dir().unwrap();
        let mut made = MadeHost::new(HostSpec::new(1, 8));
        for name in ["ours", "jailed", "mute"] {
            made.push(VmSpec::new(name, Vmm::QemuKvm, 2, NodeId(0), Bytes::from_mib(64)));
        }
        made.write(dir.path()).unwrap();
        made.give_to_user(dir.path(), 1, (4321, "/firecracker/7")).unwrap();
        let mute = dir.path().join(format!("proc/{}/task", made.vms[2].pid));
        for task in std::fs::read_dir(mute).unwrap() {
            let stat = task.unwrap().path().join("stat");
            let text = std::fs::read_to_string(&stat).unwrap();
            let (open, close) = (text.find('(').unwrap(), text.rfind(')').unwrap());
            std::fs::write(&stat, format!("{}(x{}", &text[..open], &text[close..])).unwrap();
        }
        let mut observer = Observer::new(Root::at(dir.path()), ScanOptions::once()).unwrap();
        let mut observation = observer.observe(None, None).unwrap();
        let trust = Config::default().trust();
        keep_trusted(&mut observation.snapshot, &observation.scan, &trust);
        observation
    }

    #[test]
    fn vm_left_alone_is_reported_once_with_the_setting_to_change() {
        let (config, mut left, mut heard) =
            (Config::default(), LeftAlone::default(), Heard::default());
        left.note(&observe_host(), (&config, false), &mut heard);
        assert_eq!(heard.0.len(), 1, "{:?}", heard.0);
        let said = heard.0.remove(0);
        assert!(said.starts_with("the VM jailed (process "), "{said}");
        assert!(said.contains("`cgroups = [\"/firecracker\"]` under [discover]"), "{said}");
        left.note(&observe_host(), (&config, false), &mut heard);
        assert_eq!(heard.0.len(), 1, "{:?}", heard.0);
        assert!(heard.0[0].starts_with("the VM mute "), "{:?}", heard.0);
        left.note(&observe_host(), (&config, false), &mut heard);
        assert_eq!(heard.0.len(), 1, "{:?}", heard.0);
    }

    #[test]
    fn single_cycle_reports_every_vm_asked_for() {
        let told = |vms: &[&str]| {
            let vms: Vec<String> = vms.iter().map(|name| (*name).to_owned()).collect();
            let (config, mut heard) = (Config { vms, ..Config::default() }, Heard::default());
            let mut observation = observe_host();
            keep_only(&mut observation.snapshot, &config.vms);
            LeftAlone::default().note(&observation, (&config, true), &mut heard);
            heard.0
        };
        assert_eq!(told(&[]).len(), 2);
        assert_eq!(told(&["ours"]), [""; 0]);
        let said = told(&["ours", "mute"]);
        assert!(said.len() == 1 && said[0].starts_with("the VM mute "), "{said:?}");
    }
}
