//! Weights of cgroups count at every level, with what user space computes once a second (`instep_core::entitled`).

use super::*;
use instep_core::entitled::{self, Group};
use std::ops::Range;

const SECOND: u64 = 1000 * MS;

/// A cgroup: the one above it (0 is the root), `cpu.weight`, and the tasks in it.
type Place = (u32, u32, Range<usize>);

/// A host whose tasks lie in these cgroups, numbered from 1; all asleep.
pub(super) struct Host {
    pub(super) instep: Instep,
    cgroups: Vec<Place>,
    /// VMs in table order: their tasks.
    vms: Vec<Range<usize>>,
    cpus: usize,
    tasks: usize,
    /// What was read of each cgroup and VM before, runnable time.
    before: (Vec<u64>, Vec<u64>),
    /// When that was, and how many weights had changed then.
    looked: (u64, u64),
    now: u64,
}

impl Host {
    /// The first VMs' tasks come first; so many tasks of the host follow.
    pub(super) fn new(machine: &Machine, vms: &[usize], threads: usize, cgroups: &[Place]) -> Self {
        let cpus = machine.core.len();
        let vcpus: usize = vms.iter().sum();
        let task =
            |at: usize| TaskSetup { allowed: CpuMask::of(0..cpus), cpu: at % cpus, flags: 0 };
        let tasks: Vec<TaskSetup> = (0..vcpus + threads).map(task).collect();
        let given: Vec<(usize, u32)> = vms.iter().map(|count| (*count, 100)).collect();
        let mut instep = fits(machine, &tasks, &table(&given), 0);
        for (number, (above, weight, of)) in (1..).zip(cgroups) {
            // SAFETY: it is the state that this scheduler was loaded with; C checks the number.
            unsafe { c::shim_weigh_group(instep.kernel().globals(), number, *weight, *above) }
            of.clone().for_each(|task| instep.kernel().set_group(task, number));
        }
        let ends = vms.iter().scan(0, |end, count| {
            *end += count;
            Some(*end - count..*end)
        });
        let vms: Vec<Range<usize>> = ends.collect();
        Self {
            instep,
            before: (vec![0; cgroups.len()], vec![0; vms.len()]),
            looked: (START, 0),
            cgroups: cgroups.to_vec(),
            vms,
            cpus,
            tasks: tasks.len(),
            now: START,
        }
    }

    pub(super) fn wake(&mut self, tasks: Range<usize>) {
        for task in tasks {
            self.instep.kernel().wake(task, Waker::Other(0), self.now);
            run_due_work(&mut self.instep, self.now);
        }
    }

    /// A second goes by, then user space looks; it looks within 200 ms when a weight has changed. CPUs that each task
    /// had.
    fn second(&mut self) -> Vec<f64> {
        let mut sum = vec![0.0; self.tasks];
        for part in 1..=5 {
            let ran = limits::run(&mut self.instep, self.cpus, self.tasks, self.now, 200);
            self.now += SECOND / 5;
            if part == 5 || self.instep.counter(Counter::Reweighed) != self.looked.1 {
                self.update_weights();
            }
            sum.iter_mut().zip(ran).for_each(|(sum, ms)| *sum += ms / 1000.0);
        }
        sum
    }

    fn update_weights(&mut self) {
        let reweighed = self.instep.counter(Counter::Reweighed);
        let (before, _) = std::mem::replace(&mut self.looked, (self.now, reweighed));
        let elapsed = (self.now - before) as f64;
        let state = self.instep.kernel().globals();
        let want =
            |now: u64, before: &mut u64| (now - std::mem::replace(before, now)) as f64 / elapsed;
        let mut groups = Vec::new();
        for (at, (above, _, _)) in self.cgroups.iter().enumerate() {
            // SAFETY: as above.
            let (now, shares) = unsafe {
                (
                    c::shim_group_want(state, at as u32 + 1),
                    c::shim_group_shares(state, at as u32 + 1),
                )
            };
            let wants = want(now, &mut self.before.0[at]);
            groups.push(Group {
                id: at as u64 + 1,
                parent: (*above).into(),
                weight: shares as f64 * 100.0 / 1_048_576.0,
                wants,
                most: f64::INFINITY,
            });
        }
        let mut vms = Vec::new();
        for (at, of) in self.vms.iter().enumerate() {
            // SAFETY: as above.
            let now = unsafe { c::shim_vm_wanted(state, at as u32 + 1) };
            let wants = want(now, &mut self.before.1[at]);
            let group = self
                .cgroups
                .iter()
                .position(|(_, _, tasks)| tasks == of)
                .map_or(0, |at| at as u64 + 1);
            vms.push(entitled::EntitledVm { group, weight: 100.0, wants, most: of.len() as f64 });
        }
        let weights = entitled::weights(self.cpus as f64, &groups, &vms);
        // SAFETY: as above.
        unsafe {
            for (number, weight) in (1..).zip(&weights.threads) {
                c::shim_set_thread_weight(state, number, *weight);
            }
            for (number, weight) in (1..).zip(&weights.vms) {
                c::shim_set_vm_weight(state, number, *weight);
            }
            c::shim_set_mean_weight(state, weights.mean);
        }
    }

