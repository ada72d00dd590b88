//! A random scenario: drawn from a seed, written as a scenario's TOML, and made smaller in all the ways
//! that keep it a scenario. Decides nothing about schedules.

use crate::rng::Rng;
use std::fmt::Write as _;

const LOADS: [&str; 14] = [
    "spin",
    "spin",
    "idle",
    "instep-load barrier --kind block --phase 200us --imbalance 30%",
    "instep-load barrier --kind spin --phase 300us",
    "instep-load barrier --kind spin-block --phase 100us --imbalance 10%",
    "instep-load serial --parallel 4ms --sequential 1ms --serial rotating",
    "instep-load lock --hold 20us --think 40us",
    "instep-load lock --kind kernel-spin --hold 20us --think 40us",
    "instep-load fib 30",
    "instep-load pipeline --stage 80us",
    "instep-load ping --period 3ms --burst 100us",
    "instep-load barrier --kind block --phase 2ms --threads 6 --float",
    "instep-load io --threads 6 --float --compute 200us --wait 500us",
];
const PROFILES: [&str; 5] = ["plain", "fetch", "l2", "stream", "chase"];
const PLACEMENTS: [&str; 4] = ["bnn", "instep", "spread", "bind"];
/// Settings of a VM for `instep`; the first is what it is without.
const COSCHED: [&str; 3] = ["auto", "never", "relaxed"];
const LATENCY: [&str; 2] = ["normal", "prompt"];
const PERIOD: [&str; 5] = ["24ms", "1ms", "6ms", "192ms", "1s"];
const WEIGHTS: [u32; 8] = [1, 10, 50, 100, 100, 100, 238, 1000];

/// A guest of a draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DraftGuest {
    vcpus: u32,
    load: usize,
    weight: u32,
    profile: usize,
    /// The first and the last CPU that it may use, if not all.
    allowed: Option<(u32, u32)>,
    /// The node that it should use.
    prefers: Option<u32>,
    /// Whether vCPU i is bound to CPU i, going round.
    pinned: bool,
    own: Own,
}

/// What only `instep` knows of a VM: indices of [`COSCHED`], [`LATENCY`] and [`PERIOD`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Own {
    cosched: usize,
    latency: usize,
    period: usize,
}

/// A scenario to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// The scheduler's name.
    pub scheduler: String,
    seed: u64,
    nodes: u32,
    cores: u32,
    threads: u32,
    noise: bool,
    millis: u64,
    /// What places VMs, and how often, milliseconds.
    placement: Option<(usize, u64)>,
    guests: Vec<DraftGuest>,
}

impl Draft {
    /// The scenario of this stream of numbers.
    pub fn draw(rng: &mut Rng, scheduler: &str) -> Self {
        let instep = scheduler == "instep";
        // Of Instep's drafts a third are hosts of up to 64 CPUs with several gangs.
        let large = instep && rng.below(3) == 0;
        let nodes = [1, 1, 2, 4][pick(rng, 4)];
        let cores = if large {
            16 / nodes + rng.below(16 / u64::from(nodes) + 1) as u32
        } else {
            1 + rng.below(4) as u32
        };
        let threads = 1 + rng.below(2) as u32;
        let cpus = nodes * cores * threads;
        let mut guests: Vec<DraftGuest> = Vec::new();
        let crowd = large || rng.below(4) == 0;
        // A part of the drafts is only about shares: all spin, all may use all CPUs.
        let plain = rng.below(6) == 0;
        for _ in 0..1 + rng.below(if crowd { 10 } else { 4 }) {
            guests.push(DraftGuest::draw(rng, cpus, nodes, plain));
        }
        // VMs of 2 to 16 vCPUs that spin or compute, until all CPUs have work twice.
        let mut wanted = if large { 2 * cpus } else { 0 };
        while wanted > 0 {
            let vcpus = [2, 4, 4, 8, 16][pick(rng, 5)].min(cpus).min(wanted);
            guests.push(DraftGuest::gang(rng, vcpus));
            wanted -= vcpus;
        }
        let placed = !plain && rng.below(5) == 0 && scheduler != "affinity";
        let placement = placed.then(|| (pick(rng, PLACEMENTS.len()), 20 + rng.below(200)));
        if instep && !plain {
            guests.iter_mut().for_each(|guest| guest.own = Own::draw(rng));
        }
        Self {
            placement,
            scheduler: scheduler.to_owned(),
            seed: rng.below(1 << 32),
            nodes,
            cores,
            threads,
            noise: rng.below(4) == 0,
            // Shares need time to show.
            millis: if plain { 5000 } else { [200, 400, 800, 1600][pick(rng, 4)] },
            guests,
        }
    }

