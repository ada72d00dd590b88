//! What follows a cycle's affinities: homes are told, then memory moves.

use super::*;
use crate::left_alone::LeftAlone;
use crate::vm_settings::Reported;
use crate::watch::tests::{Counting, looks_always, observed, watch};
use instep_core::idset::NodeSet;
use instep_core::reason::Reason;
use instep_core::snapshot::Vm;
use instep_core::units::Bytes;
use instep_host::Error as HostError;
use instep_host::apply::damon::Region;
use instep_host::apply::move_pages::Pages;
use instep_host::apply::ranges::GuestRanges;
use instep_host::apply::room::Room;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// A host whose VMs have no pages. While it reads where they are the scheduler falls out.
struct NoPages {
    log: Rc<RefCell<Vec<&'static str>>>,
    falls_out: Option<Rc<Cell<bool>>>,
}

impl Host for NoPages {
    type Pages = Empty;

    fn ranges(&mut self, _: u32) -> Result<GuestRanges, HostError> {
        self.log.borrow_mut().push("memory");
        self.falls_out.iter().for_each(|in_force| in_force.set(false));
        Ok(GuestRanges::default())
    }

    fn regions(
        &mut self,
        _: (u32, u64),
        _: &mut dyn FnMut(Duration) -> bool,
    ) -> Result<Option<Vec<Region>>, HostError> {
        Ok(None)
    }

    fn pages(&mut self, _: u32, _: u64) -> Result<Empty, HostError> {
        Ok(Empty)
    }

    fn rooms(&mut self, _: &NodeSet) -> Result<Vec<Room>, HostError> {
        Ok(Vec::new())
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

struct Empty;

impl Pages for Empty {
    fn query(&mut self, _: &[u64], _: &mut [i32]) -> io::Result<()> {
        Ok(())
    }
    fn move_to(&mut self, _: &[u64], _: &[NodeId], _: &mut [i32]) -> io::Result<()> {
        Ok(())
    }
    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

/// What is done, in order, in a cycle that is to bring the memory of both VMs home; and its record's
/// outcomes. The scheduler has room for so many VMs, and falls out at the first VM's memory, or not.
fn goes_home(room: usize, falls_out: bool) -> (Vec<&'static str>, Vec<String>) {
    let ((mut watch, in_force), (mut observer, observation)) = (watch(room), observed());
    looks_always(&mut watch);
    let config = Config::default();
    let Decided { mut decision, new_homes, soft } = watch.decide(&observation, (&config, 1));
    decision.actions = observation.snapshot.vms.iter().map(move_memory).collect();
    let log = watch.scheduler.as_ref().map(|fake| Rc::clone(&fake.log)).unwrap();
    log.borrow_mut().clear();
    let mut done = Done::of(SystemTime::now(), observation, decision, new_homes);
    done.outcomes = vec!["see memory".to_owned(); 2];
    let falls_out = falls_out.then_some(in_force);
    let mut tools = Tools {
        observer: &mut observer,
        known: None,
        applier: None,
        homes: &mut Homes::default(),
        host: &mut NoPages { log: Rc::clone(&log), falls_out },
        watch: &mut watch,
        left_alone: &mut LeftAlone::default(),
        reported: &mut Reported::default(),
        stopping: &mut || false,
        sink: &mut Counting::default(),
        count: 1,
    };
    done.go_home(soft, &mut tools, Some(Limits::of(&config.memory, false)));
    let outcomes = done.record(1, &config, false).actions.into_iter();
    let outcomes = outcomes.map(|action| action.outcome).collect();
    let mut log = log.take();
    // It may be looked after more than once in a row.
    log.dedup();
    (log, outcomes)
}

fn move_memory(vm: &Vm) -> Action {
    let (to, remote) = (NodeSet::one(NodeId(0)), Bytes::from_mib(9));
    Action::MoveMemory { vm: vm.id, guest_node: None, to, remote, why: Reason::PolicyNone }
}

#[test]
fn homes_are_passed_on_before_memory_moves() {
    let (log, outcomes) = goes_home(9, false);
    assert_eq!(log, ["noted", "looked", "memory", "looked", "memory", "looked"]);
    let told = "passed to the kernel scheduler";
    assert_eq!(outcomes, [told, told, "see memory", "see memory"]);
}

#[test]
fn memory_waits_when_the_scheduler_falls_out_meanwhile() {
    let (log, _) = goes_home(9, true);
    assert_eq!(log, ["noted", "looked", "memory", "looked"], "the second VM's is not begun");
}

#[test]
fn memory_waits_for_a_vm_without_room_and_no_record_claims_more() {
    let (log, outcomes) = goes_home(1, false);
    assert!(!log.contains(&"memory"), "{log:?}");
    assert_eq!(outcomes[0], "passed to the kernel scheduler");
    assert!(outcomes[1].starts_with("not passed on: "), "{outcomes:?}");
}
