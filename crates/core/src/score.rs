//! What remote memory and shared cores cost, in CPU time: measured by others, used by the policies.

use crate::units::Milli;

/// CPU time lost by a vCPU whose memory is all one hop away (SLIT distance 20), in thousandths
/// of its demand. Best Node gains 4 to 23 %, bt 14.5 %, over a kernel default that leaves about
/// three quarters of the memory of 4-node hosts remote (systems.md 4): 14.5 % / 0.75.
pub const REMOTE: Milli = Milli(200);

/// CPU time lost by a pair of fully busy siblings on one core, in thousandths of a CPU: the
/// second thread adds 30 % (Marr et al., Hyper-Threading Technology Architecture and
/// Microarchitecture, 2002), so two threads do the work of 1.3 and lose 0.7. Modules lose less:
/// fib runs 38 % longer (systems.md 1), which is 0.55.
pub const SHARED: Milli = Milli(700);
