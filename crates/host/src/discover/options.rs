//! What a scan may do, and how long that may take.

use super::memory::MemoryOptions;
use std::time::Duration;

/// What a scan may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanOptions {
    /// Whether QMP sockets may be asked (running machine only, whatever is said here).
    pub qmp: bool,
    /// Time for QMP in one scan; monitors that find none left are asked in the next.
    pub qmp_budget: Duration,
    /// Bounds on reading memory figures.
    pub memory: MemoryOptions,
    /// Whether it is read how long threads of no VM waited.
    pub waits: bool,
    /// Whether the definitions of VMs are read.
    pub definitions: bool,
}

impl Default for ScanOptions {
    /// For the loop.
    fn default() -> Self {
        let qmp_budget = Duration::from_millis(500);
        let memory = MemoryOptions::default();
        Self { qmp: true, qmp_budget, memory, waits: true, definitions: true }
    }
}

impl ScanOptions {
    /// For a command that scans once or twice and ends: two seconds for memory figures and two for
    /// QMP.
    pub fn once() -> Self {
        let mut options = Self::default();
        options.memory.budget = Duration::from_secs(2);
        options.qmp_budget = Duration::from_secs(2);
        options
    }
}
