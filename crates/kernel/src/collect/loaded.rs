//! The collector in the kernel. When its links are dropped, or this process dies however, it is
//! gone.

use super::{CollectLost, CollectOptions, Collected, NoCollector, parse};
use crate::collect_skeleton::{CollectSkel, CollectSkelBuilder};
use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, OpenObject, RingBuffer, RingBufferBuilder};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::rc::Rc;

/// The loaded collector.
pub struct Collector {
    // Dropped in order: the links first.
    skel: CollectSkel<'static>,
    ring: RingBuffer<'static>,
    heard: Rc<RefCell<Vec<Collected>>>,
    /// Its programs.
    programs: BTreeSet<u32>,
    warnings: Vec<String>,
    /// What its programs lost and cost at last, kept when they are gone.
    last: (u64, u64),
}

/// How it is told whether a wake-up comes out of an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interrupts {
    /// By the kernel's count (x86 with CONFIG_KALLSYMS_ALL).
    Counted,
    /// By following the handlers, those of the local timer included (x86).
    FollowedWithTimers,
    /// By following the handlers; timers are among them (arm64).
    Followed,
}

/// What of the programs is loaded.
#[derive(Clone, Copy, Debug)]
struct Variant {
    interrupts: Interrupts,
    kvm: bool,
}

/// In the order in which they are tried. Other architectures would load the count and find it
/// zero.
const VARIANTS: &[Variant] = {
    const fn of(interrupts: Interrupts, kvm: bool) -> Variant {
        Variant { interrupts, kvm }
    }
    if cfg!(target_arch = "x86_64") {
        &[
            of(Interrupts::Counted, true),
            of(Interrupts::FollowedWithTimers, true),
            of(Interrupts::Counted, false),
            of(Interrupts::FollowedWithTimers, false),
        ]
    } else {
        &[of(Interrupts::Followed, true), of(Interrupts::Followed, false)]
    }
};

impl std::fmt::Debug for Collector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collector").field("programs", &self.programs).finish_non_exhaustive()
    }
}

