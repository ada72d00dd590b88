//! `instep topology`: a host's cores, caches and nodes as text and as JSON. Only shows; knows no
//! files and no policy.

use crate::args::TopologyArgs;
use crate::{Outcome, hypervisor, print, print_json};
use instep_core::idset::{CpuSet, IdSet};
use instep_core::topology::{CoreKind, Cpu, Node, Topology};
use instep_core::units::{Bytes, ClusterId, CoreId, CpuId, LlcId, NodeId, PackageId};
use instep_xen::source::Query;
use instep_xen::text::info;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Reads the topology of the host that the options name and prints it.
pub(crate) fn command(args: &TopologyArgs) -> anyhow::Result<Outcome> {
    let root = crate::observe::root(args.root.as_deref())?;
    let topology = match hypervisor::xen(args.hypervisor, args.root.as_deref())? {
        Some(source) => info::parse(&source.read(Query::Info)?)?.topology()?,
        None => instep_host::topology::read(&root)?,
    };
    if args.json {
        print_json(&view(&topology))?;
    } else {
        print(&draw(&topology, crate::text::width()))?;
    }
    Ok(Outcome::Fine)
}

/// The narrowest width that is drawn for.
const MIN_WIDTH: usize = 40;

/// Draws the host in lines of up to `width` columns: a line of counts, per node a line, per
/// last-level cache its cores in brackets with the numbers of their CPUs, a legend, and what was
/// wrong with the host's tables. At least 40 columns are taken; a single core is never broken.
pub(crate) fn draw(topology: &Topology, width: usize) -> String {
    let width = width.max(MIN_WIDTH);
    let mut out = String::new();
    wrap(&mut out, "", &words(&heading(topology)), width);
    for node in topology.nodes() {
        out.push('\n');
        draw_node(&mut out, topology, node, width);
    }
    out.push('\n');
    wrap(&mut out, "", &legend(topology), width);
    for warning in topology.warnings() {
        wrap(&mut out, "warning: ", &words(warning), width);
    }
    out
}

fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

fn heading(topology: &Topology) -> String {
    let counts = Counts::of(topology);
    let mut parts = vec![count(counts.cpus, "CPU"), count(counts.cores, "core")];
    if counts.clusters != counts.cores {
        parts.push(count(counts.clusters, "cluster"));
    }
    parts.push(count(counts.llcs, "LLC"));
    parts.push(count(counts.packages, "package"));
    parts.push(count(counts.nodes, "node"));
    parts.join(", ")
}

/// What the signs of this drawing mean, one entry a sign.
fn legend(topology: &Topology) -> Vec<Word> {
    let mut legend = vec!["[..] the CPUs of one core"];
    if topology.cpus().iter().any(|cpu| shares_l2(topology, cpu)) {
        legend.push("{..} cores that share an L2");
    }
    if topology.cpus().iter().any(|cpu| cpu.kind.is_some()) {
        legend.push("P performance, E efficient");
    }
    if topology.nodes().len() > 1 {
        legend.push("distance 10 is local");
    }
    legend.into_iter().map(|entry| Word::from(format!("{entry}  "))).collect()
}

/// Whether the CPU's cluster is more than its core and less than its last-level cache.
fn shares_l2(topology: &Topology, cpu: &Cpu) -> bool {
    let cluster = &topology.clusters()[cpu.cluster.0 as usize];
    *cluster != topology.cores()[cpu.core.0 as usize]
        && *cluster != topology.llcs()[cpu.llc.0 as usize]
}

