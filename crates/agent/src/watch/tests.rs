//! A made scheduler and two VMs on a made host.

use super::*;
use crate::dispatch::in_force::VcpuInForce;
use crate::dispatch::{VmInForce, WaitsInForce, take_held};
use crate::observe::Observer;
use crate::record::Record;
use instep_core::decision::Action;
use instep_core::units::{Bytes, Milli, Tid};
use instep_host::Root;
use instep_host::discover::ScanOptions;
use instep_madehost::{HostSpec, MadeHost, VmSpec, Vmm};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

const LATER: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(1);

/// A kernel scheduler of which everything is known only when it is looked after.
#[derive(Debug, Default)]
pub(crate) struct Fake {
    /// Whether it is in force.
    pub(crate) in_force: Rc<Cell<bool>>,
    /// How many VMs it has room for.
    pub(crate) room: usize,
    /// What is done with it, in order.
    pub(crate) log: Rc<RefCell<Vec<&'static str>>>,
    seen_in_force: bool,
    homes: BTreeMap<VmKey, NodeId>,
    held: BTreeMap<String, Nanos>,
    refused: BTreeSet<VmKey>,
}

impl Scheduler for Fake {
    fn keeps_homes(&self) -> bool {
        self.seen_in_force
    }

    fn keeps_home(&self, vm: VmKey) -> bool {
        self.seen_in_force && !self.refused.contains(&vm)
    }

    fn held(&self) -> BTreeMap<String, Nanos> {
        self.held.clone()
    }

    fn note_homes(&mut self, homes: BTreeMap<VmKey, NodeId>) {
        self.log.borrow_mut().push("noted");
        self.homes = homes;
    }

    fn note_arrivals(&mut self) {
        self.log.borrow_mut().push("noted arrivals");
    }

    fn follow_weights(&mut self) {
        self.log.borrow_mut().push("followed weights");
    }

    fn supervise(&mut self) -> Vec<String> {
        self.log.borrow_mut().push("looked");
        self.seen_in_force = self.in_force.get();
        self.refused = self.homes.keys().skip(self.room).copied().collect();
        vec!["looked".to_owned()]
    }
}

/// Counts notices.
#[derive(Default)]
pub(crate) struct Counting(pub(crate) usize);

