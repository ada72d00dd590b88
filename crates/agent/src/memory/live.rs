//! The running machine's side of memory's way home: its files, its system calls, its sampling.

use super::Host;
use instep_core::idset::NodeSet;
use instep_core::snapshot::Vm;
use instep_core::units::{Bytes, Tid};
use instep_host::apply::move_pages::KernelPages;
use instep_host::apply::ranges::{self, GuestRanges, Range};
use instep_host::apply::room::{self, Room};
use instep_host::apply::sampling::{HotPages, MemorySampler, Source};
use instep_host::discover::Accel;
use instep_host::{Error, Root};
use std::time::{Duration, Instant};

/// How long a VM's accesses are sampled before its memory moves.
const SAMPLED: Duration = Duration::from_millis(200);
/// How often a request to stop is looked for meanwhile.
const SLICE: Duration = Duration::from_millis(20);
/// Pages brought home with each sampled one, on either side.
const RADIUS: u64 = 16;
/// The most that is preferred for being hot.
const HOT: Bytes = Bytes::from_mib(256);

/// This machine.
#[derive(Debug)]
pub(crate) struct LiveHost {
    /// How this CPU samples memory accesses, if it does.
    source: Option<Source>,
    began: Instant,
}

impl LiveHost {
    /// This machine; `source` tells hot pages.
    pub(crate) fn new(source: Option<Source>) -> Self {
        Self { source, began: Instant::now() }
    }
}

impl Host for LiveHost {
    type Pages = KernelPages;

    fn ranges(&mut self, pid: u32) -> Result<GuestRanges, Error> {
        let (ranges, warnings) = ranges::read_guest(&Root::live(), pid)?;
        for warning in warnings {
            tracing::info!("{warning}");
        }
        Ok(ranges)
    }

    fn hot(
        &mut self,
        vm: &Vm,
        accel: Option<Accel>,
        mapped: &[Range],
        enough: &mut dyn FnMut(Duration) -> bool,
    ) -> Vec<Range> {
        let Some(source) = &self.source else { return Vec::new() };
        if accel == Some(Accel::Kvm) && !source.sees_kvm_guests() {
            return Vec::new();
        }
        let tids: Vec<Tid> = vm.vcpus.iter().map(|vcpu| vcpu.tid).collect();
        let mut pages = HotPages::default();
        match MemorySampler::start(source, vm.id.0, &tids, &vm.allowed()) {
            Ok(mut sampler) => {
                let end = Instant::now() + SAMPLED;
                while Instant::now() < end && !enough(self.now()) {
                    std::thread::sleep(SLICE);
                }
                sampler.drain(&mut pages);
            }
            Err(error) => tracing::info!("{}: not sampled: {error}", vm.name),
        }
        pages.ranges(mapped, RADIUS, HOT)
    }

    fn pages(&mut self, pid: u32, pid_start: u64) -> Result<KernelPages, Error> {
        KernelPages::of(pid, pid_start)
    }

    fn rooms(&mut self, home: &NodeSet) -> Result<Vec<Room>, Error> {
        room::read(&Root::live(), home, None)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}
