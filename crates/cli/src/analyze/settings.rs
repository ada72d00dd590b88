//! What the user tells of a trace beforehand: VMs and their threads, weights, names, topology. A name or
//! a thread that the trace does not have is a slip of the pen, and an error; so is a topology without
//! CPUs that the trace has, and a trace of which nothing is left.

use super::{facts, topology_file};
use crate::args::AnalyzeArgs;
use crate::text::plural;
use anyhow::Context as _;
use instep_core::topology::Topology;
use instep_core::units::Nanos;
use instep_trace::analysis::AnalysisSettings;
use instep_trace::analysis::discover::FoundVm;
use instep_trace::analysis::report::AnalysisReport;
use instep_trace::stream::Tally;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What the options say, none of it held against a trace yet.
pub(super) fn of_options(args: &AnalyzeArgs) -> anyhow::Result<AnalysisSettings> {
    let mut vms = named_vms(&args.vms)?;
    if let Some(dir) = &args.facts {
        let known = facts::read(dir)?;
        vms.extend(known.into_iter().filter(|vm| !vms_claim(&vms, vm)).collect::<Vec<_>>());
    }
    let topology: Option<Topology> =
        args.topology.as_deref().map(topology_file::read).transpose()?;
    Ok(AnalysisSettings {
        vms,
        topology,
        weights: weights(&args.weights)?,
        inferred: None,
        quantum: Nanos(args.quantum.as_nanos() as u64),
        period: Nanos(args.period.as_nanos() as u64),
        edges: true,
    })
}

/// Whether a thread of `vm` was named for another VM.
fn vms_claim(vms: &[FoundVm], vm: &FoundVm) -> bool {
    let is_claimed = |tid| vms.iter().any(|vm| vm.vcpus.iter().any(|(_, own)| *own == tid));
    vm.vcpus.iter().any(|(_, tid)| is_claimed(*tid))
}

/// The VMs of all --vm: a name, and a thread, belongs to one only.
fn named_vms(texts: &[String]) -> anyhow::Result<Vec<FoundVm>> {
    let (mut names, mut tids) = (BTreeSet::new(), BTreeSet::new());
    let mut vms = Vec::new();
    for text in texts {
        let vm = named_vm(text)?;
        anyhow::ensure!(
            names.insert(vm.name.clone()),
            "--vm {text}: VM {} is named twice; one --vm lists all its threads",
            vm.name
        );
        for (_, tid) in &vm.vcpus {
            anyhow::ensure!(
                tids.insert(*tid),
                "--vm {text}: thread {tid} is named twice; a thread runs one vCPU of one VM"
            );
        }
        vms.push(vm);
    }
    Ok(vms)
}

/// `NAME=TID,TID,...`: the threads of vCPU 0, 1 and so on.
fn named_vm(text: &str) -> anyhow::Result<FoundVm> {
    let form = || format!("--vm {text}: takes NAME=TID,TID,... (threads of vCPU 0, 1, ...)");
    let (name, tids) = text.split_once('=').with_context(form)?;
    let number = |tid: &str| {
        let parsed = tid.trim().parse::<u32>().ok();
        parsed.with_context(|| format!("{}; `{tid}` is no thread's number", form()))
    };
    let tids = tids.split(',').map(number).collect::<anyhow::Result<Vec<u32>>>()?;
    anyhow::ensure!(!name.is_empty(), form());
    let vcpus = tids.into_iter().enumerate().map(|(index, tid)| (index as u32, tid)).collect();
    Ok(FoundVm { name: name.to_owned(), pid: None, vcpus })
}

/// The weights of all --weight.
fn weights(texts: &[String]) -> anyhow::Result<BTreeMap<String, u32>> {
    let mut weights = BTreeMap::new();
    for text in texts {
        let (name, weight) = weight(text)?;
        let before = weights.insert(name, weight);
        anyhow::ensure!(before.is_none(), "--weight {text}: this VM has a --weight already");
    }
    Ok(weights)
}

