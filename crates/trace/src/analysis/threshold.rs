//! Bottlenecks (systems.md, 2): a vCPU that sleeps longer than the ideal scheduling interval
//! `|C| / |P| * T` while siblings could run and do not means that these hold the VM up.
//!
//! Looked at every millisecond of the trace's time, as the published scheduler does periodically.

use super::world::{Place, World};
use instep_core::units::Nanos;

/// How often is looked.
const EVERY: Nanos = Nanos(1_000_000);
/// Times of passes that are kept per VM.
const KEPT: usize = 1000;

/// Of all VMs.
#[derive(Debug)]
pub(super) struct Threshold {
    /// The ideal scheduling interval.
    pub(super) interval: Nanos,
    next: Nanos,
    last: Nanos,
    vms: Vec<HeldUp>,
}

/// When one VM was held up.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldUp {
    is_held: bool,
    /// How often the threshold was passed.
    pub(super) passes: u64,
    /// When, the first of them.
    pub(super) times: Vec<Nanos>,
    /// For how long together, to a millisecond.
    pub(super) held: Nanos,
}

impl Threshold {
    /// `quantum` is `T`, `vcpus` `|C|`, `cpus` `|P|`.
    pub(super) fn new(vms: usize, quantum: Nanos, vcpus: usize, cpus: usize, begin: Nanos) -> Self {
        let vms = vec![HeldUp::default(); vms];
        let interval = Nanos(quantum.0.saturating_mul(vcpus as u64) / cpus.max(1) as u64);
        Threshold { interval, next: Nanos(begin.0.saturating_add(EVERY.0)), last: begin, vms }
    }

    /// Called before the event at `time` changes anything.
    #[inline]
    pub(super) fn upto(&mut self, world: &World, time: Nanos) {
        if time >= self.next {
            self.look(world, time);
        }
    }

    fn look(&mut self, world: &World, time: Nanos) {
        let interval = self.interval;
        let span = time.since(self.last);
        for (vm, state) in self.vms.iter_mut().enumerate() {
            let vcpus = || world.members[vm].iter().map(|vcpu| &world.vcpus[*vcpu]);
            let waits = vcpus().any(|vcpu| vcpu.place.is_waiting());
            let slept = |vcpu: &super::world::Vcpu| {
                vcpu.place == Place::Blocked && time.since(vcpu.since) > interval
            };
            let is_held = waits && vcpus().any(slept);
            if state.is_held {
                state.held.0 += span.0;
            }
            if is_held && !state.is_held {
                state.passes += 1;
                if state.times.len() < KEPT {
                    state.times.push(time);
                }
            }
            state.is_held = is_held;
        }
        self.last = time;
        self.next = Nanos(time.0.saturating_add(EVERY.0));
    }

    pub(super) fn of(&self, vm: usize) -> &HeldUp {
        &self.vms[vm]
    }
}
