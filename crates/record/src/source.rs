//! What gives events.

use crate::error::Error;
use instep_core::units::CpuId;
use instep_trace::event::Event;
use instep_trace::rec::Lost;

/// Which source is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// BPF, and tracefs where the kernel or the rights do not allow it.
    #[default]
    Auto,
    /// BPF or nothing.
    Bpf,
    /// tracefs or nothing.
    Tracefs,
}

/// What a source is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// Bytes of buffers in the kernel, together.
    pub(crate) buffer: u64,
    /// Online CPUs.
    pub(crate) cpus: Vec<CpuId>,
    /// Processes whose wake-ups and moves alone matter; all when empty.
    pub(crate) only: Vec<u32>,
}

/// Gives events.
pub(crate) trait Source {
    /// What it is called.
    fn name(&self) -> &'static str;

    /// Appends what has come; true when there may be more at once.
    fn drain(&mut self, out: &mut Vec<Event>) -> Result<bool, Error>;

    /// Whether threads that are born come with their process.
    fn tells_processes(&self) -> bool;

    /// Collects no more; what has come can still be drained.
    fn stop(&mut self);

    /// What was lost so far, by place.
    fn lost(&mut self) -> Vec<Lost>;

    /// CPU time of it in the kernel, or why that is not counted.
    fn kernel_cost_ns(&self) -> Result<u64, String>;

    /// What is odd about it.
    fn warnings(&self) -> Vec<String>;
}
