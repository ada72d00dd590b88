//! Settings in definitions on copies of hosts: what wins, what is told, what reaches the kernel scheduler and the policy.

use super::*;
use crate::config::Config;
use crate::decide;
use crate::dispatch::table;
use crate::observe::{Observation, Observer, VmKey, keep_only, leave_ignored};
use crate::testing::Heard;
use instep_core::units::{Bytes, Milli, NodeId, VmId};
use instep_host::Root;
use instep_host::discover::ScanOptions;
use instep_kernel::settings::Latency;
use instep_kernel::{Cosched, VmEntry};
use instep_madehost::{HostSpec, MadeHost, VmSpec, Vmm};
use std::fs;
use std::path::Path;
use std::time::Duration;

const STATUS: &str = include_str!("../../../host/src/discover/definition/fixtures/libvirt-web.xml");
const METADATA: &str =
    "<instep:vm xmlns:instep=\"urn:instep:vm:1\" cosched=\"relaxed\" weight=\"200\"/>";

/// A copy of a host with the VM `web` of libvirt and the VM `db` of Proxmox.
struct Host {
    dir: tempfile::TempDir,
    observer: Observer,
}

impl Host {
    fn new() -> Self {
        let dir = instep_madehost::scratch_dir().unwrap();
        let mut made = MadeHost::new(HostSpec::new(2, 4));
        for (name, vmm) in [("web", Vmm::Libvirt), ("db", Vmm::Proxmox)] {
            let vm = VmSpec::new(name, vmm, 2, NodeId(1), Bytes::from_mib(64));
            made.push(vm.load(Milli(600)));
        }
        made.write(dir.path()).unwrap();
        for folder in ["run/libvirt/qemu", "run/qemu-server", "etc/pve/qemu-server"] {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let observer = Observer::new(Root::at(dir.path()), ScanOptions::once()).unwrap();
        Self { dir, observer }
    }

    fn observe(&mut self) -> Observation {
        self.observer.observe(None, None).unwrap()
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.dir.path().join(path), text).unwrap();
    }

    /// Writes these attributes into the metadata of `web`.
    fn set_metadata(&mut self, attributes: &str) {
        let observation = self.observe();
        let web = facts(&observation, "web");
        let ours = format!("<instep:vm xmlns:instep=\"urn:instep:vm:1\" {attributes}/>");
        let status = STATUS.replace(METADATA, &ours).replace("'4711'", &format!("'{}'", web.pid));
        let uuid = web.uuid.as_deref().unwrap();
        let status = status.replace("5b2f8c1e-7a44-4d0b-9a53-0f6f3f1c2e77", uuid);
        self.write("run/libvirt/qemu/web.xml", &status);
    }

    /// Gives `db` these tags.
    fn set_tags(&mut self, tags: &str) {
        let number = facts(&self.observe(), "db").pid;
        self.write(&format!("run/qemu-server/{number}.pid"), &format!("{number}\n"));
        let config = format!("cores: 2\ntags: {tags}\n[before]\ntags: instep-weight-1\n");
        self.write(&format!("etc/pve/qemu-server/{number}.conf"), &config);
    }
}

fn facts<'a>(observation: &'a Observation, name: &str) -> &'a VmFacts {
    observation.scan.vms.iter().find(|vm| vm.name == name).unwrap()
}

fn config(text: &str) -> Config {
    Config::parse(text, Path::new("instep.toml")).unwrap()
}

/// What the kernel scheduler is told of this VM, whose home is node 1.
fn entry(observation: &Observation, name: &str, config: &Config) -> VmEntry {
    let scan = &observation.scan;
    let homes = scan.vms.iter().map(|vm| (VmKey::from(vm), NodeId(1))).collect();
    let entries = table::entries(&scan.vms, &homes, &config.dispatch).0;
    entries.into_iter().find(|entry| entry.name == name).unwrap()
}

fn shown(settings: &VmSettings) -> Vec<String> {
    settings.chosen.iter().map(ToString::to_string).collect()
}

