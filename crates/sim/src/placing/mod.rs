//! Placement policies side by side, for `cargo xtask bench placement`: random guests on a host, placed by each rule
//! and then simulated, so that a policy is judged by the speed of guests and not by its own objective.
//!
//! ```text
//! draw -> host and guests -> measure loads -> rule -> affinities, homes, memory -> simulate -> speed
//!                                 ^----- three cycles, loads 5 % off -----'
//! ```
//! Memory has arrived where it was moved to: what is simulated is a placement in force, not the way there. The
//! simulator's model of contention ([`crate::speed`]) and its costs share no constant with the policies.

pub mod draw;
mod numad;
mod state;

use crate::engine::{Engine, Setup};
use crate::rng::Rng;
use crate::scenario::build::SimulationPlan;
use crate::sched;
use draw::Drawn;
use instep_check::mask::Mask;
use instep_core::measure;
use instep_core::policy::{self, PolicyName, PolicySettings};
use instep_core::snapshot::Snapshot;
pub use state::Placement;
use state::State;

/// The schedulers that placement is simulated above.
pub const SCHEDULERS: [&str; 2] = ["eevdf", "instep"];

/// Times that loads are measured and a rule decides. The first sees guests that roam, the others what it did.
const CYCLES: usize = 3;
/// When measuring loads begins and ends, nanoseconds of simulated time.
const LOADS: [u64; 2] = [100_000_000, 400_000_000];
/// How far a measured load may be off, per cent: as in the tests of the policies, which must not move a VM for it.
const NOISE: u32 = 5;
/// Between the seeds of runs of one host: more than there are hosts.
const SEEDS_APART: u64 = 1_000_000;
/// Nanoseconds before speeds are measured, and measured.
const WARMUP: u64 = 300_000_000;
const MEASURED: u64 = 1_200_000_000;

/// What places VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A policy of Instep.
    Policy(PolicyName),
    /// The rule of numad, as the module `numad` beside this one has it.
    Numad,
}

impl Rule {
    /// All of them, the judged one first.
    pub const ALL: [Rule; 6] = [
        Rule::Policy(PolicyName::Instep),
        Rule::Policy(PolicyName::Bnn),
        Rule::Policy(PolicyName::Bind),
        Rule::Policy(PolicyName::None),
        Rule::Policy(PolicyName::Spread),
        Rule::Numad,
    ];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Rule::Policy(policy) => policy.as_str(),
            Rule::Numad => "numad",
        }
    }

    /// Carries out what it decides.
    fn place(self, snapshot: &Snapshot, state: &mut State) {
        match self {
            Rule::Policy(policy) => {
                let settings = PolicySettings { policy, ..PolicySettings::default() };
                state.apply(&policy::decide(snapshot, &settings));
            }
            Rule::Numad => numad::place(snapshot, state),
        }
    }
}

/// A drawn host on which rules are compared.
#[derive(Clone, Debug)]
pub struct Contest {
    plan: SimulationPlan,
    start: State,
    /// Expected load of each vCPU of each VM, thousandths of a CPU.
    milli: Vec<u64>,
    seed: u64,
}

/// What a VM does alone on the host: thousandths of a unit a second, and thousandths of a CPU.
pub type Alone = (u64, u64);

impl Contest {
    /// The host that was drawn, with nothing in force.
    ///
    /// # Errors
    /// When it cannot be simulated.
    pub fn new(drawn: &Drawn) -> Result<Self, String> {
        let mut plan = drawn.plan()?;
        let start = State::new(&plan, &drawn.memory);
        for (at, vm) in plan.setup.vms.iter_mut().enumerate().filter(|(_, vm)| !vm.hidden) {
            vm.memory = start.parts(at);
        }
        Ok(Self { plan, start, milli: drawn.milli.clone(), seed: drawn.seed })
    }

    /// The plan that is simulated, before anything is placed.
    pub fn plan(&self) -> &SimulationPlan {
        &self.plan
    }

    /// The host with loads as they were drawn, each up to 5 % off: what a policy sees that is given
    /// nothing but what a VM is expected to do.
    pub fn expected(&self) -> Snapshot {
        let window = LOADS[1] - LOADS[0];
        let load = |(vm, milli): (usize, &u64)| {
            let vcpus = self.plan.setup.vms[vm].affinity.len();
            vec![[window / 1000 * milli, 0]; vcpus]
        };
        let mut loads: Vec<_> = self.milli.iter().enumerate().map(load).collect();
        add_noise(&mut loads, &mut Rng::new(self.seed));
        self.start.snapshot(&self.plan, &loads, window, 0)
    }