impl Sink for Counting {
    fn record(&mut self, _: &Record<'_>) {}
    fn notice(&mut self, _: &str) {
        self.0 += 1;
    }
}

/// A scheduler in force with room for so many VMs, looked at before the first cycle.
pub(crate) fn watch(room: usize) -> (Watch<Fake>, Rc<Cell<bool>>) {
    let in_force = Rc::new(Cell::new(true));
    let fake = Fake { in_force: Rc::clone(&in_force), room, ..Fake::default() };
    let mut watch = Watch::of(Some(fake));
    watch.supervise_scheduler(&mut Counting::default());
    (watch, in_force)
}

/// Looks always, not once a second.
pub(crate) fn looks_always(watch: &mut Watch<Fake>) {
    watch.every = Duration::ZERO;
}

/// Two busy VMs, `a` on node 1 and `b` on node 0 of two, which nobody bound.
pub(crate) fn observed() -> (Observer, Observation) {
    let dir = instep_madehost::scratch_dir().unwrap();
    let mut made = MadeHost::new(HostSpec::new(2, 4));
    made.noise = false;
    for (name, node) in [("a", 1), ("b", 0)] {
        let vm = VmSpec::new(name, Vmm::QemuKvm, 2, NodeId(node), Bytes::from_mib(512));
        made.push(vm.load(Milli(600)));
    }
    made.write(dir.path()).unwrap();
    let mut observer = Observer::new(Root::at(dir.path()), ScanOptions::once()).unwrap();
    let observation = observer.observe(None, None).unwrap();
    (observer, observation)
}

/// A cycle that is carried out; how many vCPUs were bound, and which homes were told.
fn cycle(watch: &mut Watch<Fake>, observation: &Observation) -> (usize, Vec<bool>) {
    let mut decided = watch.decide(observation, (&Config::default(), 1));
    let keys = observation.scan.vms.iter().map(VmKey::from);
    let homes = keys.zip([1, 0].map(NodeId)).collect();
    watch.tell(homes, (decided.soft, &mut decided.new_homes), &mut Counting::default());
    let bound = |action: &&Action| matches!(action, Action::SetVcpuAffinity { .. });
    let taken = decided.new_homes.iter().map(|told| told.taken).collect();
    (decided.decision.actions.iter().filter(bound).count(), taken)
}

/// How long it is to the next cycle.
fn pause(watch: &Watch<Fake>) -> Duration {
    watch.pause(LATER, SOON)
}

#[test]
fn time_for_which_limits_held_a_vm_is_no_steal() {
    let ((mut watch, _), (_, mut seen)) = (watch(9), observed());
    let held = |ns| [("a".to_owned(), Nanos(ns))].into();
    let vms = &mut seen.snapshot.vms;
    let a = vms.iter().position(|vm| vm.name == "a").unwrap();
    for (at, ns) in [(0, 600), (1, 400)] {
        vms[a].vcpus[at].steal = Nanos(ns);
    }
    let was = vms.clone();
    let waits = |vms: &[Vm]| [0, 1].map(|at| vms[a].vcpus[at].steal.0);
    watch.scheduler.as_mut().unwrap().held = held(5000);
    watch.take_held(vms);
    assert_eq!(*vms, was, "since when is not known");
    watch.scheduler.as_mut().unwrap().held = held(5500);
    watch.take_held(vms);
    assert_eq!((waits(vms), vms[a].throttled), ([300, 200], Nanos(500)));
    // One that was loaded again counts from 0.
    watch.scheduler.as_mut().unwrap().held = held(10);
    watch.take_held(vms);
    assert_eq!(waits(vms), [300, 200]);
    // Threads that are no vCPUs were held, too.
    watch.scheduler.as_mut().unwrap().held = held(9999);
    watch.take_held(vms);
    assert_eq!((waits(vms), vms[a].throttled), ([0, 0], Nanos(1000)));
}

#[test]
fn looks_without_a_run_take_it_out_of_steal_by_its_last_rate() {
    let (_, mut seen) = observed();
    let vms = &mut seen.snapshot.vms;
    let a = vms.iter().position(|vm| vm.name == "a").unwrap();
    vms[a].vcpus[1].steal = Nanos(900);
    let was = vms.clone();
    let told = |tid, held_milli| {
        let vcpus = vec![VcpuInForce { tid, waits: WaitsInForce::default() }];
        vec![VmInForce { held_milli, vcpus, ..VmInForce::default() }]
    };
    let first = vms[a].vcpus[0].tid;
    take_held(vms, Nanos(1000), &told(Tid(1), 300));
    take_held(vms, Nanos(1000), &told(first, 0));
    assert_eq!(*vms, was, "another VM, and one that no limit holds");
    take_held(vms, Nanos(1000), &told(first, 300));
    assert_eq!((vms[a].vcpus[1].steal, vms[a].throttled), (Nanos(600), Nanos(300)));
}

#[test]
fn cycle_follows_soon_when_the_scheduler_comes_and_when_it_goes() {
    let ((mut watch, in_force), (_, seen)) = (watch(9), observed());
    assert_eq!(pause(&watch), SOON, "it came into force");
    assert_eq!(cycle(&mut watch, &seen), (0, vec![true, true]));
    assert_eq!((pause(&watch), watch.pause(SOON / 2, SOON)), (LATER, SOON / 2));
    in_force.set(false);
    assert_eq!(pause(&watch), LATER, "nobody looked");
    watch.supervise_scheduler(&mut Counting::default());
    assert_eq!(pause(&watch), SOON);
    assert_eq!(cycle(&mut watch, &seen), (4, vec![]));
    assert_eq!(pause(&watch), LATER);
}

#[test]
fn scheduler_that_is_back_before_cycle_keeps_what_was_left_to_it() {
    let ((mut watch, in_force), (_, seen)) = (watch(9), observed());
    cycle(&mut watch, &seen);
    for (now, then) in [(false, SOON), (true, LATER)] {
        in_force.set(now);
        watch.supervise_scheduler(&mut Counting::default());
        assert_eq!(pause(&watch), then);
    }
}

#[test]
fn a_cycle_that_failed_is_followed_by_another_soon() {
    let ((mut watch, in_force), (_, seen)) = (watch(9), observed());
    cycle(&mut watch, &seen);
    in_force.set(false);
    watch.supervise_scheduler(&mut Counting::default());
    for _ in 0..2 {
        let decided = watch.decide(&seen, (&Config::default(), 2));
        assert!(decided.new_homes.is_empty() && !decided.decision.actions.is_empty());
        assert_eq!(pause(&watch), SOON, "what was decided was not done");
    }
}

#[test]
fn a_vm_that_turns_out_to_find_no_room_is_bound_soon() {
    let ((mut watch, _), (_, seen)) = (watch(1), observed());
    assert_eq!(cycle(&mut watch, &seen), (0, vec![true, false]));
    assert_eq!(pause(&watch), SOON);
    assert_eq!(cycle(&mut watch, &seen), (2, vec![]), "b is bound");
    assert_eq!(pause(&watch), LATER);
}

#[test]
fn looks_in_the_midst_of_work_are_a_second_apart_and_reported() {
    let ((mut watch, _), (_, seen), mut heard) = (watch(9), observed(), Counting::default());
    cycle(&mut watch, &seen);
    watch.every = Duration::from_secs(3600);
    let log = Rc::clone(&watch.scheduler.as_ref().unwrap().log);
    log.borrow_mut().clear();
    assert!(!watch.interrupts(&mut heard) && heard.0 == 0);
    assert_eq!(log.borrow()[..], ["followed weights"], "which does not wait for the next look");
    // Neither does a wait that goes round more often, as for new VMs.
    (0..5).for_each(|_| watch.supervise_if_due(&mut heard));
    assert_eq!(heard.0, 0);
    looks_always(&mut watch);
    assert!(!watch.interrupts(&mut heard) && heard.0 == 1);
}

#[test]
fn scheduler_learns_of_a_new_vm_before_the_next_scan() {
    let ((mut watch, _), mut heard) = (watch(9), Counting::default());
    watch.every = Duration::from_secs(3600);
    let log = Rc::clone(&watch.scheduler.as_ref().unwrap().log);
    log.borrow_mut().clear();
    watch.note_arrivals(&mut heard);
    assert_eq!(log.borrow()[..], ["noted arrivals", "looked"]);
}

#[test]
fn vms_that_come_again_and_again_are_reported_at_intervals() {
    let ((mut watch, _), mut heard) = (watch(9), Counting::default());
    watch.every = Duration::from_secs(3600);
    watch.between_arrivals = Duration::from_secs(3600);
    let log = Rc::clone(&watch.scheduler.as_ref().unwrap().log);
    let told = || log.borrow().iter().filter(|what| **what == "noted arrivals").count();
    (0..5).for_each(|_| watch.note_arrivals(&mut heard));
    assert_eq!(told(), 1, "the first one at once, the others not yet");
    watch.supervise_if_due(&mut heard);
    assert_eq!(told(), 1);
    watch.between_arrivals = Duration::ZERO;
    watch.supervise_if_due(&mut heard);
    assert_eq!(told(), 2, "it is told of the others without a further one");
    watch.supervise_if_due(&mut heard);
    assert_eq!(told(), 2, "once");
}