#[test]
fn definitions_reach_the_table_of_the_kernel_scheduler() {
    let (mut host, config) = (Host::new(), Config::default());
    host.set_metadata("cosched=\"relaxed\" weight=\"200\" latency=\"prompt\" ignore=\"no\"");
    host.set_tags("a;instep-weight-300;instep-period-4.5ms;instep-cosched-never;z");
    let observation = host.observe();
    let web = entry(&observation, "web", &config);
    assert_eq!((web.weight, web.cosched, web.latency), (200, Cosched::Relaxed, Latency::Prompt));
    assert_eq!(web.home, Some(NodeId(1)));
    // A weight means the same as in the configuration: it takes the place of the cgroup's.
    let by_file =
        self::config("[discover]\nvm_settings = false\n[dispatch.vm.web]\nweight = 200\n");
    let mut bare = observation.scan.vms.clone();
    bare.iter_mut().for_each(|vm| vm.definition = Default::default());
    let bare = table::entries(&bare, &Default::default(), &by_file.dispatch).0;
    let bare = bare.iter().find(|entry| entry.name == "web").unwrap();
    assert_eq!((web.own_weight, web.weight), (Some(200), 200));
    assert_eq!((bare.own_weight, bare.weight), (web.own_weight, web.weight));
    let db = entry(&observation, "db", &config);
    assert_eq!((db.weight, db.cosched), (300, Cosched::Never));
    assert_eq!(db.period, Duration::from_micros(4500));
    // The next look knows what changed.
    host.set_metadata("weight=\"201\"");
    let web = entry(&host.observe(), "web", &config);
    assert_eq!((web.weight, web.cosched, web.latency), (201, Cosched::Auto, Latency::Normal));
}

#[test]
fn each_setting_is_of_the_first_that_says_it() {
    let mut host = Host::new();
    host.set_metadata("weight=\"200\"");
    let text = "[dispatch.vm.web]\nweight = 700\ncosched = 'never'\nperiod = '96ms'\n";
    let config = config(text);
    let observation = host.observe();
    let web = entry(&observation, "web", &config);
    assert_eq!(
        (web.weight, web.cosched, web.period),
        (200, Cosched::Never, Duration::from_millis(96))
    );
    let settings = VmSettings::of(facts(&observation, "web"), config.dispatch.vm.get("web"));
    let expected = [
        "weight 200 (libvirt metadata)",
        "period 96ms (configuration file)",
        "cosched never (configuration file)",
    ];
    assert_eq!(shown(&settings), expected);
    let json = serde_json::to_value(&settings.chosen[0]).unwrap();
    assert_eq!(
        json,
        serde_json::json!({"key": "weight", "value": "200", "source": "libvirt_metadata"})
    );
    let mut both = facts(&observation, "web").clone();
    let setting =
        |value: &str, origin| Setting { key: "weight".into(), value: value.into(), origin };
    both.definition.settings =
        vec![setting("1", Origin::ProxmoxTag), setting("2", Origin::LibvirtMetadata)];
    assert_eq!(shown(&VmSettings::of(&both, None)), ["weight 2 (libvirt metadata)"]);
    both.definition.settings[1].value = "200%".to_owned();
    let settings = VmSettings::of(&both, None);
    assert_eq!(
        (shown(&settings), settings.problems.len()),
        (vec!["weight 1 (Proxmox tag)".into()], 1)
    );
}