    fn cpus(&self) -> u32 {
        self.nodes * self.cores * self.threads
    }

    /// The scenario's text. `about` is one line.
    pub fn text(&self, about: &str) -> String {
        let placement = self.placement.map(|(policy, ms)| {
            let policy = PLACEMENTS[policy];
            format!("placement = \"{policy}\"\nplacement_period = \"{ms}ms\"\n")
        });
        let tuning = match self.scheduler.as_str() {
            "eevdf" if self.seed % 2 == 1 => "tuning = { hrtick = \"10us\" }\n",
            _ => "",
        };
        let mut text = format!(
            "about = {}\nseed = {}\nscheduler = \"{}\"\n{tuning}duration = \"{}ms\"\nwarmup = \"0s\"\n\
             {}[host]\nnodes = {}\ncores = {}\nthreads = {}\nmemory = \"64GiB\"\nnoise = {}\n",
            toml::Value::from(about),
            self.seed,
            self.scheduler,
            self.millis,
            placement.unwrap_or_default(),
            self.nodes,
            self.cores,
            self.threads,
            self.noise
        );
        for (at, guest) in self.guests.iter().enumerate() {
            guest.write(&mut text, at, self.cpus());
        }
        text
    }

    /// How large it is: what shrinking makes smaller.
    pub fn size(&self) -> (usize, u32, u32) {
        let vcpus = self.guests.iter().map(|guest| guest.vcpus).sum();
        (self.guests.len(), vcpus, self.cpus())
    }

    /// Ends it at this time, a millisecond later at most.
    pub fn cut(&mut self, ns: u64) {
        self.millis = self.millis.min(ns / 1_000_000 + 1);
    }

    /// All drafts that are one step smaller, the largest steps first.
    pub fn smaller(&self) -> Vec<Self> {
        let mut all = Vec::new();
        for at in (0..self.guests.len()).rev().filter(|_| self.guests.len() > 1) {
            let mut less = self.clone();
            less.guests.remove(at);
            all.push(less);
        }
        let mut with = |change: &dyn Fn(&mut Self)| {
            let mut less = self.clone();
            change(&mut less);
            less.fit();
            if less != *self {
                all.push(less);
            }
        };
        with(&|less| less.placement = None);
        with(&|less| less.noise = false);
        with(&|less| less.nodes = (less.nodes / 2).max(1));
        with(&|less| less.threads = 1);
        with(&|less| less.cores = (less.cores / 2).max(1));
        with(&|less| less.cores = (less.cores - 1).max(1));
        for at in 0..self.guests.len() {
            with(&|less| less.guests[at].vcpus = less.guests[at].vcpus.div_ceil(2));
            with(&|less| less.guests[at].vcpus = (less.guests[at].vcpus - 1).max(1));
            with(&|less| less.guests[at].load = 0);
            with(&|less| less.guests[at].profile = 0);
            with(&|less| less.guests[at].weight = 100);
            with(&|less| less.guests[at].allowed = None);
            with(&|less| less.guests[at].prefers = None);
            with(&|less| less.guests[at].pinned = false);
            with(&|less| less.guests[at].own.cosched = 0);
            with(&|less| less.guests[at].own.latency = 0);
            with(&|less| less.guests[at].own.period = 0);
        }
        all
    }

    /// Keeps affinities on the host.
    fn fit(&mut self) {
        let (cpus, nodes) = (self.cpus(), self.nodes);
        for guest in &mut self.guests {
            guest.prefers = guest.prefers.map(|node| node.min(nodes - 1));
            guest.allowed =
                guest.allowed.map(|(first, last)| (first.min(cpus - 1), last.min(cpus - 1)));
        }
    }
}

impl DraftGuest {
    fn draw(rng: &mut Rng, cpus: u32, nodes: u32, plain: bool) -> Self {
        let vcpus = 1 + rng.below(u64::from(cpus.min(7)) + 1) as u32;
        let weight = match rng.below(3) {
            0 => 100,
            1 => WEIGHTS[pick(rng, WEIGHTS.len())],
            _ => 1 + rng.below(300) as u32,
        };
        let (load, profile) = (pick(rng, LOADS.len()), pick(rng, PROFILES.len()));
        let first = rng.below(u64::from(cpus)) as u32;
        let last = first + rng.below(u64::from(cpus - first)) as u32;
        let allowed = (rng.below(4) == 0).then_some((first, last));
        let prefers = rng.below(u64::from(nodes)) as u32;
        let prefers = (rng.below(4) == 0).then_some(prefers);
        let pinned = allowed.is_none() && rng.below(8) == 0;
        let any =
            Self { vcpus, load, weight, profile, allowed, prefers, pinned, own: Own::default() };
        if !plain {
            return any;
        }
        Self { load: 0, profile: 0, allowed: None, prefers: None, pinned: false, ..any }
    }

