//! The rule by which numad places processes, as a baseline (numad.c of numad 0.5git, functions `manage_loads`,
//! `pick_numa_nodes` and `update_nodes`, default options).
//!
//! 1. Candidates are VMs that use more than half a CPU and 300 MiB. Those that are not bound yet come first, the largest
//!    product of used CPU time and memory first.
//! 2. A candidate asks for what it uses by 0.85 (target utilisation), and for no more CPUs than vCPUs.
//! 3. A node offers its free memory and its free CPU time, in which a second thread of a core counts a fifth. What the
//!    candidate itself uses there counts as free, its memory a little more than whole, so that it rather stays.
//! 4. A node's value is the product of both, what is needed weighted more than what is beyond: (10 needed + 4 beyond)
//!    of memory times (6 needed + 1 beyond) of CPU time.
//! 5. As many nodes as the request needs at least are valued together, each by its distance squared; the best
//!    node is taken, then the next near it, until the request is met. CPU time may lack half of the margin on a node,
//!    and does not count if the host has enough in all.
//! 6. The VM is bound to these nodes, and its memory moves there. A bound VM stays where it is if its nodes are
//!    the same and nine tenths of its memory lie there.
//!
//! numad decides for one process at a time and for a bound one every five minutes; here a cycle decides for all in turn,
//! and free memory and CPU time follow. It knows no caches and gives no cores.

use super::state::State;
use instep_core::idset::NodeSet;
use instep_core::snapshot::Snapshot;
use instep_core::topology::Node;

/// CPU time, hundredths of a CPU, and memory, MiB, that a candidate uses more than.
const CANDIDATE: [i64; 2] = [50, 300];
/// Per cent of what it asks for that a process shall use.
const TARGET: i64 = 85;
/// What a further thread of a core is worth, per cent of a CPU.
const THREAD: i64 = 20;
/// Per cent of its memory that lies on a bound process's nodes at least.
const LOCALITY: i64 = 90;
/// MiB of a node that are not counted on.
const MARGIN: i64 = 100;

/// Hundredths of a CPU and MiB.
#[derive(Clone, Copy, Debug, Default)]
struct Resources {
    cpus: i64,
    mib: i64,
}

/// A node as numad sees it.
#[derive(Clone, Copy, Debug)]
struct Offer {
    total: Resources,
    free: Resources,
}

/// Places all candidates in turn.
pub(super) fn place(snapshot: &Snapshot, state: &mut State) {
    let nodes = snapshot.topology.nodes();
    let used: Vec<Resources> =
        (0..snapshot.vms.len()).map(|vm| usage(snapshot, state, vm)).collect();
    let is_candidate = |vm: &usize| used[*vm].cpus > CANDIDATE[0] && used[*vm].mib > CANDIDATE[1];
    let mut order: Vec<usize> = (0..used.len()).filter(is_candidate).collect();
    let size = |vm: usize| used[vm].cpus * used[vm].mib;
    order.sort_by_key(|vm| (!state.placed[*vm].is_empty(), -size(*vm), *vm));
    let wanted: i64 = order.iter().map(|vm| used[*vm].cpus).sum();
    for vm in order {
        let vcpus = snapshot.vms[vm].vcpus.len() as i64;
        let asked = Resources {
            cpus: (used[vm].cpus * 100 / TARGET).min(vcpus * 100),
            mib: used[vm].mib * 100 / TARGET,
        };
        let mut offers = offers(snapshot, state, &used);
        let all: i64 = offers.iter().map(|offer| offer.total.cpus).sum();
        add_back(snapshot, state, vm, used[vm], &mut offers);
        let free: i64 = offers.iter().map(|offer| offer.free.cpus).sum();
        let enough = wanted <= all || asked.cpus > free;
        for offer in &mut offers {
            offer.free.cpus = offer.free.cpus.clamp(1, offer.total.cpus.max(1));
            offer.free.mib = offer.free.mib.min(offer.total.mib);
        }
        let to = pick_nodes(nodes, &offers, asked, enough);
        let to: NodeSet = to.into_iter().map(|at| nodes[at].id).collect();
        if to != state.placed[vm] || locality(snapshot, state, vm, &to) < LOCALITY {
            let cpus = snapshot.topology.cpus_of(&to);
            if !cpus.is_empty() {
                state.allowed[vm].fill(cpus);
                state.move_memory(vm, &to);
                state.placed[vm] = to;
            }
        }
    }
}