fn draw_node(out: &mut String, topology: &Topology, node: &Node, width: usize) {
    let cpus: Vec<&Cpu> = topology.cpus().iter().filter(|cpu| cpu.node == node.id).collect();
    let packages: BTreeSet<PackageId> = cpus.iter().map(|cpu| cpu.package).collect();
    let llcs: BTreeSet<LlcId> = cpus.iter().map(|cpu| cpu.llc).collect();
    let mut line = vec![Word::from(format!("{} ", node.memory))];
    if topology.packages().len() > 1 && !packages.is_empty() {
        let numbers: Vec<String> = packages.iter().map(PackageId::to_string).collect();
        let word = if packages.len() == 1 { "package" } else { "packages" };
        line.push(Word::from(format!("{word} {} ", numbers.join(" "))));
    }
    if node.distances.len() > 1 {
        line.push(Word::from("distances".to_owned()));
        line.extend(node.distances.iter().map(|distance| Word::from(distance.to_string())));
    }
    wrap(out, &format!("node {}  ", node.id), &line, width);
    if cpus.is_empty() {
        out.push_str("  no CPUs, memory only\n");
    }
    let one_core =
        |cpu: &&Cpu| topology.llcs()[cpu.llc.0 as usize] == topology.cores()[cpu.core.0 as usize];
    if llcs.len() > 1 && packages.len() == 1 && cpus.iter().all(one_core) {
        let numbers: IdSet<LlcId> = llcs.into_iter().collect();
        let numbers =
            if numbers.to_string().len() > 12 { "s".into() } else { format!(" {numbers}") };
        draw_group(out, topology, &format!("  LLC{numbers}, one a core  "), &cpus, width);
        return;
    }
    for llc in llcs {
        let cpus: Vec<&Cpu> = cpus.iter().copied().filter(|cpu| cpu.llc == llc).collect();
        let place = match cpus.first() {
            Some(cpu) if packages.len() > 1 => format!(" package {}", cpu.package),
            _ => String::new(),
        };
        draw_group(out, topology, &format!("  LLC {llc}{place}  "), &cpus, width);
    }
}

/// The cores of some CPUs, those of one kind together, aligned where they take several lines.
fn draw_group(out: &mut String, topology: &Topology, prefix: &str, cpus: &[&Cpu], width: usize) {
    let mut prefix = prefix.to_owned();
    let kinds: BTreeSet<Option<CoreKind>> = cpus.iter().map(|cpu| cpu.kind).collect();
    for kind in &kinds {
        let cpus: Vec<&Cpu> = cpus.iter().copied().filter(|cpu| cpu.kind == *kind).collect();
        match kind {
            Some(CoreKind::Performance) => prefix.push_str("P "),
            Some(CoreKind::Efficient) => prefix.push_str("E "),
            None => {}
        }
        let mut cores = core_texts(topology, &cpus);
        let one_line: usize = prefix.len() + cores.iter().map(|core| core.len() + 1).sum::<usize>();
        if one_line > width + 1 {
            let widest = cores.iter().map(String::len).max().unwrap_or(0);
            cores.iter_mut().for_each(|core| *core = format!("{core:<widest$}"));
        }
        let cores: Vec<Word> = cores.into_iter().map(Word::from).collect();
        wrap(out, &prefix, &cores, width);
        let label = prefix.len() - if kind.is_some() { 2 } else { 0 };
        prefix = " ".repeat(label);
    }
}

/// `[0 4]` for every core, with a brace before the first and after the last core of a cluster
/// of several where the last-level cache has more than that cluster.
fn core_texts(topology: &Topology, cpus: &[&Cpu]) -> Vec<String> {
    let mut texts = Vec::new();
    let (mut clusters, mut cores) = (BTreeSet::<ClusterId>::new(), BTreeSet::<CoreId>::new());
    for cpu in cpus.iter().filter(|cpu| clusters.insert(cpu.cluster)) {
        let cluster = &topology.clusters()[cpu.cluster.0 as usize];
        let start = texts.len();
        for cpu in cluster.iter().filter_map(|cpu| topology.cpu(cpu)) {
            if cores.insert(cpu.core) && cpus.iter().any(|shown| shown.id == cpu.id) {
                let core = &topology.cores()[cpu.core.0 as usize];
                let threads: Vec<String> = core.iter().map(|cpu| cpu.to_string()).collect();
                texts.push(format!("[{}]", threads.join(" ")));
            }
        }
        if let (true, [first, .., last]) = (shares_l2(topology, cpu), &mut texts[start..]) {
            first.insert(0, '{');
            last.push('}');
        }
    }
    texts
}