    /// One that forms a gang: it computes, or spins at barriers.
    fn gang(rng: &mut Rng, vcpus: u32) -> Self {
        let load = [0, 4][pick(rng, 2)];
        let weight = if rng.below(4) == 0 { WEIGHTS[pick(rng, WEIGHTS.len())] } else { 100 };
        let (profile, allowed, prefers) = (0, None, None);
        Self { vcpus, load, weight, profile, allowed, prefers, pinned: false, own: Own::default() }
    }

    fn write(&self, text: &mut String, at: usize, cpus: u32) {
        let (load, profile) = (LOADS[self.load], PROFILES[self.profile]);
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "[[guest]]\nname = \"g{at}\"\nvcpus = {}\nmemory = \"1GiB\"\nweight = {}\n\
             load = \"{load}\"\nprofile = \"{profile}\"\n",
            self.vcpus, self.weight
        );
        if let Some((first, last)) = self.allowed {
            let _ = writeln!(text, "allowed = \"{first}-{last}\"");
        }
        if let Some(node) = self.prefers {
            let _ = writeln!(text, "prefer_nodes = [{node}]");
        }
        if self.pinned {
            let lists = (0..self.vcpus).map(|vcpu| format!("[{}]", vcpu % cpus));
            let lists: Vec<String> = lists.collect();
            let _ = writeln!(text, "start = {{ cpus = [{}], pinned = true }}", lists.join(", "));
        }
        self.own.write(text);
    }
}

impl Own {
    /// Most VMs have no settings.
    fn draw(rng: &mut Rng) -> Self {
        let mut one = |of: usize| if rng.below(3) == 0 { pick(rng, of) } else { 0 };
        Self { cosched: one(COSCHED.len()), latency: one(LATENCY.len()), period: one(PERIOD.len()) }
    }

    fn write(self, text: &mut String) {
        let words = [
            ("cosched", COSCHED[self.cosched], self.cosched),
            ("latency", LATENCY[self.latency], self.latency),
            ("period", PERIOD[self.period], self.period),
        ];
        for (name, word, _) in words.iter().filter(|(.., at)| *at > 0) {
            let _ = writeln!(text, "{name} = \"{word}\"");
        }
    }
}

fn pick(rng: &mut Rng, of: usize) -> usize {
    rng.below(of as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Scenario, build::SimulationPlan};

    fn plan(draft: &Draft) -> SimulationPlan {
        let text = draft.text("a \"test\"");
        let scenario = Scenario::parse(&text).unwrap_or_else(|fault| panic!("{fault:?}\n{text}"));
        let plan = SimulationPlan::new(&scenario, &|_| Err(String::new()));
        plan.unwrap_or_else(|fault| panic!("{fault:?}\n{text}"))
    }

    #[test]
    fn every_draft_and_every_smaller_one_is_a_scenario() {
        if !instep_madehost::skip::may_take_long() {
            return;
        }
        for seed in 0..300 {
            let scheduler = ["cfs", "instep"][seed as usize % 2];
            let draft = Draft::draw(&mut Rng::new(seed), scheduler);
            plan(&draft);
            draft.smaller().iter().for_each(|less| drop(plan(less)));
        }
    }

    #[test]
    fn drafts_of_instep_have_its_settings_and_large_hosts() {
        let drafts = (0..300).map(|seed| Draft::draw(&mut Rng::new(seed), "instep"));
        let drafts: Vec<Draft> = drafts.collect();
        let text: String = drafts.iter().map(|draft| draft.text("it")).collect();
        for word in COSCHED[1..].iter().chain(&LATENCY[1..]).chain(&PERIOD[1..]) {
            assert!(text.contains(&format!(" = \"{word}\"\n")), "{word}");
        }
        let large = drafts.iter().filter(|draft| draft.cpus() >= 16);
        assert!((60..140).contains(&large.clone().count()), "{}", large.count());
        // Up to 64 CPUs, and twice as many vCPUs of VMs that spin or compute.
        assert_eq!(drafts.iter().map(Draft::cpus).max(), Some(64));
        let gangs = |draft: &Draft| draft.guests.iter().filter(|guest| guest.vcpus > 1).count();
        let largest: Vec<&Draft> = drafts.iter().filter(|draft| draft.cpus() > 48).collect();
        assert!(largest.len() > 8 && largest.iter().all(|draft| gangs(draft) >= 4), "{largest:?}");
        let other = Draft::draw(&mut Rng::new(1), "cfs").text("it");
        assert!(!other.contains("cosched") && !other.contains("tuning"), "{other}");
    }
}
