//! Groups CPUs into cores, clusters, LLCs, packages and nodes, and repairs tables that lie.
//!
//! Two CPUs share something when both say so (or one says so and the other says nothing); who
//! is linked by such pairs forms a group. Then, from the outside in: an LLC does not leave its
//! package or node (the kernel's scheduler cuts there too, `topology_sane()` in
//! arch/x86/kernel/smpboot.c, 6.18), a core is its threads joined with who shares an L1i, an LLC
//! grows to hold whole cores, a cluster is an L2 inside an LLC that holds whole cores. Where the
//! L2 is the last level (older Xeons) cluster and LLC are equal; where it is private, cluster and
//! core. Each repair is one sentence in [`Topology::warnings`]. Which of two contradicting tables
//! is the wrong one cannot be known here; the choice is the one that costs least when wrong.

use super::nodes::{NodePartition, assign_cpus, majority};
use super::partition::Partition;
use super::{CoreKind, Cpu, CpuFacts, NodeFacts, Topology};
use crate::idset::{CpuSet, MAX_ID};
use crate::units::{ClusterId, CoreId, CpuId, LlcId, PackageId};

/// No core has more hardware threads (POWER8 to POWER10 and SPARC M7 have 8).
const MAX_THREADS: usize = 8;

/// Facts from which no topology can be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// No CPU, or none with a number up to [`MAX_ID`].
    #[error("no online CPU (of numbers up to {MAX_ID}) is known")]
    NoCpus,
}

impl Topology {
    /// Builds a topology whose invariants hold whatever the facts say; what had to be repaired
    /// is in [`Topology::warnings`]. The order of the facts does not matter. O(n log n) in CPUs
    /// when the sharing lists agree, else O(n x length of a list).
    ///
    /// # Errors
    /// [`TopologyError::NoCpus`] when there is no CPU; nothing else.
    pub fn build(cpus: Vec<CpuFacts>, nodes: Vec<NodeFacts>) -> Result<Topology, TopologyError> {
        let mut warnings = Vec::new();
        let cpus = believable(cpus, &mut warnings);
        if cpus.is_empty() {
            return Err(TopologyError::NoCpus);
        }
        let groups = Groups::new(&cpus, nodes, &mut warnings);
        let kinds = kinds(&cpus, &groups.cores, &mut warnings);
        let (core, cores) = dense(&cpus, &groups.cores);
        let (cluster, clusters) = dense(&cpus, &groups.clusters);
        let (llc, llcs) = dense(&cpus, &groups.llcs);
        let (package, packages) = dense(&cpus, &groups.packages);
        let NodePartition { nodes, owner, merged } = groups.nodes;
        let placed = cpus.iter().enumerate().map(|(at, facts)| Cpu {
            id: CpuId(facts.id),
            core: CoreId(core[at]),
            cluster: ClusterId(cluster[at]),
            llc: LlcId(llc[at]),
            package: PackageId(package[at]),
            node: nodes[owner[at]].id,
            kind: kinds[at],
        });
        let cpus = placed.collect();
        Ok(Topology {
            cpus,
            nodes,
            cores,
            clusters,
            llcs,
            packages,
            merged_nodes: merged,
            warnings,
        })
    }
}

/// Ascending, one entry a number, all of which a set can hold.
fn believable(mut cpus: Vec<CpuFacts>, warnings: &mut Vec<String>) -> Vec<CpuFacts> {
    let all = cpus.len();
    cpus.retain(|cpu| cpu.id <= MAX_ID);
    if cpus.len() < all {
        warnings.push(format!("{} CPU numbers above {MAX_ID}: left out", all - cpus.len()));
    }
    cpus.sort_by(|a, b| key(a).cmp(&key(b)));
    let mut twice = CpuSet::new();
    cpus.dedup_by(|next, kept| {
        next.id == kept.id && {
            if next != kept {
                twice.insert(CpuId(kept.id));
            }
            true
        }
    });
    warn(warnings, &twice, "described twice; one description was kept");
    cpus
}

