//! What is held in an emulated host so that its kernel's code stays as it is: a VM that never runs, and
//! tracepoints ([`tracepoints`]).
//!
//! Linux patches its own code when the first VM comes and when the last vCPU whose interrupt controller
//! is off goes (`preempt_notifier_key`, virt/kvm/kvm_main.c; `apic_sw_disabled`, arch/x86/kvm/lapic.c,
//! 7.2): a breakpoint is put there and taken away again while all CPUs run. A CPU that QEMU emulates may
//! translate the old bytes just then, meets the breakpoint later, and the kernel dies of it
//! (`Oops: int3`, in `__schedule` or `apic_has_pending_timer`; QEMU 7.2). Eight guests that boot at once
//! were enough in two of three runs. One vCPU that is never started keeps both switched on. While it is
//! made, each other CPU has a real-time thread that stays at user level: none is where code changes.
//! QEMU 10.0 was not seen to do it.

mod tracepoints;

use crate::error::Error;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// From the kernel's include/uapi/linux/kvm.h.
const KVM_CREATE_VM: libc::c_ulong = 0xae01;
const KVM_GET_VCPU_MMAP_SIZE: libc::c_ulong = 0xae04;
const KVM_CREATE_VCPU: libc::c_ulong = 0xae41;
const KVM_CREATE_IRQCHIP: libc::c_ulong = 0xae60;

/// What keeps CPUs busy ends itself after this.
const QUIET: Duration = Duration::from_secs(10);

const KVM: &str = "/dev/kvm";

/// Makes a VM of one vCPU with an interrupt controller, which is there as long as this process, and switches
/// tracepoints on for good; what of it this kernel refuses. A mapping holds the VM, not descriptors: by those a
/// host's VMs are found, and this is none of them.
pub fn hold() -> Vec<Error> {
    let vm = || {
        let kvm = File::options().read(true).write(true).open(KVM)?;
        quietly(|| held(&kvm))
    };
    let vm = vm().map_err(|error| Error::io("hold a VM by", Path::new(KVM), error));
    let tracepoints = tracepoints::hold(Path::new(tracepoints::TRACING));
    [vm, tracepoints].into_iter().filter_map(Result::err).collect()
}

/// Does `what` while every other CPU that this thread may use runs a loop at user level. Where such a
/// thread cannot be had, it is done without.
fn quietly<T>(what: impl FnOnce() -> T) -> T {
    let all = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu));
    let own = cpus.next();
    let (busy, is_done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let until = Instant::now() + QUIET;
    let occupy = |cpu: usize| {
        let on_it = on_one(cpu) && is_first_of_all();
        busy.fetch_add(1, Ordering::Relaxed);
        while on_it && !is_done.load(Ordering::Relaxed) && Instant::now() < until {
            std::hint::spin_loop();
        }
    };
    thread::scope(|scope| {
        own.map(on_one);
        let others = cpus
            .filter_map(|cpu| thread::Builder::new().spawn_scoped(scope, move || occupy(cpu)).ok())
            .count();
        while busy.load(Ordering::Relaxed) < others && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        let result = what();
        is_done.store(true, Ordering::Relaxed);
        let _ = sched_setaffinity(None, &all);
        result
    })
}

/// Binds this thread to a CPU; whether it is.
fn on_one(cpu: usize) -> bool {
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).is_ok()
}

/// Makes this thread the one that goes before all others of its CPU; whether it is.
fn is_first_of_all() -> bool {
    let most = libc::sched_param { sched_priority: 99 };
    // SAFETY: `most` is a whole sched_param; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const most) == 0 }
}

fn held(kvm: &File) -> io::Result<()> {
    let vm = made(ask(kvm.as_raw_fd(), KVM_CREATE_VM)?);
    ask(vm.as_raw_fd(), KVM_CREATE_IRQCHIP)?;
    let vcpu = made(ask(vm.as_raw_fd(), KVM_CREATE_VCPU)?);
    let size = usize::try_from(ask(kvm.as_raw_fd(), KVM_GET_VCPU_MMAP_SIZE)?).unwrap_or(0);
    // SAFETY: a new mapping at an address that the kernel chooses; nothing reads or writes it.
    let mapped = unsafe {
        let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        libc::mmap(std::ptr::null_mut(), size, protection, flags, vcpu.as_raw_fd(), 0)
    };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes a request of KVM whose argument is 0.
fn ask(to: RawFd, request: libc::c_ulong) -> io::Result<i32> {
    // SAFETY: these requests take a number, no pointer.
    let answer = unsafe { libc::ioctl(to, request, 0) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// Takes over a descriptor that KVM just made.
fn made(descriptor: RawFd) -> File {
    // SAFETY: it is open, and nobody else's.
    unsafe { File::from_raw_fd(descriptor) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_quietly_is_done_at_once_and_once() {
        let begin = Instant::now();
        let mut times = 0;
        thread::scope(|scope| scope.spawn(|| quietly(|| times += 1)).join().unwrap());
        assert_eq!(times, 1);
        assert!(begin.elapsed() < QUIET);
    }
}