    /// The host after a policy was given [`expected`](Self::expected), and what it is given then.
    pub fn after(&self, policy: PolicyName) -> Snapshot {
        let mut snapshot = self.expected();
        let mut state = self.start.clone();
        Rule::Policy(policy).place(&snapshot, &mut state);
        state.show(&mut snapshot);
        snapshot
    }

    /// The fair-share speed of each VM when it is placed by `rule` above a scheduler: its throughput by what it
    /// has alone on the host where nothing is placed, for its fair share. VMs that do nothing are left out.
    /// Runs differ by what is random in the simulation and in measuring loads.
    ///
    /// # Errors
    /// The scheduler is not known, or was thrown out.
    pub fn speeds(
        &self,
        rule: Rule,
        scheduler: &str,
        alone: &[Alone],
        run: u64,
    ) -> Result<Vec<f64>, String> {
        let state = self.place(rule, scheduler, run)?;
        self.simulate(&state, rule, scheduler, alone, run)
    }

    /// Where each VM is when it is placed by `rule` above a scheduler.
    ///
    /// # Errors
    /// The scheduler is not known.
    pub fn placements(
        &self,
        rule: Rule,
        scheduler: &str,
        run: u64,
    ) -> Result<Vec<Placement>, String> {
        Ok(self.place(rule, scheduler, run)?.placements())
    }

    /// The fair-share speed of each VM where a policy that is gone had placed it.
    ///
    /// # Errors
    /// It placed other VMs; or as of [`speeds`](Self::speeds).
    pub fn kept_speeds(
        &self,
        kept: &[Placement],
        scheduler: &str,
        alone: &[Alone],
        run: u64,
    ) -> Result<Vec<f64>, String> {
        let mut state = self.start.clone();
        state.put(kept)?;
        self.simulate(&state, Rule::Policy(PolicyName::Instep), scheduler, alone, run)
    }

    /// Where each VM is after so many changes of what `instep` has placed, and the speeds there in so many runs. With each
    /// change a VM or two get another place at random; it is kept if guests are faster with it in a run before all those.
    ///
    /// # Errors
    /// As of [`speeds`](Self::speeds).
    pub fn changed(
        &self,
        scheduler: &str,
        alone: &[Alone],
        changes: u64,
        runs: u64,
    ) -> Result<(Vec<Placement>, Vec<Vec<f64>>), String> {
        let (rule, mut rng) = (Rule::ALL[0], Rng::new(self.seed));
        let speeds = |state: &State, run| self.simulate(state, rule, scheduler, alone, run);
        let sum = |state: &State| Ok::<f64, String>(speeds(state, 0)?.iter().sum());
        let mut best = self.place(rule, scheduler, 0)?;
        let mut fastest = sum(&best)?;
        for _ in 0..changes {
            let mut other = best.clone();
            for _ in 0..=rng.below(2) {
                let vm = rng.below(alone.len() as u64) as usize;
                other.place_at_random(&self.plan.topology, vm, &mut rng);
            }
            let sum = sum(&other)?;
            if sum > fastest {
                (best, fastest) = (other, sum);
            }
        }
        let speeds: Result<_, String> = (1..=runs).map(|run| speeds(&best, run)).collect();
        Ok((best.placements(), speeds?))
    }

    /// Measures loads and carries out what the rule decides, a few times.
    fn place(&self, rule: Rule, scheduler: &str, run: u64) -> Result<State, String> {
        let seed = self.seed + run * SEEDS_APART;
        let mut noise = Rng::new(seed);
        let mut state = self.start.clone();
        for _ in 0..CYCLES {
            let (mut loads, other) =
                measure_loads(self.setup(&state, rule, scheduler, seed), scheduler)?;
            add_noise(&mut loads, &mut noise);
            let window = LOADS[1] - LOADS[0];
            rule.place(&state.snapshot(&self.plan, &loads, window, other), &mut state);
        }
        Ok(state)
    }

