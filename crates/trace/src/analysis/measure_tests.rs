//! The measures that the analysis takes from changes of single vCPUs and CPUs, held against what a random schedule comes to
//! by definition: co-run and stacking by hand, span by span, and competing modules by core's function of busy times.

use super::co_run::CoRun;
use super::modules::Modules;
use super::stacking::Stacking;
use super::world::{SchedState, World};
use crate::analysis::discover::FoundVm;
use instep_core::idset::IdSet;
use instep_core::measure::competing_modules;
use instep_core::topology::{CpuFacts, Topology};
use instep_core::units::{CpuId, Nanos};
use proptest::prelude::*;

const VCPUS: usize = 4;
const CPUS: u32 = 4;
const SECOND: u64 = 1_000_000_000;

fn place() -> impl Strategy<Value = SchedState> {
    prop_oneof![
        (0..CPUS).prop_map(|cpu| SchedState::Running(CpuId(cpu))),
        (0..CPUS).prop_map(|cpu| SchedState::Waiting(CpuId(cpu))),
        Just(SchedState::Waking),
        Just(SchedState::Blocked),
    ]
}

/// Co-run and stacking of a VM, by its vCPUs' places in each span of time in which none of them moves.
struct ByHand {
    places: [SchedState; VCPUS],
    stacked: u64,
    active: u64,
    /// The part of the runnable that ran, twelfths of it times nanoseconds: exact with up to four vCPUs.
    co_run: u64,
}

impl ByHand {
    fn new() -> Self {
        Self { places: [SchedState::Unknown; VCPUS], stacked: 0, active: 0, co_run: 0 }
    }

    fn pass(&mut self, span: u64) {
        let count = |is_so: &dyn Fn(SchedState) -> bool| {
            self.places.iter().filter(|place| is_so(**place)).count() as u64
        };
        let is_stacked = (0..CPUS).map(CpuId).any(|cpu| {
            count(&|place| place == SchedState::Running(cpu) || place == SchedState::Waiting(cpu))
                > 1
        });
        let runs = |place| matches!(place, SchedState::Running(_));
        let waits = |place| matches!(place, SchedState::Waiting(_) | SchedState::Waking);
        let (running, waiting) = (count(&runs), count(&waits));
        if is_stacked {
            self.stacked += span;
        }
        if running > 0 {
            self.active += span;
            self.co_run += span * (12 * running / (running + waiting));
        }
    }
}

proptest! {
    #[test]
    fn stacking_and_co_run_are_as_summed_by_hand(
        steps in prop::collection::vec((0..1_000u64, 0..VCPUS, place()), 1..200),
        rest in 0..1_000u64,
    ) {
        let vcpus = (0..VCPUS as u32).map(|index| (index, index + 1)).collect();
        let vm = FoundVm { name: "a".to_owned(), pid: None, vcpus };
        let mut world = World::new(vec![vm], Nanos(0));
        let (mut stacking, mut co_run) = (Stacking::new(1), CoRun::new(1, VCPUS, Nanos(0)));
        let (mut by_hand, mut now) = (ByHand::new(), 0);
        for (pause, vcpu, to) in steps {
            now += pause;
            by_hand.pass(pause);
            by_hand.places[vcpu] = to;
            if let Some(change) = world.go(vcpu, to, Nanos(now)) {
                stacking.change(&change);
                co_run.change(&change);
            }
        }
        now += rest;
        by_hand.pass(rest);
        prop_assert_eq!(stacking.of(0, Nanos(now)).0, Nanos(by_hand.stacked));
        let expected = (by_hand.co_run * 1000 / 12).checked_div(by_hand.active);
        let found = co_run.of(0, Nanos(now), &world).milli;
        prop_assert_eq!(found.is_some(), expected.is_some());
        // A third is rounded down before it is summed up.
        let (found, expected) = (found.unwrap_or(0), expected.unwrap_or(0));
        prop_assert!((found..=found + 1).contains(&expected), "{} {}", found, expected);
    }

    #[test]
    fn competing_modules_are_those_of_core(
        steps in prop::collection::vec((0..300_000_000u64, 0..CPUS, any::<bool>()), 0..60),
        seconds in 1..5u64,
    ) {
        let cpu = |id: u32| CpuFacts {
            id,
            thread_siblings: Some(IdSet::parse_list(if id < 2 { "0-1" } else { "2-3" }).unwrap()),
            ..CpuFacts::default()
        };
        let topology = Topology::build((0..CPUS).map(cpu).collect(), Vec::new()).unwrap();
        let mut modules = Modules::new(&topology, Nanos(0)).unwrap();
        // Busy time of each CPU in each second, counted by hand.
        let mut busy = vec![[0u64; CPUS as usize]; seconds as usize];
        let (mut since, mut now, end) = ([None; CPUS as usize], 0, seconds * SECOND);
        let mut count = |cpu: usize, from: u64, until: u64| {
            for (second, busy) in busy.iter_mut().enumerate() {
                let begin = second as u64 * SECOND;
                busy[cpu] += until.min(begin + SECOND).saturating_sub(from.max(begin));
            }
        };
        for (pause, cpu, is_busy) in steps {
            now += pause;
            if now >= end {
                break;
            }
            modules.set(CpuId(cpu), is_busy, Nanos(now));
            let cpu = cpu as usize;
            if let Some(from) = since[cpu].take() {
                count(cpu, from, now);
            }
            since[cpu] = is_busy.then_some(now);
        }
        for (cpu, from) in since.into_iter().enumerate() {
            from.into_iter().for_each(|from| count(cpu, from, end));
        }
        let of = |busy: &[u64; CPUS as usize]| competing_modules(busy, SECOND, [[0, 1], [2, 3]]);
        let expected = busy.iter().map(of).sum::<u64>() as f64 / 1e6 / seconds as f64;
        let (found, _) = modules.finish(Nanos(0), Nanos(end));
        // In millionths, rounded down.
        prop_assert!((found - expected).abs() < 1e-5, "{found} {expected}");
    }
}