/// `NAME=WEIGHT`.
fn weight(text: &str) -> anyhow::Result<(String, u32)> {
    let form = || format!("--weight {text}: takes NAME=WEIGHT, such as db=200 (1 to 10000)");
    let (name, weight) = text.rsplit_once('=').with_context(form)?;
    let weight = weight.parse().ok().filter(|weight| (1..=10_000).contains(weight));
    Ok((name.to_owned(), weight.with_context(form)?))
}

/// A trace that broke off before its first event is no empty one: it tells nothing.
pub(super) fn ensure_begun(path: &Path, tally: &Tally) -> anyhow::Result<()> {
    if let Some(why) = tally.cut.as_ref().filter(|_| tally.records == 0) {
        anyhow::bail!(
            "{}: no event can be read of it: {why}; copy it again whole, or record anew",
            super::name(path)
        );
    }
    Ok(())
}

/// Holds what the options name against what the trace has.
pub(super) fn ensure_known(
    report: &AnalysisReport,
    args: &AnalyzeArgs,
    settings: &AnalysisSettings,
) -> anyhow::Result<()> {
    if let Some((file, topology)) = args.topology.as_ref().zip(settings.topology.as_ref()) {
        // CPUs may be off line: the highest number counts.
        let last = topology.cpus().iter().map(|cpu| cpu.id.0 as usize + 1).max().unwrap_or(0);
        anyhow::ensure!(
            report.host.cpus <= last,
            "--topology {}: that host has {}, and the trace shows {}; make it on the host that was \
             recorded",
            file.display(),
            plural(topology.cpus().len(), "CPU"),
            report.host.cpus
        );
    }
    for text in &args.vms {
        let vm = named_vm(text)?;
        let is_unseen = |tid: &u32| report.unseen.contains(tid);
        let unseen: Vec<String> =
            vm.vcpus.iter().map(|(_, tid)| *tid).filter(is_unseen).map(|t| t.to_string()).collect();
        anyhow::ensure!(
            unseen.is_empty(),
            "--vm {text}: the trace does not know thread {}; `instep analyze` without --vm lists \
             the vCPU threads that it finds",
            unseen.join(", ")
        );
    }
    if let Some(name) = report.strangers.first() {
        let names: Vec<&str> = report.vms.iter().map(|vm| vm.name.as_str()).collect();
        let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        anyhow::bail!("--weight {name}: the trace has no such VM; it has {has}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_is_named_by_its_threads() {
        let vm = named_vm("db=158,161").unwrap();
        assert_eq!((vm.name.as_str(), vm.vcpus), ("db", vec![(0, 158), (1, 161)]));
        for wrong in ["db", "db=", "=1", "db=x"] {
            assert!(named_vm(wrong).is_err(), "{wrong}");
        }
        let said = crate::error_text(&named_vm("db=1,abc").unwrap_err());
        assert!(said.contains("`abc` is no thread's number"), "{said}");
        assert!(said.contains("NAME=TID,TID") && !said.contains("digit"), "{said}");
    }

    #[test]
    fn a_thread_and_a_name_are_of_one_vm() {
        let said = |vms: &[&str]| {
            let vms: Vec<String> = vms.iter().map(|vm| (*vm).to_owned()).collect();
            named_vms(&vms).map_err(|error| error.to_string())
        };
        assert_eq!(said(&["a=1,2", "b=3"]).unwrap().len(), 2);
        assert!(said(&["a=1,1"]).unwrap_err().contains("thread 1 is named twice"));
        assert!(said(&["a=1,2", "b=2"]).unwrap_err().contains("--vm b=2: thread 2 is named"));
        assert!(said(&["a=1", "a=2"]).unwrap_err().contains("VM a is named twice"));
    }

    #[test]
    fn a_weight_is_named_by_its_vm() {
        assert_eq!(weight("db=200").unwrap(), ("db".to_owned(), 200));
        for wrong in ["db", "db=", "db=0", "db=10001", "db=-1"] {
            assert!(weight(wrong).is_err(), "{wrong}");
        }
        let twice = weights(&["db=2".to_owned(), "db=3".to_owned()]);
        assert!(twice.unwrap_err().to_string().contains("--weight db=3"));
    }
}