    /// What each cgroup had in the last of these seconds, on average.
    fn after(&mut self, warm: u32, seconds: u32) -> Vec<f64> {
        let ran = self.ran(warm, seconds);
        self.cgroups.iter().map(|(_, _, of)| ran[of.clone()].iter().sum()).collect()
    }

    /// What each task had in the last of these seconds, on average.
    pub(super) fn ran(&mut self, warm: u32, seconds: u32) -> Vec<f64> {
        (0..warm).for_each(|_| _ = self.second());
        let mut sum = vec![0.0; self.tasks];
        for _ in 0..seconds {
            sum.iter_mut()
                .zip(self.second())
                .for_each(|(sum, ran)| *sum += ran / f64::from(seconds));
        }
        sum
    }
}

#[track_caller]
pub(super) fn assert_near(got: &[f64], wanted: &[f64], part: f64) {
    let off = |(got, wanted): (&f64, &f64)| (got - wanted).abs() > wanted * part;
    assert!(!got.iter().zip(wanted).any(off), "{got:.3?} and not {wanted:?}");
}

#[test]
fn services_of_the_host_share_by_weight() {
    let mut host = Host::new(&cores(4), &[], 24, &[(0, 100, 0..8), (0, 300, 8..24)]);
    host.wake(0..24);
    assert_near(&host.after(3, 4), &[1.0, 3.0], 0.03);
}

#[test]
fn weights_of_slices_count_before_those_within() {
    // machine.slice with VMs of weight 100 and 300 beside system.slice with one service, each slice of weight 100.
    let tree = [(0, 100, 0..0), (1, 100, 0..8), (1, 300, 8..16), (0, 100, 0..0), (4, 50, 16..24)];
    let mut host = Host::new(&cores(8), &[8, 8], 8, &tree);
    host.wake(0..24);
    let got = host.after(3, 4);
    assert_near(&[got[1], got[2], got[4]], &[1.0, 3.0, 4.0], 0.03);
}

#[test]
fn trees_hold_on_32_cpus_of_two_nodes() {
    let machine = Machine {
        core: (0..32).map(|cpu| vec![cpu]).collect(),
        node: (0..32).map(|cpu| cpu / 16).collect(),
    };
    // Two tiers of VMs of 8 vCPUs, 3 : 1, beside services of the host in two cgroups of one slice.
    let tier =
        |above, first: usize| (0..4).map(move |k| (above, 100, first + 8 * k..first + 8 * (k + 1)));
    let mut tree = vec![
        (0, 400, 0..0),
        (1, 300, 0..0),
        (1, 100, 0..0),
        (0, 100, 0..0),
        (4, 100, 64..96),
        (4, 300, 96..128),
    ];
    tree.extend(tier(2, 0).chain(tier(3, 32)));
    let mut host = Host::new(&machine, &[8; 8], 64, &tree);
    host.wake(0..128);
    let got = host.after(4, 4);
    // Of 25.6 CPUs of VMs three quarters are the first tier's; 6.4 are the services'.
    let tiers = [&got[6..10], &got[10..14]].map(|vms| vms.iter().sum::<f64>());
    let wanted = [19.2, 6.4, 1.6, 4.8];
    assert_near(&[tiers[0], tiers[1], got[4], got[5]], &wanted, 0.03);
    assert_near(&got[6..], &[[4.8; 4], [1.6; 4]].concat(), 0.05);
}

#[test]
fn weight_of_a_slice_counts_however_deep_threads_lie_below_it() {
    // Two slices of weight 100. In one of them a user has made 40 cgroups of the highest weight, each within the one before.
    let mut tree = vec![(0, 100, 0..8), (0, 100, 0..0)];
    tree.extend((2..41).map(|above| (above, 10_000, 0..0)));
    tree.push((41, 10_000, 8..16));
    let mut host = Host::new(&cores(4), &[], 16, &tree);
    host.wake(0..16);
    let ran = host.ran(3, 4);
    assert_near(&[ran[..8].iter().sum(), ran[8..].iter().sum()], &[2.0, 2.0], 0.03);
}

#[test]
fn idle_cgroup_has_what_others_leave() {
    let mut host = Host::new(&cores(4), &[], 16, &[(0, 100, 0..8), (0, 100, 8..16)]);
    // As the kernel writes it for cpu.idle: WEIGHT_IDLEPRIO.
    // SAFETY: it is the state that this scheduler was loaded with.
    unsafe { c::shim_share_group(host.instep.kernel().globals(), 2, 3 << 10) };
    host.wake(0..16);
    let got = host.after(3, 4);
    assert!(got[0] > 3.9 && got[1] > 0.0, "{got:?}");
}