impl Collector {
    /// Loads the programs and lets them collect.
    ///
    /// # Errors
    /// The kernel refuses them: no right to (CAP_BPF and CAP_PERFMON, or root), no BTF, older than
    /// 5.18, or locked down.
    pub fn load(options: &CollectOptions) -> Result<Self, NoCollector> {
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Info, |_, text| {
            tracing::debug!("{text}")
        })));
        let mut last = None;
        // Kernels differ; what most have is tried first.
        for variant in VARIANTS.iter().copied() {
            match Self::try_load(options, variant) {
                Ok(mut collector) => {
                    if !variant.kvm {
                        collector.warnings.push(
                            "this kernel has no events of KVM to trace: vCPU threads are known by \
                             the scan and by their names, and halts are not counted"
                                .to_owned(),
                        );
                    }
                    return Ok(collector);
                }
                Err(error) if is_forbidden(&error) => return Err(NoCollector(refusal(&error))),
                Err(error) => last = Some(error),
            }
        }
        Err(NoCollector(last.as_ref().map_or_else(String::new, refusal)))
    }

    fn try_load(options: &CollectOptions, variant: Variant) -> Result<Self, libbpf_rs::Error> {
        let before = programs();
        // The open object must outlive the skeleton; it is as small as a pointer, once per load.
        let object: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = CollectSkelBuilder::default().open(object)?;
        open.maps.ring.set_max_entries(options.ring_bytes)?;
        if let Some(data) = open.maps.rodata_data.as_mut() {
            data.only_wanted = !options.wanted.is_empty();
        }
        let progs = &mut open.progs;
        progs.collect_kvm_entry.set_autoload(variant.kvm);
        progs.collect_kvm_wakeup.set_autoload(variant.kvm);
        let counted = variant.interrupts == Interrupts::Counted;
        progs.collect_waking.set_autoload(counted);
        progs.collect_wakeup.set_autoload(counted);
        progs.collect_wakeup_new.set_autoload(counted);
        progs.collect_waking_f.set_autoload(!counted);
        progs.collect_wakeup_f.set_autoload(!counted);
        progs.collect_wakeup_new_f.set_autoload(!counted);
        progs.collect_irq_entry.set_autoload(!counted);
        progs.collect_irq_exit.set_autoload(!counted);
        progs.collect_softirq_entry.set_autoload(!counted);
        progs.collect_softirq_exit.set_autoload(!counted);
        let timers = variant.interrupts == Interrupts::FollowedWithTimers;
        progs.collect_timer_entry.set_autoload(timers);
        progs.collect_timer_exit.set_autoload(timers);
        let mut skel = open.load()?;
        for tgid in &options.wanted {
            skel.maps.wanted.update(&tgid.to_ne_bytes(), &[1], MapFlags::ANY)?;
        }
        let heard = Rc::new(RefCell::new(Vec::new()));
        let mut rings = RingBufferBuilder::new();
        let into = Rc::clone(&heard);
        rings.add(&skel.maps.ring, move |bytes| {
            into.borrow_mut().extend(parse(bytes));
            0
        })?;
        let ring = rings.build()?;
        skel.attach()?;
        let programs = programs().difference(&before).copied().collect();
        Ok(Self { skel, ring, heard, programs, warnings: Vec::new(), last: (0, 0) })
    }

    /// What is odd about it.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Appends up to about `most` events in the order of the ring, and says how many.
    ///
    /// # Errors
    /// The ring cannot be read, which does not happen.
    pub fn drain(&mut self, most: usize, out: &mut Vec<Collected>) -> Result<usize, NoCollector> {
        let got = self.ring.consume_raw_n(most);
        let got = usize::try_from(got)
            .map_err(|_| NoCollector(format!("the ring cannot be read (error {got})")))?;
        out.append(&mut self.heard.borrow_mut());
        Ok(got)
    }

    /// What was lost since it was loaded.
    #[must_use]
    pub fn lost(&self) -> CollectLost {
        let counts = self.skel.maps.lost.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY);
        let count = |bytes: Vec<u8>| bytes.first_chunk().map_or(0, |b| u64::from_ne_bytes(*b));
        let counts = counts.ok().flatten().unwrap_or_default();
        CollectLost {
            ring: counts.into_iter().map(count).collect(),
            nested: self.last.0.max(self.sums().0),
        }
    }

    /// Collects no more; what is in the ring can still be drained.
    pub fn stop(&mut self) {
        self.last = self.sums();
        self.skel.links = Default::default();
    }

    /// CPU time of its programs, while `kernel.bpf_stats_enabled` is 1.
    #[must_use]
    pub fn cost_ns(&self) -> Option<u64> {
        let counts = fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled").ok()?;
        (counts.trim() == "1").then(|| self.last.1.max(self.sums().1))
    }

    /// What its programs missed, and how long they ran.
    fn sums(&self) -> (u64, u64) {
        let own = libbpf_rs::query::ProgInfoIter::default()
            .filter(|info| self.programs.contains(&info.id));
        own.fold((0, 0), |(missed, ran), info| {
            (missed + info.recursion_misses, ran + info.run_time_ns)
        })
    }
}

/// Programs of collectors, this one or others.
fn programs() -> BTreeSet<u32> {
    let own = |name: &str| name.starts_with("collect_");
    let all = libbpf_rs::query::ProgInfoIter::default();
    all.filter(|info| own(&info.name.to_string_lossy())).map(|info| info.id).collect()
}

/// Whether the right to load programs is lacking (EPERM). That a program was rejected (EACCES) is
/// `PermissionDenied`, too, and tells of the kernel, not of the user.
fn is_forbidden(error: &libbpf_rs::Error) -> bool {
    let forbidden = io::Error::from_raw_os_error(libc::EPERM).to_string();
    error.kind() == libbpf_rs::ErrorKind::PermissionDenied
        && format!("{error:#}").contains(&forbidden)
}

/// Why, for people, with what helps.
fn refusal(error: &libbpf_rs::Error) -> String {
    let why = match error.kind() {
        _ if is_forbidden(error) => "not permitted: it takes root, or CAP_BPF and CAP_PERFMON",
        libbpf_rs::ErrorKind::NotFound => {
            "this kernel lacks something: BTF (/sys/kernel/btf/vmlinux) and Linux 5.18 are needed"
        }
        _ => "the kernel refused its programs (INSTEP_LOG=debug shows libbpf's messages)",
    };
    format!("{why}: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_privilege_is_distinguished_from_rejection() {
        let refused = |code| refusal(&libbpf_rs::Error::from_raw_os_error(code));
        assert!(refused(libc::EPERM).contains("CAP_BPF"), "{}", refused(libc::EPERM));
        assert!(refused(libc::EACCES).contains("INSTEP_LOG=debug"), "{}", refused(libc::EACCES));
    }
}
