//! Draws hosts and guests at random: shapes, sizes, loads, memory layouts and appetites for caches. One seed gives one
//! host. It knows no policy; its ranges are of what operators run, and none is a constant of a policy.

use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::scenario::build::SimulationPlan;
use crate::scenario::machine::parse_topology;
use std::fmt::Write as _;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// What is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Up to four caches and six VMs: few enough to try every plan.
    Small,
    /// 8 to 128 CPUs with at least two caches: on one cache there is nothing to place but cores.
    Any,
    /// 8 nodes of 8 caches with 1,000 VMs of 8 vCPUs, to measure how long deciding takes.
    Thousand,
}

/// A host and its guests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// Of the host and of what is random in the simulation.
    pub seed: u64,
    /// The scenario's text, without where memory lies.
    pub toml: String,
    /// The JSON of a recorded machine, which the scenario then names.
    pub topology: Option<String>,
    /// Bytes of each VM on each node.
    pub memory: Vec<Vec<u64>>,
    /// Expected load of each vCPU of each VM, thousandths of a CPU.
    pub milli: Vec<u64>,
}

/// The parts of a host that guests are drawn for.
struct Shape {
    /// The scenario's words for it.
    words: String,
    cpus: u64,
    cores: u64,
    caches: u64,
    /// Bytes of each node; `None` where they are chosen by what guests need.
    memory: Option<Vec<u64>>,
    nodes: usize,
}

/// A guest.
struct Guest {
    vcpus: u64,
    weight: u64,
    milli: u64,
    load: String,
    profile: String,
    memory: Vec<u64>,
}

/// The host of this seed, on a recorded machine if one is given (the JSON of `instep topology`).
///
/// # Errors
/// The recorded machine cannot be simulated.
pub fn draw(seed: u64, size: Size, recorded: Option<&str>) -> Result<Drawn, String> {
    let mut rng = Rng::new(seed);
    let shape = match recorded {
        Some(json) => recorded_shape(json)?,
        None => draw_shape(&mut rng, size),
    };
    let mut guests = draw_guests(&mut rng, size, &shape);
    let memory = fit_memory(&mut rng, &shape, &mut guests);
    let mut toml =
        format!("scheduler = \"eevdf\"\nduration = \"1s\"\nseed = {seed}\n[host]\n{}", shape.words);
    if shape.memory.is_none() {
        let _ = writeln!(toml, "memory = \"{}MiB\"", memory.iter().sum::<u64>() / MIB);
    }
    toml.push_str(&contention(&mut rng, &shape));
    for (at, guest) in guests.iter().enumerate() {
        let bytes: u64 = guest.memory.iter().sum();
        let _ = write!(
            toml,
            "[[guest]]\nname = \"g{at}\"\nvcpus = {}\nweight = {}\nmemory = \"{}MiB\"\nload = \"{}\"\n\
             profile = {}\n",
            guest.vcpus,
            guest.weight,
            bytes / MIB,
            guest.load,
            guest.profile
        );
    }
    Ok(Drawn {
        seed,
        toml,
        topology: recorded.map(str::to_owned),
        milli: guests.iter().map(|guest| guest.milli).collect(),
        memory: guests.into_iter().map(|guest| guest.memory).collect(),
    })
}

impl Drawn {
    /// What is simulated when nothing is placed.
    ///
    /// # Errors
    /// What is impossible.
    pub fn plan(&self) -> Result<SimulationPlan, String> {
        let fault = |fault: crate::scenario::Fault| {
            format!("line {} of what was drawn: {}", fault.line(&self.toml), fault.what)
        };
        let scenario = Scenario::parse(&self.toml).map_err(fault)?;
        let read = |_: &str| self.topology.clone().ok_or("no machine was recorded".to_owned());
        SimulationPlan::new(&scenario, &read).map_err(fault)
    }
}

fn one_of<T: Copy>(rng: &mut Rng, all: &[T]) -> T {
    all[rng.below(all.len() as u64) as usize]
}

fn within(rng: &mut Rng, low: u64, high: u64) -> u64 {
    low + rng.below(high.saturating_sub(low) + 1)
}

fn chance(rng: &mut Rng, percent: u64) -> bool {
    rng.below(100) < percent
}

fn recorded_shape(json: &str) -> Result<Shape, String> {
    let topology = parse_topology(json)?;
    let memory: Vec<u64> = topology.nodes().iter().map(|node| node.memory.0).collect();
    Ok(Shape {
        words: "topology = \"recorded\"\n".to_owned(),
        cpus: topology.cpus().len() as u64,
        cores: topology.cores().len() as u64,
        caches: topology.llcs().len() as u64,
        nodes: memory.len(),
        memory: Some(memory),
    })
}