fn mib(bytes: u64) -> i64 {
    (bytes >> 20) as i64
}

fn usage(snapshot: &Snapshot, state: &State, vm: usize) -> Resources {
    let busy = snapshot.vms[vm].busy().milli_of(snapshot.window).0 as i64;
    Resources { cpus: busy / 10, mib: mib(state.memory[vm].iter().sum()) }
}

/// Per cent of a VM's memory on these nodes.
fn locality(snapshot: &Snapshot, state: &State, vm: usize, nodes: &NodeSet) -> i64 {
    let memory = snapshot.topology.nodes().iter().zip(&state.memory[vm]);
    let here: u64 =
        memory.filter(|(node, _)| nodes.contains(node.id)).map(|(_, bytes)| *bytes).sum();
    mib(here) * 100 / mib(state.memory[vm].iter().sum()).max(1)
}

/// What each node has, and what is free of it. A VM's CPU time is taken to be spread over the CPUs that it may use.
fn offers(snapshot: &Snapshot, state: &State, used: &[Resources]) -> Vec<Offer> {
    let topology = &snapshot.topology;
    let threads = topology.cpus().len() / topology.cores().len().max(1);
    let other = snapshot.other_busy.milli_of(snapshot.window).0 as i64 / 10;
    let offer = |(at, node): (usize, &Node)| {
        let cpus = node.cpus.len();
        let busy: i64 = (0..used.len()).map(|vm| part_on(state, vm, node, used[vm].cpus)).sum();
        let discount = (cpus - cpus / threads.max(1)) as i64 * (100 - THREAD);
        let other = other * cpus as i64 / topology.cpus().len().max(1) as i64;
        let total = Resources { cpus: cpus as i64 * 100 - discount, mib: mib(node.memory.0) };
        let free = Resources {
            cpus: (cpus as i64 * 100 - busy - other - discount).clamp(0, total.cpus),
            mib: mib(state.room(at)),
        };
        Offer { total, free }
    };
    topology.nodes().iter().enumerate().map(offer).collect()
}

/// The part of a VM's CPU time that it has on a node.
fn part_on(state: &State, vm: usize, node: &Node, cpus: i64) -> i64 {
    let Some(allowed) = state.allowed[vm].first() else { return 0 };
    cpus * allowed.common(&node.cpus) as i64 / allowed.len().max(1) as i64
}

/// What the VM itself uses on each node counts as free: of one that is bound its memory five quarters and the mean free
/// CPU time of its nodes, of another its memory 17 sixteenths and CPU time by its memory.
fn add_back(snapshot: &Snapshot, state: &State, vm: usize, used: Resources, offers: &mut [Offer]) {
    let nodes = snapshot.topology.nodes();
    let home = &state.placed[vm];
    let is_bound = !home.is_empty() && home.len() < nodes.len();
    let own = offers.iter().zip(nodes).filter(|(_, node)| home.contains(node.id));
    let free: i64 = own.map(|(offer, _)| offer.free.cpus).sum();
    let mean = (used.cpus + free) / home.len().max(1) as i64;
    for (at, (offer, node)) in offers.iter_mut().zip(nodes).enumerate() {
        let here = mib(state.memory[vm][at]);
        if is_bound {
            offer.free.mib += here * 5 / 4;
            if home.contains(node.id) {
                offer.free.cpus = mean;
            }
        } else {
            offer.free.mib += here * 17 / 16;
            offer.free.cpus += used.cpus * here / used.mib.max(1);
        }
    }
}

/// What a node is worth to a request.
fn value(offer: &Offer, asked: Resources) -> i64 {
    let weigh = |free: i64, asked: i64, needed: i64, beyond: i64| {
        free.min(asked) * needed + (free - asked).max(0) * beyond
    };
    weigh(offer.free.mib, asked.mib, 10, 4) * weigh(offer.free.cpus, asked.cpus, 6, 1)
}