    /// The speeds where this is in force.
    fn simulate(
        &self,
        state: &State,
        rule: Rule,
        scheduler: &str,
        alone: &[Alone],
        run: u64,
    ) -> Result<Vec<f64>, String> {
        let seed = self.seed + run * SEEDS_APART;
        let setup = Setup {
            warmup: WARMUP,
            duration: MEASURED,
            ..self.setup(state, rule, scheduler, seed)
        };
        let mut engine = Engine::new(setup, sched::make(scheduler, &Default::default())?);
        engine.begin();
        while engine.advance(WARMUP + MEASURED) {}
        if let Some(what) = engine.scheduler().failed() {
            return Err(format!("{scheduler} was thrown out: {what}"));
        }
        let outcome = engine.finish();
        let claims: Vec<(u64, u64)> = alone
            .iter()
            .zip(&self.plan.setup.vms)
            .map(|((_, cpus), vm)| (u64::from(vm.weight), *cpus))
            .collect();
        let capacity = self.plan.setup.host.cpus() as u64 * 1000;
        let shares = measure::fair_shares(capacity, &claims);
        let speed = |vm: usize| {
            let (rate, cpus) = alone[vm];
            let deserved = rate as f64 * shares[vm] as f64 / cpus.max(1) as f64;
            (deserved > 0.0).then(|| outcome.throughput_milli(vm) as f64 / deserved)
        };
        Ok((0..alone.len()).filter_map(speed).collect())
    }

    /// What each VM does alone, under the default scheduler.
    pub fn alone(&self) -> Vec<Alone> {
        let one = |vm: usize| {
            let mut plan = self.plan.only(vm);
            (plan.setup.warmup, plan.setup.duration) = (LOADS[0], LOADS[1] - LOADS[0]);
            plan.setup.seed = self.seed;
            let outcome = plan.run();
            let ran = u128::from(outcome.vms[0].2.sums.running) * 1000;
            let cpus = ran.div_ceil(u128::from(outcome.duration.max(1)));
            (outcome.throughput_milli(0), cpus as u64)
        };
        (0..self.milli.len()).map(one).collect()
    }

    /// What is simulated when this is in force. Where the scheduler `instep` is in force, a VM with one home node is not bound to
    /// it: the scheduler gets the home, as from `instep run --dispatch`. numad binds.
    fn setup(&self, state: &State, rule: Rule, scheduler: &str, seed: u64) -> Setup {
        let mut setup = self.plan.setup.clone();
        let cpus = setup.host.cpus();
        setup.seed = seed;
        for (at, vm) in setup.vms.iter_mut().enumerate().filter(|(_, vm)| !vm.hidden) {
            vm.memory = state.parts(at);
            let home = match (rule, state.placed[at].len()) {
                (Rule::Policy(_), 1) => state.placed[at].first(),
                _ => None,
            };
            let home = home.and_then(|node| self.plan.setup.host.node_index(node.0));
            if scheduler == "instep" && home.is_some() {
                vm.own.home = home.map(|node| node as u32);
                continue;
            }
            for (affinity, allowed) in vm.affinity.iter_mut().zip(&state.allowed[at]) {
                let members = allowed.iter().filter_map(|cpu| self.plan.setup.host.index(cpu.0));
                affinity.0 = Mask::of(cpus, members);
            }
        }
        setup
    }
}

/// CPU time and waiting of each vCPU of each VM in the window of [`LOADS`], and CPU time of the host's own threads.
type Loads = Vec<Vec<[u64; 2]>>;

fn measure_loads(setup: Setup, scheduler: &str) -> Result<(Loads, u64), String> {
    let setup = Setup { warmup: 0, duration: LOADS[1], ..setup };
    let mut engine = Engine::new(setup, sched::make(scheduler, &Default::default())?);
    engine.begin();
    let read = |engine: &Engine| -> Vec<Vec<[u64; 2]>> {
        let ctx = engine.ctx();
        let of = |task| [ctx.ran(task), ctx.waited(task)];
        ctx.vms.iter().map(|vm| vm.tasks().map(of).collect()).collect()
    };
    while engine.advance(LOADS[0]) {}
    let before = read(&engine);
    while engine.advance(LOADS[1]) {}
    let mut after = read(&engine);
    for (now, then) in after.iter_mut().flatten().zip(before.iter().flatten()) {
        *now = [now[0].saturating_sub(then[0]), now[1].saturating_sub(then[1])];
    }
    let (hidden, own): (Vec<_>, Vec<_>) =
        after.into_iter().zip(&engine.ctx().vms).partition(|(_, vm)| vm.hidden);
    let other = hidden.iter().flat_map(|(loads, _)| loads).map(|load| load[0]).sum();
    Ok((own.into_iter().map(|(loads, _)| loads).collect(), other))
}

/// What each vCPU used and waited for is up to [`NOISE`] per cent off.
fn add_noise(loads: &mut Loads, rng: &mut Rng) {
    for [ran, waited] in loads.iter_mut().flatten() {
        *ran = rng.around(*ran, NOISE);
        *waited = rng.around(*waited, NOISE);
    }
}