fn draw_shape(rng: &mut Rng, size: Size) -> Shape {
    let (nodes, caches, cores, threads) = loop {
        let (nodes, caches, cores, threads) = match size {
            Size::Small => {
                let nodes = within(rng, 1, 3);
                (nodes, if nodes == 1 { within(rng, 2, 3) } else { within(rng, 1, 2) }, 4, 2)
            }
            Size::Thousand => (8, 8, 8, 2),
            Size::Any => {
                let nodes = one_of(rng, &[1, 2, 2, 2, 4, 4, 8]);
                let caches = one_of(rng, &[1, 1, 2, 4]);
                (nodes, caches, one_of(rng, &[2, 4, 4, 8, 16]), one_of(rng, &[1, 2, 2]))
            }
        };
        let cores = if size == Size::Small { one_of(rng, &[2, cores]) } else { cores };
        let threads = if size == Size::Small { one_of(rng, &[1, threads]) } else { threads };
        let cpus = nodes * caches * cores * threads;
        let is_asked = size != Size::Any || ((8..=128).contains(&cpus) && nodes * caches > 1);
        if is_asked {
            break (nodes, caches, cores, threads);
        }
    };
    // Two nodes of a package are nearer to each other than to the others on some hosts of four and eight.
    let near_pairs = nodes > 2 && chance(rng, 50);
    let far = one_of(rng, &[16, 20, 21, 32]);
    let distance = |from: u64, to: u64| match (from == to, near_pairs && from / 2 == to / 2) {
        (true, _) => 10,
        (_, true) => 12,
        _ => far,
    };
    let row = |from| {
        let row: Vec<String> = (0..nodes).map(|to| distance(from, to).to_string()).collect();
        format!("[{}]", row.join(", "))
    };
    let rows: Vec<String> = (0..nodes).map(row).collect();
    let words = format!(
        "nodes = {nodes}\ncores = {}\nthreads = {threads}\ncaches = {}\ndistances = [{}]\n",
        cores * caches,
        nodes * caches,
        rows.join(", ")
    );
    let (cores, caches) = (nodes * caches * cores, nodes * caches);
    Shape { words, cpus: cores * threads, cores, caches, memory: None, nodes: nodes as usize }
}

/// Caches of 2 or 4 MiB a core, as server processors have (Intel Xeon Scalable, AMD EPYC), and 5 GB/s of
/// memory bandwidth a core (AMD EPYC 9654: 460 GB/s for 96 cores), at least what the machine `generic` has; of a
/// link the same part of a node's as there.
fn contention(rng: &mut Rng, shape: &Shape) -> String {
    let llc = one_of(rng, &[2, 4]) * (shape.cores / shape.caches).max(1);
    let bandwidth = (5000 * shape.cores / shape.nodes.max(1) as u64).max(30_000);
    let link = bandwidth * 29 / 100;
    format!(
        "[host.numbers.contention]\nllc = \"{llc}MiB\"\nnode_mib_s = {bandwidth}\n\
         [host.numbers.memory]\nlink_mib_s = {link}\n"
    )
}

/// VMs until they want a drawn part of the host: 30 to 120 % of its CPUs.
fn draw_guests(rng: &mut Rng, size: Size, shape: &Shape) -> Vec<Guest> {
    let wanted = shape.cpus * 1000 * one_of(rng, &[30, 50, 70, 90, 120]) / 100;
    let (least, most) = match size {
        Size::Small => (2, 6),
        Size::Any => (3, 60),
        Size::Thousand => (1000, 1000),
    };
    let (mut guests, mut sum) = (Vec::new(), 0);
    while guests.len() < least || (guests.len() < most && sum < wanted) {
        let guest = match size {
            Size::Thousand => {
                let milli = within(rng, 1, wanted / 4000);
                Guest { vcpus: 8, milli, ..draw_guest(rng, shape) }
            }
            _ => draw_guest(rng, shape),
        };
        sum += guest.vcpus * guest.milli;
        guests.push(guest);
    }
    guests
}

fn draw_guest(rng: &mut Rng, shape: &Shape) -> Guest {
    let vcpus = one_of(rng, &[1, 2, 2, 4, 4, 8, 16]).min(shape.cpus / 2);
    let (milli, load) = draw_load(rng);
    Guest {
        vcpus,
        weight: one_of(rng, &[100, 100, 100, 100, 100, 300]),
        milli,
        load,
        profile: draw_profile(rng),
        memory: draw_layout(rng, shape.nodes),
    }
}

