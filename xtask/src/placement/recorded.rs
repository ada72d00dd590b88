//! Recorded machines: unpacks copies of /proc and /sys and reads their topology, as the JSON of `instep topology`.

use anyhow::{Context, Result, bail};
use instep_core::topology::Topology;
use instep_host::Root;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directories of a copy that are not read.
const UNREAD: [&str; 5] = ["cpuidle", "hugepages", "memory[0-9]*", "pci*", "thermal_throttle"];

/// A machine's name and its topology as JSON.
pub(crate) type Machine = (String, String);

/// The machines that are there, and why others, or all, are not. They lie in the folder `topologies` of the shared data, which
/// `INSTEP_SHARED_DATA` names, or which is beside the repository.
pub(crate) fn read_machines(root: &Path) -> Result<(Vec<Machine>, Vec<String>)> {
    let data = std::env::var_os("INSTEP_SHARED_DATA").map(PathBuf::from);
    let dir = data.unwrap_or_else(|| root.join("../shared/data")).join("topologies");
    if !dir.is_dir() {
        let why = "no recorded machine: there is no folder of them (set INSTEP_SHARED_DATA)";
        return Ok((Vec::new(), vec![why.to_owned()]));
    }
    let entries = dir.read_dir().with_context(|| format!("cannot list {}", dir.display()))?;
    let mut archives: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    archives.retain(|path| path.to_string_lossy().ends_with(".tar.bz2"));
    archives.sort();
    let (mut machines, mut why) = (Vec::new(), Vec::new());
    for archive in archives {
        let name = archive.file_name().unwrap_or_default().to_string_lossy();
        let name = name.trim_end_matches(".tar.bz2").to_owned();
        match read_machine(&archive) {
            Ok(json) => machines.push((name, json)),
            Err(error) => why.push(format!("{name} is left out: {error:#}")),
        }
    }
    Ok((machines, why))
}

fn read_machine(archive: &Path) -> Result<String> {
    let dir = tempfile::tempdir().context("cannot make a directory")?;
    let tar = Command::new("tar")
        .arg("-xjf")
        .arg(archive)
        .arg("-C")
        .arg(dir.path())
        .args(UNREAD.map(|name| format!("--exclude=*/{name}")))
        .output()
        .context("tar does not run")?;
    if !tar.status.success() {
        bail!("tar (with bzip2): {}", String::from_utf8_lossy(&tar.stderr).trim());
    }
    let top = dir.path().read_dir()?.next().context("it is empty")??.path();
    let topology = instep_host::topology::read(&Root::at(&top))?;
    if let Some(warning) = topology.warnings().first() {
        bail!("its tables are wrong: {warning}");
    }
    Ok(view(&topology)?.to_string())
}

/// What the simulator reads of a topology.
fn view(topology: &Topology) -> Result<Value> {
    let node = |node: &instep_core::topology::Node| {
        json!({
            "id": node.id,
            "memory_bytes": node.memory.0,
            "cpus": node.cpus.iter().map(|cpu| cpu.0).collect::<Vec<u32>>(),
            "distances": node.distances,
        })
    };
    let nodes: Vec<Value> = topology.nodes().iter().map(node).collect();
    let cpus = serde_json::to_value(topology.cpus()).context("the CPUs are no JSON")?;
    Ok(json!({ "schema": "instep.topology/1", "cpus": cpus, "nodes": nodes }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::topology::{CpuFacts, NodeFacts};
    use instep_core::units::{Bytes, CpuId};

    #[test]
    fn a_view_names_what_each_cpu_and_node_is() {
        let cpus = (0..2).map(|id| CpuFacts { id, ..CpuFacts::default() }).collect();
        let both = [CpuId(0), CpuId(1)].into_iter().collect();
        let node = NodeFacts { id: 0, cpus: both, memory: Bytes(4096), distances: vec![10] };
        let view = view(&Topology::build(cpus, vec![node]).unwrap()).unwrap();
        assert_eq!(view["cpus"][1]["core"], 1);
        assert_eq!(view["cpus"][1]["node"], 0);
        assert_eq!(
            view["nodes"][0],
            json!({
                "id": 0, "memory_bytes": 4096, "cpus": [0, 1], "distances": [10]
            })
        );
    }
}
