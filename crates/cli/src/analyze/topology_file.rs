//! A host's topology: what `instep topology --json` printed there, or, for a trace that has none, this
//! host's where the trace seems to be of it.

use anyhow::Context as _;
use instep_core::topology::Topology;
use instep_host::Root;
use instep_trace::stream::Header;
use instep_trace::topology::TopologyDocument;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// A host of 4096 CPUs takes 1 MB.
const MAX_FILE: u64 = 64 << 20;

/// Reads the file.
pub(crate) fn read(path: &Path) -> anyhow::Result<Topology> {
    let shown = path.display();
    let mut text = String::new();
    let file = File::open(path).with_context(|| format!("cannot read {shown}"))?;
    file.take(MAX_FILE)
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read {shown}"))?;
    parse(&text).with_context(|| {
        format!("{shown}: make it on that host with `instep topology --json > FILE`")
    })
}

fn parse(text: &str) -> anyhow::Result<Topology> {
    let document: TopologyDocument = serde_json::from_str(text).context("no JSON of a topology")?;
    document.topology().map_err(anyhow::Error::msg)
}

/// The topology of the host under `root`, when the trace tells none and was recorded by the kernel
/// that runs there, on as many CPUs, under its name; with why that is thought.
pub(super) fn inferred(header: &Header, root: &Root) -> Option<(Topology, String)> {
    if header.topology.is_some() {
        return None;
    }
    let own =
        |file: &str| Some(root.read(format!("proc/sys/kernel/{file}")).ok()?.trim().to_owned());
    let release =
        header.release.as_ref().filter(|release| own("osrelease").as_ref() == Some(release))?;
    if header.hostname.as_ref().is_some_and(|name| own("hostname").as_ref() != Some(name)) {
        return None;
    }
    let topology = instep_host::topology::read(root).ok()?;
    if header.cpus.is_none_or(|cpus| cpus as usize != topology.cpus().len()) {
        return None;
    }
    let why = format!(
        "the trace has no cores, caches and nodes; those of this machine are used, as it has as \
         many CPUs and runs the same kernel ({release}): if it was recorded on another host, give \
         that host's with --topology FILE"
    );
    Some((topology, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_hosts_topology_is_used_only_for_a_like_kernel_and_size() {
        let root = Root::live();
        let own = |file: &str| root.read(format!("proc/sys/kernel/{file}")).unwrap();
        let (release, cpus) =
            (own("osrelease").trim().to_owned(), instep_host::topology::read(&root));
        let cpus = cpus.unwrap().cpus().len() as u32;
        let same = Header { release: Some(release), cpus: Some(cpus), ..Header::default() };
        let (topology, why) = inferred(&same, &root).unwrap();
        assert!(topology.cpus().len() == cpus as usize && why.contains("--topology FILE"));
        let larger = Header { cpus: Some(cpus + 1), ..same.clone() };
        let older = Header { release: Some("2.6.18".to_owned()), ..same.clone() };
        let named = Header { hostname: Some("elsewhere.example".to_owned()), ..same.clone() };
        let told = Header { topology: Some(topology), ..same };
        for other in [larger, older, named, told] {
            assert!(inferred(&other, &root).is_none());
        }
    }
}