/// Indices of the nodes for a request.
fn pick_nodes(nodes: &[Node], offers: &[Offer], asked: Resources, enough_cpus: bool) -> Vec<usize> {
    let first = offers[0].total;
    let flex = (100 - TARGET) * first.cpus / 200;
    let ceil = |part: i64, whole: i64| (part.max(0) + whole.max(1) - 1) / whole.max(1);
    let needed = ceil(asked.mib, first.mib).max(ceil(asked.cpus - flex, first.cpus));
    let needed = needed.clamp(0, nodes.len() as i64);
    let distance = |from: usize, to: usize| i64::from(nodes[to].distances[from]);
    let near = |from: usize| {
        let mut order: Vec<usize> = (0..nodes.len()).collect();
        order.sort_by_key(|to| (distance(from, *to), -value(&offers[*to], asked), *to));
        order
    };
    let together = |from: usize| -> i64 {
        let some = near(from).into_iter().take(needed as usize);
        some.map(|to| value(&offers[to], asked) / distance(from, to).pow(2).max(1)).sum()
    };
    let best =
        (0..nodes.len()).max_by_key(|from| (together(*from), usize::MAX - from)).unwrap_or(0);
    let (mut left, mut cpus, mut taken) = (asked.mib, asked.cpus, Vec::new());
    for node in near(best) {
        let is_met = taken.len() as i64 >= needed && left <= 0 && (cpus <= flex || enough_cpus);
        if is_met {
            break;
        }
        taken.push(node);
        let free = offers[node].free;
        left = if free.mib >= left + MARGIN { 0 } else { left - (free.mib - MARGIN) };
        cpus = (cpus - free.cpus).max(0);
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::super::draw::Drawn;
    use super::super::{Contest, Rule};
    use instep_core::idset::CpuSet;

    const GIB: u64 = 1 << 30;

    /// Two nodes of four CPUs with guests of four vCPUs, each with this load of a vCPU and GiB on both nodes. Where each is bound
    /// then, and how much of its memory is on node 0.
    fn placed(guests: &[(u64, [u64; 2])]) -> Vec<(String, u64)> {
        let mut toml = "scheduler = \"eevdf\"\nduration = \"1s\"\n[host]\nnodes = 2\ncores = 4\n\
                        memory = \"64GiB\"\n"
            .to_owned();
        for (at, (_, gib)) in guests.iter().enumerate() {
            let gib: u64 = gib.iter().sum();
            toml += &format!(
                "[[guest]]\nname = \"g{at}\"\nvcpus = 4\nmemory = \"{gib}GiB\"\nload = \"spin\"\n"
            );
        }
        let memory = guests.iter().map(|(_, gib)| gib.map(|gib| gib * GIB).to_vec()).collect();
        let milli = guests.iter().map(|(milli, _)| *milli).collect();
        let contest =
            Contest::new(&Drawn { seed: 1, toml, topology: None, memory, milli }).unwrap();
        let mut state = contest.start.clone();
        Rule::Numad.place(&contest.expected(), &mut state);
        let of = |vm: usize| (state.allowed[vm][0].to_string(), state.memory[vm][0] / GIB);
        (0..guests.len()).map(of).collect()
    }

    #[test]
    fn busy_vm_is_bound_where_most_of_its_memory_is() {
        assert_eq!(placed(&[(700, [2, 6])]), [("4-7".to_owned(), 0)]);
        assert_eq!(placed(&[(700, [6, 2])]), [("0-3".to_owned(), 8)]);
    }

    #[test]
    fn second_vm_goes_where_cpu_time_is_free() {
        let both = placed(&[(900, [8, 0]), (800, [4, 3])]);
        assert_eq!(both, [("0-3".to_owned(), 8), ("4-7".to_owned(), 0)]);
    }

    #[test]
    fn vm_that_hardly_runs_is_left_alone() {
        let all = CpuSet::parse_list("0-7").unwrap().to_string();
        assert_eq!(placed(&[(100, [0, 8])]), [(all, 0)]);
    }
}
