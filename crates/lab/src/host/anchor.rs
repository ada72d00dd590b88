//! A VM that never runs, held in an emulated host so that KVM's code stays as it is.
//!
//! Linux patches its own code when the first VM comes and when the last vCPU whose interrupt controller
//! is off goes (`preempt_notifier_key`, virt/kvm/kvm_main.c; `apic_sw_disabled`, arch/x86/kvm/lapic.c,
//! 7.2): a breakpoint is put there and taken away again while all CPUs run. A CPU that QEMU emulates may
//! translate the old bytes just then, meets the breakpoint later, and the kernel dies of it
//! (`Oops: int3`, in `__schedule` or `apic_has_pending_timer`; QEMU 7.2). Eight guests that boot at once
//! were enough in two of three runs. One vCPU that is never started keeps both switched on.

use crate::error::Error;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

/// From the kernel's include/uapi/linux/kvm.h.
const KVM_CREATE_VM: libc::c_ulong = 0xae01;
const KVM_GET_VCPU_MMAP_SIZE: libc::c_ulong = 0xae04;
const KVM_CREATE_VCPU: libc::c_ulong = 0xae41;
const KVM_CREATE_IRQCHIP: libc::c_ulong = 0xae60;

/// Makes a VM of one vCPU with an interrupt controller, which is there as long as this process. A
/// mapping holds it, not descriptors: by those a host's VMs are found, and this is none of them.
///
/// # Errors
/// When there is no KVM, or it refuses.
pub fn hold() -> Result<(), Error> {
    let failed = |error| Error::io("hold a VM by", "/dev/kvm", error);
    let kvm = File::options().read(true).write(true).open("/dev/kvm").map_err(failed)?;
    held(&kvm).map_err(failed)
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