/// Programs that compute, that serve requests, that synchronise, and VMs that hardly do anything.
fn draw_load(rng: &mut Rng) -> (u64, String) {
    match rng.below(20) {
        0..8 => (1000, "instep-load compute".to_owned()),
        8..13 => draw_requests(rng, 100, 900),
        13..18 => {
            let kind = one_of(rng, &["block", "spin-block", "spin-block"]);
            let phase = one_of(rng, &[500, 1000, 2000, 5000, 10_000]);
            let load =
                format!("instep-load barrier --kind {kind} --phase {phase}us --imbalance 5%");
            (900, load)
        }
        _ => draw_requests(rng, 10, 50),
    }
}

fn draw_requests(rng: &mut Rng, least: u64, most: u64) -> (u64, String) {
    let (milli, compute) = (within(rng, least, most), one_of(rng, &[100, 300, 1000, 3000]));
    let wait = compute * (1000 - milli) / milli;
    let load = format!("instep-load io --compute {compute}us --wait {wait}us --imbalance 5%");
    (milli, load)
}

/// What the work is bound by, and how much of a cache it wants: a third next to nothing, a third memory, a third
/// caches.
fn draw_profile(rng: &mut Rng) -> String {
    let (fetch, fpu) = (within(rng, 0, 200), within(rng, 0, 200));
    let (llc, memory, set) = match rng.below(3) {
        0 => (within(rng, 0, 50), within(rng, 0, 50), within(rng, 64, 512)),
        1 => (within(rng, 0, 200), within(rng, 100, 400), within(rng, 2048, 16_384)),
        _ => (within(rng, 200, 500), within(rng, 0, 100), within(rng, 512, 6144)),
    };
    // Work that is bound by memory alone takes 8000 MiB/s (profile stream); the more by latency, the less.
    let mib_s = memory * 8 * within(rng, 10, 80) / 100;
    format!(
        "{{ fetch = {fetch}, fpu = {fpu}, llc = {llc}, memory = {memory}, set = \"{set}KiB\", mib_s = {mib_s} }}"
    )
}

/// Memory of a VM by node: half of them have nearly all on one, a quarter at random, a quarter evenly.
fn draw_layout(rng: &mut Rng, nodes: usize) -> Vec<u64> {
    let bytes = (256 * MIB) << within(rng, 0, 5);
    let bytes = bytes + rng.below(bytes / MIB) * MIB;
    let weights: Vec<u64> = match rng.below(4) {
        0 | 1 => {
            let (home, part) = (rng.below(nodes as u64) as usize, within(rng, 60, 100));
            let rest = (100 - part) / (nodes as u64 - 1).max(1);
            (0..nodes).map(|node| if node == home { part } else { rest }).collect()
        }
        2 => (0..nodes).map(|_| within(rng, 0, 100)).collect(),
        _ => vec![1; nodes],
    };
    let sum = weights.iter().sum::<u64>().max(1);
    let mut layout: Vec<u64> =
        weights.iter().map(|weight| bytes * weight / sum / MIB * MIB).collect();
    layout[0] += MIB;
    layout
}

/// Makes guests' memory fit the host, which it fills to 40 to 75 %, and says how much each node has.
fn fit_memory(rng: &mut Rng, shape: &Shape, guests: &mut [Guest]) -> Vec<u64> {
    let all: u64 = guests.iter().flat_map(|guest| &guest.memory).sum();
    let filled = within(rng, 40, 75);
    let nodes = match &shape.memory {
        Some(nodes) => {
            let most = nodes.iter().sum::<u64>() / 100 * filled;
            for bytes in guests.iter_mut().flat_map(|guest| &mut guest.memory) {
                *bytes = (u128::from(*bytes) * u128::from(most.min(all)) / u128::from(all.max(1)))
                    as u64
                    / MIB
                    * MIB;
            }
            nodes.clone()
        }
        None => {
            let each = all * 100 / filled / shape.nodes.max(1) as u64;
            vec![each.next_multiple_of(GIB); shape.nodes]
        }
    };
    let mut room = nodes.clone();
    for guest in guests {
        for node in 0..nodes.len() {
            let beyond = guest.memory[node].saturating_sub(room[node]);
            guest.memory[node] -= beyond;
            room[node] -= guest.memory[node];
            spill(&mut guest.memory, &mut room, beyond);
        }
        if guest.memory.iter().all(|bytes| *bytes == 0) {
            spill(&mut guest.memory, &mut room, MIB);
        }
    }
    nodes
}

/// Memory that a node has no room for goes where most is.
fn spill(memory: &mut [u64], room: &mut [u64], mut bytes: u64) {
    while bytes > 0 {
        let Some(node) = (0..room.len()).max_by_key(|node| room[*node]).filter(|at| room[*at] > 0)
        else {
            return;
        };
        let taken = bytes.min(room[node]);
        memory[node] += taken;
        room[node] -= taken;
        bytes -= taken;
    }
}