#[test]
fn weight_that_changes_acts_within_a_second() {
    let mut host = Host::new(&cores(4), &[], 16, &[(0, 100, 0..8), (0, 100, 8..16)]);
    host.wake(0..16);
    assert_near(&host.after(3, 2), &[2.0, 2.0], 0.03);
    // SAFETY: it is the state that this scheduler was loaded with.
    unsafe { c::shim_weigh_group(host.instep.kernel().globals(), 2, 300, 0) };
    assert_near(&host.after(1, 2), &[1.0, 3.0], 0.03);
    assert_eq!(host.instep.counter(Counter::Reweighed), 1, "one that comes has not changed");
}

#[test]
fn weight_and_cpu_idle_of_a_slice_act_within_a_second() {
    // The slice of two VMs, 1 : 3, beside one with a service.
    let tree = [(0, 100, 0..0), (1, 100, 0..8), (1, 300, 8..16), (0, 100, 0..0), (4, 100, 16..24)];
    let mut host = Host::new(&cores(8), &[8, 8], 8, &tree);
    host.wake(0..24);
    let mut then = |of_vms: u64, of_services: u64, wanted: [f64; 3]| {
        // SAFETY: it is the state that this scheduler was loaded with.
        unsafe {
            let state = host.instep.kernel().globals();
            c::shim_share_group(state, 1, of_vms);
            c::shim_share_group(state, 4, of_services);
        }
        let got = host.after(1, 2);
        let near = |(got, wanted): (f64, f64)| (got - wanted).abs() < 0.03 * wanted + 0.03;
        assert!([got[1], got[2], got[4]].into_iter().zip(wanted).all(near), "{got:?}, {wanted:?}");
    };
    then(Cgroup::SHARES, Cgroup::SHARES, [1.0, 3.0, 4.0]);
    then(3 * Cgroup::SHARES, Cgroup::SHARES, [1.5, 4.5, 2.0]);
    then(Cgroup::IDLE_SHARES, Cgroup::SHARES, [0.0, 0.0, 8.0]);
    then(Cgroup::SHARES, Cgroup::IDLE_SHARES, [2.0, 6.0, 0.0]);
}

#[test]
fn nice_values_hold_among_threads_of_the_host() {
    // Nice -5, as the kernel has it: three times nice 0. The last have SCHED_IDLE.
    for (weight, wanted) in [(305, [1.0, 3.0]), (1, [3.96, 0.04])] {
        let mut host = Host::new(&cores(4), &[], 16, &[(0, 100, 0..8), (0, 100, 8..16)]);
        (0..8).chain(8..16).for_each(|task| host.instep.kernel().set_group(task, 0));
        (8..16).for_each(|task| host.instep.kernel().set_weight(task, weight));
        host.wake(0..16);
        let ran: Vec<f64> = (0..4)
            .map(|_| {
                let ran = limits::run(&mut host.instep, 4, 16, host.now, 1000);
                host.now += SECOND;
                ran[8..].iter().sum::<f64>() / 1000.0
            })
            .collect();
        let got = ran[1..].iter().sum::<f64>() / 3.0;
        assert!((got - wanted[1]).abs() < 0.1, "weight {weight}: {got:.3} and not {}", wanted[1]);
    }
}

#[test]
fn thread_of_little_weight_in_a_vm_leaves_cpus_to_its_siblings() {
    // The last thread of a VM that is alone on one CPU or two, or beside another VM. It had a quarter to a half of them.
    for (cpus, vms) in [(1, vec![2]), (1, vec![3]), (2, vec![4]), (2, vec![3, 2])] {
        let (own, all): (usize, usize) = (vms[0], vms.iter().sum());
        // SCHED_IDLE; nice 10, as the kernel has it.
        for (weight, least, most) in [(1, 0.02, 0.1), (11, 0.02, 0.17)] {
            let mut host = Host::new(&cores(cpus), &vms, 0, &[]);
            host.instep.kernel().set_weight(own - 1, weight);
            host.wake(0..all);
            limits::run(&mut host.instep, cpus, all, host.now, 1000);
            let ran = limits::run(&mut host.instep, cpus, all, host.now + SECOND, 4000);
            let part = ran[own - 1] / ran[..own].iter().sum::<f64>();
            assert!(
                (least..=most).contains(&part),
                "weight {weight}: {part:.3} of {vms:?} on {cpus} CPUs"
            );
        }
    }
    // The only one of its VM that wants a CPU has the VM's share.
    let mut host = Host::new(&cores(1), &[2, 1], 0, &[]);
    host.instep.kernel().set_weight(1, 1);
    host.wake(1..3);
    let ran = limits::run(&mut host.instep, 1, 3, host.now, 4000);
    assert!((ran[1] - 2000.0).abs() < 100.0, "{ran:?}");
}