/// What a line is not broken in.
struct Word {
    text: String,
    /// Whether it goes on from the word before without a blank.
    glued: bool,
}

impl From<String> for Word {
    fn from(text: String) -> Self {
        Self { text, glued: false }
    }
}

/// Words of a sentence; long lists of numbers may break after a comma.
fn words(text: &str) -> Vec<Word> {
    let mut words = Vec::new();
    for word in text.split(' ') {
        if word.len() < MIN_WIDTH / 2 {
            words.push(Word::from(word.to_owned()));
            continue;
        }
        let pieces = word.split_inclusive(',').enumerate();
        words.extend(pieces.map(|(at, piece)| Word { text: piece.to_owned(), glued: at > 0 }));
    }
    words
}

/// Writes `prefix` and the words in lines of up to `width`, later lines indented under the first
/// word. Blanks at the end of a word widen the gap after it.
fn wrap(out: &mut String, prefix: &str, words: &[Word], width: usize) {
    let mut line = prefix.to_owned();
    let indent = prefix.len();
    for word in words {
        let first = line.len() <= indent;
        let blank = if first || word.glued { "" } else { " " };
        if !first && line.len() + blank.len() + word.text.trim_end().len() > width {
            let _ = writeln!(out, "{}", line.trim_end());
            line = " ".repeat(indent);
        } else {
            line.push_str(blank);
        }
        line.push_str(&word.text);
    }
    let _ = writeln!(out, "{}", line.trim_end());
}

/// The JSON view, schema `instep.topology/1`. Ids are numbers; CPU sets are arrays of numbers;
/// online CPUs and nodes only. `cluster` and `kind` (`performance`, `efficient` or null) come on
/// top of what the schema promises of a CPU.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Topology")]
pub(crate) struct View<'a> {
    #[schemars(extend("const" = "instep.topology/1"))]
    schema: &'static str,
    counts: Counts,
    cpus: Vec<CpuView>,
    nodes: Vec<NodeView<'a>>,
    warnings: &'a [String],
}

#[derive(Debug, JsonSchema, Serialize)]
struct Counts {
    cpus: usize,
    cores: usize,
    clusters: usize,
    llcs: usize,
    packages: usize,
    nodes: usize,
}

#[derive(Debug, JsonSchema, Serialize)]
struct CpuView {
    id: CpuId,
    core: CoreId,
    llc: LlcId,
    package: PackageId,
    node: NodeId,
    cluster: ClusterId,
    kind: Option<CoreKind>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct NodeView<'a> {
    id: NodeId,
    memory_bytes: Bytes,
    cpus: &'a CpuSet,
    distances: &'a [u32],
}

impl Counts {
    fn of(topology: &Topology) -> Self {
        Self {
            cpus: topology.cpus().len(),
            cores: topology.cores().len(),
            clusters: topology.clusters().len(),
            llcs: topology.llcs().len(),
            packages: topology.packages().len(),
            nodes: topology.nodes().len(),
        }
    }
}

/// The view to serialize; keeps the order of the schema's keys.
pub(crate) fn view(topology: &Topology) -> View<'_> {
    let cpu = |cpu: &Cpu| CpuView {
        id: cpu.id,
        core: cpu.core,
        cluster: cpu.cluster,
        llc: cpu.llc,
        package: cpu.package,
        node: cpu.node,
        kind: cpu.kind,
    };
    let nodes = topology.nodes().iter().map(|node| NodeView {
        id: node.id,
        memory_bytes: node.memory,
        cpus: &node.cpus,
        distances: &node.distances,
    });
    View {
        schema: "instep.topology/1",
        counts: Counts::of(topology),
        cpus: topology.cpus().iter().map(cpu).collect(),
        nodes: nodes.collect(),
        warnings: topology.warnings(),
    }
}

#[cfg(test)]
#[path = "topology_tests.rs"]
mod tests;