#[test]
fn wrong_value_is_reported_once_and_the_other_settings_hold() {
    let mut host = Host::new();
    let (mut reported, mut heard) = (Reported::default(), Heard::default());
    host.set_metadata("weight=\"200ms\" cosched=\"relaxed\" wieght=\"1\" ignore=\"\"");
    host.set_tags("instep-latency-fast;instep-weight-7;instep-home");
    let observation = host.observe();
    let web = entry(&observation, "web", &Config::default());
    assert_eq!((web.weight, web.cosched), (100, Cosched::Relaxed));
    assert_eq!(entry(&observation, "db", &Config::default()).weight, 7);
    reported.note(&observation.scan, &mut heard);
    reported.note(&host.observe().scan, &mut heard);
    let all = heard.0.join("\n");
    assert_eq!(heard.0.len(), 5, "{all}");
    let whose = format!("the VM web (process {}): ", facts(&observation, "web").pid);
    let path = |place: &str| host.dir.path().join(place).display().to_string();
    let status = path("run/libvirt/qemu/web.xml");
    for (said, why) in [
        ("weight=\"200ms\"", "counts for nothing; it may be a number from 1 to 10000"),
        ("ignore=\"\"", "counts for nothing; it may be yes or no"),
        ("wieght=\"1\"", "is unknown; known are weight, period,"),
    ] {
        let line = format!("{whose}the attribute {said} of its libvirt metadata ({status}) {why}");
        assert!(all.contains(&line), "{line}\n{all}");
    }
    let number = facts(&observation, "db").pid;
    let tags = path(&format!("etc/pve/qemu-server/{number}.conf"));
    for (said, why) in
        [("latency-fast", "counts for nothing; it may be normal or prompt"), ("home", "is unknown")]
    {
        let line = format!("its Proxmox tag instep-{said} ({tags}) {why}");
        assert!(all.contains(&line), "{line}\n{all}");
    }
    // A mistake that is mended and made again is told again.
    host.set_metadata("weight=\"200\"");
    reported.note(&host.observe().scan, &mut heard);
    assert_eq!(heard.0.len(), 5);
    host.set_metadata("weight=\"0\"");
    reported.note(&host.observe().scan, &mut heard);
    assert!(heard.0.len() == 6 && heard.0[5].contains("weight=\"0\""), "{:?}", heard.0);
}

#[test]
fn unreadable_definition_is_reported_and_ends_nothing() {
    let mut host = Host::new();
    host.write("run/libvirt/qemu/web.xml", "<domstatus pid='1'><domain>");
    let observation = host.observe();
    let told: Vec<String> = problems(&observation.scan).collect();
    assert!(told.len() == 1 && told[0].contains("web.xml: it is"), "{told:?}");
    assert_eq!(observation.snapshot.vms.len(), 2);
    assert_eq!(entry(&observation, "web", &Config::default()).weight, 100);
}

#[test]
fn ignored_vm_is_left_alone_and_keeps_its_share() {
    for (by_tag, source) in [(false, "its libvirt metadata says"), (true, "its Proxmox tag says")] {
        let (mut host, config) = (Host::new(), Config::default());
        let decided = |observation: &mut Observation| {
            leave_ignored(&mut observation.snapshot, &observation.scan);
            decide(&observation.snapshot, &config, 1)
        };
        let before = decided(&mut host.observe());
        assert_eq!(before.vms.iter().filter(|verdict| verdict.selected).count(), 2);
        let name = if by_tag { "db" } else { "web" };
        if by_tag {
            host.set_tags("instep-ignore;instep-weight-300;instep-cosched-relaxed");
        } else {
            host.set_metadata("ignore=\"yes\" weight=\"300\" cosched=\"relaxed\"");
        }
        let mut observation = host.observe();
        let decision = decided(&mut observation);
        let id = VmId(facts(&observation, name).pid);
        assert!(decision.vms.iter().all(|verdict| verdict.vm != id));
        assert!(decision.actions.iter().all(|action| action.vm() != id));
        assert_eq!(decision.vms.iter().filter(|verdict| verdict.selected).count(), 1);
        let [left] = observation.snapshot.opaque.as_slice() else { panic!("one is left alone") };
        assert_eq!((left.id, left.vcpus), (id, 2));
        assert!(left.why.starts_with(source), "{}", left.why);
        let entry = entry(&observation, name, &config);
        assert_eq!((entry.weight, entry.cosched, entry.home), (300, Cosched::Never, None));
        let missing = keep_only(&mut observation.snapshot, &[name.to_owned()]);
        assert_eq!(missing, [name], "not even by its name");
    }
}

#[test]
fn operator_can_let_the_configuration_alone_count() {
    let mut host = Host::new();
    host.set_metadata("weight=\"200\" ignore=\"yes\"");
    let config = config("[discover]\nvm_settings = false\n[dispatch.vm.web]\nweight = 700\n");
    host.observer.read_definitions(config.discover.vm_settings);
    let mut observation = host.observe();
    leave_ignored(&mut observation.snapshot, &observation.scan);
    assert_eq!(observation.snapshot.vms.len(), 2);
    assert_eq!(entry(&observation, "web", &config).weight, 700);
    assert!(Config::default().discover.vm_settings);
}
