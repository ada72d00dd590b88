//! What a cycle publishes of a made host.

use super::*;
use crate::config::HistoryConfig;
use crate::published::{DAY, HISTORY, HOST, PublishedCycle};
use crate::testing::Heard;
use instep_core::idset::CpuSet;
use instep_core::units::{Bytes, CpuId, Milli, Nanos};
use instep_host::Root;
use instep_host::discover::ScanOptions;
use instep_madehost::{HostSpec, MadeHost, VcpuSpec, VmSpec, Vmm};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// A cycle of a host of two nodes with this many VMs, in which every second change was refused.
fn done(dir: &Path, vms: u32) -> Done {
    let mut made = MadeHost::new(HostSpec::new(2, 8).threads(2));
    for number in 0..vms {
        let mut vm = VmSpec::new(
            &format!("vm-{number}"),
            Vmm::Libvirt,
            4,
            NodeId(number % 2),
            Bytes::from_mib(64),
        );
        let vcpu =
            |cpu| VcpuSpec { load: Milli(400), cpu: Some(CpuId(cpu)), ..VcpuSpec::default() };
        vm.vcpus = (0..4).map(|cpu| vcpu((number + cpu) % 32)).collect();
        made.push(vm);
    }
    made.write(dir).unwrap();
    let mut observer = Observer::new(Root::at(dir), ScanOptions::once()).unwrap();
    let observation = observer.observe(None, Some(Nanos::SECOND)).unwrap();
    let vms = &observation.snapshot.vms;
    let actions = vms.iter().flat_map(|vm| {
        vm.vcpus.iter().map(|vcpu| Action::SetVcpuAffinity {
            vm: vm.id,
            vcpu: vcpu.index,
            tid: vcpu.tid,
            cpus: CpuSet::parse_list("0-3").unwrap(),
            why: instep_core::reason::Reason::PolicyNone,
        })
    });
    let decision = Decision { actions: actions.collect(), ..Decision::default() };
    let outcome =
        |number: usize| if number.is_multiple_of(2) { crate::record::DONE } else { "refused" };
    let outcomes = (0..decision.actions.len()).map(|number| outcome(number).to_owned()).collect();
    let mut done = Done::of(SystemTime::now(), observation, decision, Vec::new());
    done.outcomes = outcomes;
    done
}

fn read(state: &Path, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(state.join(name)).unwrap()).unwrap()
}

#[test]
fn present_and_plan_of_each_vcpu_are_published() {
    let (dir, state) =
        (instep_madehost::scratch_dir().unwrap(), instep_madehost::scratch_dir().unwrap());
    let done = done(dir.path(), 3);
    let config = Config::default();
    let record = done.record(1, &config, false);
    let run = RunState::now("instep", 1, Duration::from_secs(60)).unwrap();
    let config = HistoryConfig { dir: state.path().join("h"), size: Bytes::from_mib(16) };
    let mut heard = Heard::default();
    let mut keeper = Keeper::begin(state.path(), &config, &mut heard);
    done.publish(&record, (&run, None), &mut keeper, &mut heard);
    keeper.end();
    assert_eq!(heard.0, [""; 0]);
    let host = read(state.path(), HOST);
    assert_eq!(host["nodes"].as_array().unwrap().len(), 2);
    let vms = host["vms"].as_array().unwrap();
    assert_eq!(vms.len(), 3);
    for vm in vms {
        let vcpus = vm["vcpus"].as_array().unwrap();
        assert_eq!((vcpus.len(), vm["used_milli"].as_u64()), (4, Some(1600)), "{vm}");
        assert_eq!(
            (vcpus[0]["cpus"].as_str(), vcpus[0]["was"].as_str()),
            (Some("0-3"), Some("0-31"))
        );
        assert!(vcpus[0]["planned"].is_null(), "it has what was planned");
        assert_eq!(vcpus[1]["cpus"], "0-31", "it was refused");
        assert_eq!(vcpus[1]["planned"], serde_json::json!(["0-3", "refused"]));
    }
    let history = read(state.path(), HISTORY);
    assert_eq!(history["vms"].as_array().unwrap().len(), 3);
    assert_eq!(history["vms"][0]["samples"][0][0], 1600);
    let changes = history["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 6, "one that was done and one that was refused of each VM");
    assert!(changes.iter().all(|change| change["threads"] == 2), "{changes:?}");
    // The same is kept, and can be read again.
    let day = read(&config.dir, DAY);
    assert_eq!((&day["vms"], &day["changes"]), (&history["vms"], &history["changes"]));
    let cursor = instep_history::Cursor::open(&config.dir).unwrap();
    let line = cursor.moment().unwrap().line;
    let kept: Value = serde_json::from_slice(line).unwrap();
    assert_eq!((&kept["host"], &kept["changes"]), (&host, &history["changes"]));
    let moment = PublishedCycle::parse(line).unwrap();
    assert_eq!((moment.host.vms.len(), moment.changes.len()), (3, 6));
    let vcpu = &moment.host.vms[0].vcpus[0];
    assert_eq!((vcpu.cpus.as_str(), vcpu.cpu), ("0-3", Some(CpuId(0))));
}
