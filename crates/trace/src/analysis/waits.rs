//! The wait table (systems.md, 2): how long each vCPU slept, by who ended it, and how long sleeps
//! and waits for a CPU are.
//!
//! A sleep that a sibling's thread ends is an inter-processor interrupt: synchronisation. One that
//! ends in an interrupt is the guest's timer or a device; one by another thread of the VM, a vhost
//! or kernel thread is I/O.

use super::world::{IDLE, SchedState, VcpuChange, World};
use crate::event::Context;
use instep_core::units::{Nanos, Tid};
use schemars::JsonSchema;
use serde::Serialize;

/// Sleeps of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Sleeps {
    /// How many.
    pub count: u64,
    /// How long together.
    pub ns: u64,
}

/// Sleeps by who ended them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct WaitTable {
    /// A sibling vCPU.
    pub sibling: Sleeps,
    /// Another thread of the VM, a vhost thread or a kernel thread.
    pub io: Sleeps,
    /// An interrupt: the guest's timer, or a device.
    pub timer: Sleeps,
    /// Somebody else, or the trace does not say.
    pub other: Sleeps,
}

/// Halts of a guest's CPU, as KVM ends them (kvm_vcpu_wakeup): the thread sleeps, or it polls for an end
/// first and needs no sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Halts {
    /// How many.
    pub count: u64,
    /// How many ended while the thread polled.
    pub polled: u64,
    /// How long it polled in these, which is time that it ran.
    pub polled_ns: u64,
}

/// Durations by powers of two: place `n` counts those from 2^n up to 2^(n+1) microseconds, the
/// first also shorter ones, the last also longer ones.
pub type Histogram = [u64; 20];

/// Of all vCPUs.
#[derive(Debug)]
pub(super) struct Waits {
    vcpus: Vec<WakeupTally>,
    /// Whether the trace tells of halts.
    has_halts: bool,
}

#[derive(Clone, Debug, Default)]
struct WakeupTally {
    waker: Option<WakerKind>,
    halts: Halts,
    /// Since when it could run and does not.
    wants: Nanos,
    table: WaitTable,
    sleeps: Histogram,
    waits: Histogram,
}

#[derive(Clone, Copy, Debug)]
enum WakerKind {
    Sibling,
    Io,
    Timer,
    Other,
}

impl Waits {
    pub(super) fn new(vcpus: usize) -> Self {
        Waits { vcpus: vec![WakeupTally::default(); vcpus], has_halts: false }
    }

    /// A halt ended, that of a known vCPU or another.
    pub(super) fn halted(&mut self, vcpu: Option<usize>, time: Nanos, slept: bool) {
        self.has_halts = true;
        let Some(vcpu) = vcpu else { return };
        let halts = &mut self.vcpus[vcpu].halts;
        halts.count += 1;
        if !slept {
            halts.polled += 1;
            halts.polled_ns = halts.polled_ns.saturating_add(time.0);
        }
    }

    /// Halts of these vCPUs together, where the trace tells of any.
    pub(super) fn halts(&self, vcpus: &[usize]) -> Option<Halts> {
        let add = |sum: Halts, vcpu: &usize| {
            let more = self.vcpus[*vcpu].halts;
            Halts {
                count: sum.count + more.count,
                polled: sum.polled + more.polled,
                polled_ns: sum.polled_ns.saturating_add(more.polled_ns),
            }
        };
        self.has_halts.then(|| vcpus.iter().fold(Halts::default(), add))
    }

    /// Somebody is about to wake this vCPU.
    pub(super) fn waker(&mut self, world: &World, vcpu: usize, waker: Tid, context: Context) {
        let vm = world.vcpus[vcpu].vm;
        let kind = match context {
            Context::Interrupt | Context::SoftInterrupt => WakerKind::Timer,
            Context::Thread => match world.vcpu_of(waker) {
                Some(sibling) if world.vcpus[sibling].vm == vm => WakerKind::Sibling,
                Some(_) => WakerKind::Other,
                None => match world.group_of(waker) {
                    // The idle thread wakes nobody by itself: it was interrupted.
                    IDLE => WakerKind::Timer,
                    group if world.vm_of_group(group) == Some(vm) => WakerKind::Io,
                    group if is_kernel(&world.groups[group]) => WakerKind::Io,
                    _ => WakerKind::Other,
                },
            },
        };
        self.vcpus[vcpu].waker = Some(kind);
    }

    /// Whether it is known who wakes this vCPU next.
    pub(super) fn has_waker(&self, vcpu: usize) -> bool {
        self.vcpus[vcpu].waker.is_some()
    }

    pub(super) fn change(&mut self, change: &VcpuChange) {
        let vcpu = &mut self.vcpus[change.vcpu];
        let span = change.time.since(change.since);
        if !change.from.is_waiting() && change.to.is_waiting() {
            vcpu.wants = change.time;
        }
        match (change.from, change.to) {
            (SchedState::Blocked, _) => {
                let kind = vcpu.waker.take().unwrap_or(WakerKind::Other);
                let sleeps = match kind {
                    WakerKind::Sibling => &mut vcpu.table.sibling,
                    WakerKind::Io => &mut vcpu.table.io,
                    WakerKind::Timer => &mut vcpu.table.timer,
                    WakerKind::Other => &mut vcpu.table.other,
                };
                sleeps.count += 1;
                sleeps.ns += span.0;
                vcpu.sleeps[class(span)] += 1;
            }
            (from, SchedState::Running(_)) if from.is_waiting() => {
                vcpu.waits[class(change.time.since(vcpu.wants))] += 1;
            }
            _ => {}
        }
    }

    /// A vCPU's table, and how its sleeps and its waits for a CPU are distributed.
    pub(super) fn of(&self, vcpu: usize) -> (WaitTable, Histogram, Histogram) {
        let vcpu = &self.vcpus[vcpu];
        (vcpu.table, vcpu.sleeps, vcpu.waits)
    }
}

fn is_kernel(name: &str) -> bool {
    ["kworker", "ksoftirqd", "vhost-", "irq", "kvm-"].iter().any(|start| name.starts_with(start))
}

/// The place of a duration in a histogram.
fn class(span: Nanos) -> usize {
    let micros = (span.0 / 1000).max(1);
    (micros.ilog2() as usize).min(19)
}

impl WaitTable {
    /// Adds another.
    pub(super) fn add(&mut self, other: &WaitTable) {
        let pairs = [
            (&mut self.sibling, other.sibling),
            (&mut self.io, other.io),
            (&mut self.timer, other.timer),
            (&mut self.other, other.other),
        ];
        for (sum, more) in pairs {
            sum.count += more.count;
            sum.ns += more.ns;
        }
    }

    /// All sleeps.
    pub fn total(&self) -> Sleeps {
        let all = [self.sibling, self.io, self.timer, self.other];
        Sleeps {
            count: all.iter().map(|sleeps| sleeps.count).sum(),
            ns: all.iter().map(|sleeps| sleeps.ns).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_their_power_of_two() {
        let of = |nanos| class(Nanos(nanos));
        assert_eq!([of(0), of(1_999), of(2_000), of(1_000_000), of(u64::MAX)], [0, 0, 1, 9, 19]);
    }
}