type Set<'a> = Option<&'a CpuSet>;

fn key(cpu: &CpuFacts) -> (u32, Option<u32>, [Set<'_>; 4], Option<CoreKind>) {
    let sets = [&cpu.thread_siblings, &cpu.l1i, &cpu.l2, &cpu.llc].map(Option::as_ref);
    (cpu.id, cpu.package, sets, cpu.kind)
}

fn warn(warnings: &mut Vec<String>, cpus: &CpuSet, what: &str) {
    if !cpus.is_empty() {
        warnings.push(format!("CPUs {cpus}: {what}"));
    }
}

/// The levels, each a division of the CPUs, each inside the next: cores, clusters, LLCs, then
/// packages and nodes, which may cross one another.
struct Groups {
    cores: Partition,
    clusters: Partition,
    llcs: Partition,
    packages: Partition,
    nodes: NodePartition,
}

impl Groups {
    fn new(cpus: &[CpuFacts], nodes: Vec<NodeFacts>, warnings: &mut Vec<String>) -> Self {
        let threads = agree(cpus, |cpu| cpu.thread_siblings.as_ref(), "core", warnings);
        let l1i = agree(cpus, |cpu| cpu.l1i.as_ref(), "L1i", warnings);
        let l2 = agree(cpus, |cpu| cpu.l2.as_ref(), "L2", warnings);
        let told = agree(cpus, last_level, "last-level cache", warnings);

        let packages = told_packages(cpus, &[&told, &threads]);
        let ids: Vec<CpuId> = cpus.iter().map(|cpu| CpuId(cpu.id)).collect();
        let by_package = Partition::by_key(packages.iter().enumerate().map(|(at, p)| p.ok_or(at)));
        let nodes = assign_cpus(&ids, nodes, &[&told, &by_package], warnings);
        let by_node = Partition::by_key(&nodes.owner);
        let packages = fill_packages(cpus, &packages, &nodes.owner, warnings);

        let home = packages.meet(&by_node);
        let llcs = fill_llcs(cpus, &told, &home, warnings);
        let inside = llcs.meet(&home);
        warn(
            warnings,
            &changed(cpus, &llcs, &inside),
            "their last-level cache spans packages or nodes (sub-NUMA clustering looks like \
             this); taken as one in each",
        );
        let cores = cores(cpus, &threads, &l1i, &l2, &inside, &home, warnings);
        let llcs = inside.join(&cores);
        warn(
            warnings,
            &changed(cpus, &llcs, &inside),
            "threads of one core list different last-level caches; taken as one",
        );
        let clusters = l2.meet(&llcs).join(&cores);
        let told_l2: Vec<bool> = cpus.iter().map(|cpu| cpu.l2.is_some()).collect();
        let mut odd = changed(cpus, &clusters, &l2);
        cpus.iter().zip(told_l2).filter(|(_, told)| !told).for_each(|(cpu, _)| {
            odd.remove(CpuId(cpu.id));
        });
        warn(warnings, &odd, "their L2 cuts a core or leaves a last-level cache; fitted to both");
        Self { cores, clusters, llcs, packages, nodes }
    }
}

fn last_level(cpu: &CpuFacts) -> Option<&CpuSet> {
    cpu.llc.as_ref().or(cpu.l2.as_ref())
}

fn changed(cpus: &[CpuFacts], a: &Partition, b: &Partition) -> CpuSet {
    a.differences(b).into_iter().map(|at| CpuId(cpus[at].id)).collect()
}

/// Groups of CPUs that share something by their own lists, of which `fact` gives one. Both
/// sides must say so, unless one side says nothing.
fn agree<'a>(
    cpus: &'a [CpuFacts],
    fact: impl Fn(&'a CpuFacts) -> Option<&'a CpuSet>,
    what: &str,
    warnings: &mut Vec<String>,
) -> Partition {
    let online: CpuSet = cpus.iter().map(|cpu| CpuId(cpu.id)).collect();
    let claims: Vec<Option<CpuSet>> =
        cpus.iter().map(|cpu| Some(fact(cpu)?.and(&online))).collect();
    let index = |id: CpuId| cpus.binary_search_by_key(&id.0, |cpu| cpu.id).ok();
    let mut links = Vec::new();
    let unanimous =
        Partition::by_key(claims.iter().enumerate().map(|(at, c)| c.as_ref().ok_or(at)));
    for members in unanimous.groups() {
        let Some(claim) = &claims[members[0]] else { continue };
        let said_by: CpuSet = members.iter().map(|at| CpuId(cpus[*at].id)).collect();
        for from in members.iter().copied() {
            if said_by == *claim {
                links.push((members[0], from));
                continue;
            }
            let agrees = |to: &usize| match &claims[*to] {
                Some(claim) => claim.contains(CpuId(cpus[from].id)),
                None => true,
            };
            links.extend(claim.iter().filter_map(index).filter(agrees).map(|to| (from, to)));
        }
    }
    let groups = Partition::by_pairs(cpus.len(), links);
    let mut disputed = CpuSet::new();
    for members in groups.groups() {
        let group: CpuSet = members.iter().map(|at| CpuId(cpus[*at].id)).collect();
        let differ = members.iter().filter(|at| claims[**at].as_ref().is_some_and(|c| *c != group));
        disputed.extend(differ.map(|at| CpuId(cpus[*at].id)));
    }
    warn(
        warnings,
        &disputed,
        &format!("lists of CPUs that share a {what} contradict one another; used is what both say"),
    );
    groups
}

/// The package number of every CPU: its own word, else that of most in the nearest group.
fn told_packages(cpus: &[CpuFacts], near: &[&Partition]) -> Vec<Option<u32>> {
    let own: Vec<Option<u32>> = cpus.iter().map(|cpu| cpu.package).collect();
    let votes: Vec<_> = near.iter().map(|near| majority(near, &own)).collect();
    let fill = |(at, own): (usize, &Option<u32>)| {
        own.or_else(|| near.iter().zip(&votes).find_map(|(n, v)| v.get(&n.label(at)).copied()))
    };
    own.iter().enumerate().map(fill).collect()
}

/// CPUs whose package nobody knows: one package in each node.
fn fill_packages(
    cpus: &[CpuFacts],
    told: &[Option<u32>],
    owner: &[usize],
    warnings: &mut Vec<String>,
) -> Partition {
    let silent = cpus.iter().filter(|cpu| cpu.package.is_none());
    let silent: CpuSet = silent.map(|cpu| CpuId(cpu.id)).collect();
    warn(
        warnings,
        &silent,
        "no package number; put with those of the same cache or core, else one package a node",
    );
    Partition::by_key(told.iter().zip(owner).map(|(told, owner)| told.ok_or(owner)))
}

/// CPUs of which nobody says what cache they share: one LLC for each package and node.
fn fill_llcs(
    cpus: &[CpuFacts],
    told: &Partition,
    home: &Partition,
    warnings: &mut Vec<String>,
) -> Partition {
    let mut known = vec![false; cpus.len()];
    for (at, cpu) in cpus.iter().enumerate() {
        known[told.label(at)] |= last_level(cpu).is_some();
    }
    let known = |at: usize| known[told.label(at)];
    let silent: CpuSet =
        (0..cpus.len()).filter(|at| !known(*at)).map(|at| CpuId(cpus[at].id)).collect();
    warn(warnings, &silent, "no cache is described; one last-level cache a package assumed");
    let key = |at| if known(at) { (0, told.label(at)) } else { (1, home.label(at)) };
    Partition::by_key((0..cpus.len()).map(key))
}

/// Threads of a core joined with who shares an L1i, where that can be.
fn cores(
    cpus: &[CpuFacts],
    threads: &Partition,
    l1i: &Partition,
    l2: &Partition,
    llcs: &Partition,
    home: &Partition,
    warnings: &mut Vec<String>,
) -> Partition {
    let (threads, many) = only(cpus, threads, |group| group.len() <= MAX_THREADS);
    warn(warnings, &many, "more threads listed than a core can have; taken as cores of their own");
    let plausible = |group: &[usize]| {
        let one =
            |level: &Partition| group.iter().all(|at| level.label(*at) == level.label(group[0]));
        let l2 = group.iter().any(|at| cpus[*at].l2.is_none()) || one(l2);
        group.len() <= MAX_THREADS && l2 && one(llcs)
    };
    let (l1i, wide) = only(cpus, l1i, plausible);
    warn(warnings, &wide, "their L1i is listed as shared more widely than it can be; ignored");
    let joined = threads.join(&l1i);
    let (_, large) = only(cpus, &joined, |group| group.len() <= MAX_THREADS);
    warn(warnings, &large, "threads and L1i together make a core larger than any; L1i ignored");
    let apart = |at: usize| large.contains(CpuId(cpus[at].id));
    let joined = Partition::by_key(
        (0..cpus.len())
            .map(|at| if apart(at) { (1, threads.label(at)) } else { (0, joined.label(at)) }),
    );
    let cores = joined.meet(home);
    warn(
        warnings,
        &changed(cpus, &joined, &cores),
        "threads of one core are in different packages or nodes; taken as cores of their own",
    );
    cores
}

/// The division with groups that fail `test` dissolved, and their CPUs.
fn only(
    cpus: &[CpuFacts],
    groups: &Partition,
    test: impl Fn(&[usize]) -> bool,
) -> (Partition, CpuSet) {
    let mut dissolved = CpuSet::new();
    let mut alone = vec![false; cpus.len()];
    for group in groups.groups().into_iter().filter(|group| !test(group)) {
        for at in group {
            dissolved.insert(CpuId(cpus[at].id));
            alone[at] = true;
        }
    }
    let key = |at| if alone[at] { (1, at) } else { (0, groups.label(at)) };
    (Partition::by_key((0..cpus.len()).map(key)), dissolved)
}

/// The kind of every CPU's core; none at all unless the host has both kinds.
fn kinds(
    cpus: &[CpuFacts],
    cores: &Partition,
    warnings: &mut Vec<String>,
) -> Vec<Option<CoreKind>> {
    let mut kinds: Vec<Option<CoreKind>> = cpus.iter().map(|cpu| cpu.kind).collect();
    let mut mixed = CpuSet::new();
    for core in cores.groups() {
        if core.iter().any(|at| kinds[*at] != kinds[core[0]]) {
            mixed.extend(core.iter().map(|at| CpuId(cpus[*at].id)));
            core.iter().for_each(|at| kinds[*at] = None);
        }
    }
    warn(warnings, &mixed, "threads of one core differ in kind; their kind is taken as unknown");
    let has = |kind| kinds.contains(&Some(kind));
    if !(has(CoreKind::Performance) && has(CoreKind::Efficient)) {
        kinds.fill(None);
    }
    kinds
}

/// Dense group numbers of every CPU, and the groups by number.
fn dense(cpus: &[CpuFacts], groups: &Partition) -> (Vec<u32>, Vec<CpuSet>) {
    let mut number = vec![0; cpus.len()];
    let mut sets = Vec::new();
    for (id, members) in (0u32..).zip(groups.groups()) {
        members.iter().for_each(|at| number[*at] = id);
        sets.push(members.iter().map(|at| CpuId(cpus[*at].id)).collect());
    }
    (number, sets)
}

#[cfg(test)]
#[path = "build_tests.rs"]
mod tests;
