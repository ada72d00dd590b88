//! The analysis keeps its own sums, by changes of single vCPUs and by CPU; the simulator and the benches
//! have core's. Both say the same of one schedule.

use super::co_run::CoRun;
use super::modules::Modules;
use super::stacking::Stacking;
use super::world::{Change, Place, World};
use crate::analysis::discover::FoundVm;
use instep_core::idset::IdSet;
use instep_core::measure::{VmMeter, competing_modules};
use instep_core::topology::{CpuFacts, Topology};
use instep_core::units::{CpuId, Nanos};
use proptest::prelude::*;

const VCPUS: usize = 4;
const CPUS: u32 = 4;
const SECOND: u64 = 1_000_000_000;

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        (0..CPUS).prop_map(|cpu| Place::Running(CpuId(cpu))),
        (0..CPUS).prop_map(|cpu| Place::Waiting(CpuId(cpu))),
        Just(Place::Waking),
        Just(Place::Blocked),
    ]
}

fn queue(place: Place) -> Option<usize> {
    match place {
        Place::Running(cpu) | Place::Waiting(cpu) => Some(cpu.0 as usize),
        Place::Waking | Place::Blocked | Place::Unknown => None,
    }
}

/// Core's meter, told of each change of a vCPU.
#[derive(Default)]
struct Meter {
    meter: VmMeter,
    queued: [u32; CPUS as usize],
}

impl Meter {
    fn change(&mut self, change: &Change) {
        let now = change.time.0;
        for (place, by) in [(change.from, -1), (change.to, 1)] {
            let runs = matches!(place, Place::Running(_));
            if runs {
                self.meter.running(now, by);
            }
            if runs || place.is_waiting() {
                self.meter.runnable(now, by);
            }
            if let Some(cpu) = queue(place) {
                let before = self.queued[cpu] > 1;
                self.queued[cpu] = self.queued[cpu].saturating_add_signed(by);
                let stacked = i32::from(self.queued[cpu] > 1) - i32::from(before);
                self.meter.stacked(now, stacked);
            }
        }
    }
}

proptest! {
    #[test]
    fn stacking_and_co_run_are_those_of_core(
        steps in prop::collection::vec((0..1_000u64, 0..VCPUS, place()), 1..200),
        rest in 0..1_000u64,
    ) {
        let vcpus = (0..VCPUS as u32).map(|index| (index, index + 1)).collect();
        let vm = FoundVm { name: "a".to_owned(), pid: None, vcpus };
        let mut world = World::new(vec![vm], Nanos(0));
        let (mut stacking, mut co_run) = (Stacking::new(1), CoRun::new(1, VCPUS, Nanos(0)));
        let (mut meter, mut now) = (Meter::default(), 0);
        for (pause, vcpu, to) in steps {
            now += pause;
            if let Some(change) = world.go(vcpu, to, Nanos(now)) {
                stacking.change(&change);
                co_run.change(&change);
                meter.change(&change);
            }
        }
        now += rest;
        let sums = meter.meter.sums(now);
        prop_assert_eq!(stacking.of(0, Nanos(now)).0, Nanos(sums.stacked));
        let own = co_run.of(0, Nanos(now), &world);
        prop_assert_eq!(own.milli, (sums.active > 0).then(|| sums.co_run().0));
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
