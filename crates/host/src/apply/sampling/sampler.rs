//! Opens a sampling event for a VM and drains its buffers, through the crate `perf-event2`: it maps
//! the ring, follows its head and joins records across its end; what the records say is decoded
//! by [`records`].

use crate::apply::sampling::hot::HotPages;
use crate::apply::sampling::records::{self, Decoded};
use crate::apply::sampling::source::{EventWords, Method, Source};
use crate::error::Error;
use instep_core::idset::CpuSet;
use instep_core::units::{Id, Tid};
use perf_event::events::Raw;
use perf_event::{Builder, Counter, SampleSkid, Sampler};
use std::io;

/// Room for 2,000 samples per thread between two drains.
const RING: usize = 64 << 10;
/// Bytes taken from one ring per drain, so that a storm of samples cannot hold the caller.
const MAX_DRAIN: usize = 4 * RING;

/// Running samplers of one process. Sampling ends when it is dropped.
pub struct MemorySampler {
    pid: u32,
    rings: Vec<Sampler>,
    /// Leaders of groups, kept open.
    _leaders: Vec<Counter>,
}

impl std::fmt::Debug for MemorySampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemorySampler {{ pid: {}, rings: {} }}", self.pid, self.rings.len())
    }
}

impl MemorySampler {
    /// Starts sampling the threads `tids` of process `pid`; by IBS all work on the CPUs `cpus`,
    /// of which only the process's samples are kept. Threads that ended are passed over.
    ///
    /// # Errors
    /// The kernel refuses: names the capability, or says that this CPU cannot after all.
    pub fn start(source: &Source, pid: u32, tids: &[Tid], cpus: &CpuSet) -> Result<Self, Error> {
        let mut sampler = Self { pid, rings: Vec::new(), _leaders: Vec::new() };
        if source.method == Method::Ibs {
            for cpu in cpus.iter() {
                sampler.open(source, |builder| {
                    builder.any_pid().one_cpu(cpu.raw() as usize);
                })?;
            }
        } else {
            for tid in tids {
                let Ok(tid) = libc::pid_t::try_from(tid.raw()) else { continue };
                sampler.open(source, |builder| {
                    builder.observe_pid(tid).any_cpu();
                })?;
            }
        }
        Ok(sampler)
    }

    fn open(&mut self, source: &Source, observe: impl Fn(&mut Builder<'_>)) -> Result<(), Error> {
        let refused = |error| open_error(self.pid, error);
        let mut leader = match source.leader.map(|event| build(event, source, &observe).build()) {
            Some(Err(error)) if is_gone(&error) => return Ok(()),
            Some(result) => Some(result.map_err(refused)?),
            None => None,
        };
        let mut builder = build(source.event, source, &observe);
        builder.sample_period(source.period);
        builder.attrs_mut().sample_type = records::SAMPLE_TYPE;
        let counter = match &mut leader {
            Some(leader) => builder.build_with_group(leader),
            None => builder.build(),
        };
        let counter = match counter {
            Err(error) if is_gone(&error) => return Ok(()),
            counter => counter.map_err(refused)?,
        };
        let mut ring = counter.sampled(RING).map_err(refused)?;
        match &mut leader {
            Some(leader) => leader.enable_group(),
            None => ring.enable(),
        }
        .map_err(refused)?;
        self.rings.push(ring);
        self._leaders.extend(leader);
        Ok(())
    }

    /// Takes what was sampled since the last drain, adds this process's pages to `hot` and tells
    /// what was decoded of all.
    pub fn drain(&mut self, hot: &mut HotPages) -> Decoded {
        let decoded = records::decode(&self.drain_bytes());
        for sample in decoded.samples.iter().filter(|sample| sample.pid == self.pid) {
            hot.add(sample);
        }
        decoded
    }

    fn drain_bytes(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for ring in &mut self.rings {
            let begin = bytes.len();
            while bytes.len() - begin < MAX_DRAIN
                && let Some(record) = ring.next_record()
            {
                let body = record.to_contiguous();
                let length = u16::try_from(body.len() + 8).unwrap_or(0);
                bytes.extend(records::header(record.ty(), record.misc(), length));
                bytes.extend_from_slice(&body);
            }
        }
        bytes
    }
}

fn build<'a>(
    event: EventWords,
    source: &Source,
    observe: &impl Fn(&mut Builder<'_>),
) -> Builder<'a> {
    let [config, config1, config2] = event.config;
    let mut builder = Builder::new(Raw::new(config).config1(config1).config2(config2));
    builder.attrs_mut().type_ = event.pmu;
    observe(&mut builder);
    match source.method {
        // PEBS: the exact instruction, two of three levels of precision, as perf-mem asks.
        Method::Pebs => {
            builder.precise_ip(SampleSkid::RequestZero);
        }
        // Older kernels refuse IBS with anything excluded (PERF_PMU_CAP_NO_EXCLUDE);
        // records::decode leaves out what is not the process's.
        Method::Ibs => {
            builder.include_kernel().include_hv();
        }
        Method::PageFaults => {}
    }
    builder
}

fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESRCH)
}

fn open_error(pid: u32, source: io::Error) -> Error {
    let what = format!("cannot sample the memory accesses of process {pid}: {source}");
    match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => Error::Unusable {
            what,
            next: "run as root or with CAP_PERFMON; see /proc/sys/kernel/perf_event_paranoid"
                .into(),
        },
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP | libc::EINVAL | libc::ENODATA) => {
            Error::Unusable {
                what: format!(
                    "no memory sampling on this CPU: the kernel lists it and refuses it: \
                               {source}"
                ),
                next: "memory comes home in address order instead".into(),
            }
        }
        _ => Error::system(what, source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::ranges;
    use crate::root::Root;
    use std::collections::BTreeSet;

    /// Maps `count` fresh pages; the closure touches them; their addresses come back.
    fn touch_fresh_pages(count: usize, mut during: impl FnMut(usize)) -> BTreeSet<u64> {
        let length = count * 4096;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice; the result is
        // checked before use and unmapped below.
        let start = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: the mapping above; without huge pages every page faults once.
        unsafe { libc::madvise(start, length, libc::MADV_NOHUGEPAGE) };
        let mut touched = BTreeSet::new();
        for page in 0..count {
            // SAFETY: inside the mapping; volatile, so that the write is not left out.
            unsafe { start.cast::<u8>().add(page * 4096).write_volatile(1) };
            touched.insert(start as u64 + page as u64 * 4096);
            during(page);
        }
        // SAFETY: unmaps exactly the mapping above, to which no reference is left.
        unsafe { libc::munmap(start, length) };
        touched
    }

    fn own_sampler() -> Option<MemorySampler> {
        // SAFETY: no preconditions, cannot fail.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) };
        let tid = Tid(u32::try_from(tid).unwrap());
        let source = Source::page_faults();
        match MemorySampler::start(&source, std::process::id(), &[tid], &CpuSet::new()) {
            Ok(sampler) => Some(sampler),
            Err(error) => {
                instep_madehost::skip::note(&format!("{error}"));
                None
            }
        }
    }

    #[test]
    fn pages_that_this_thread_touches_are_found_in_its_samples() {
        let Some(mut sampler) = own_sampler() else { return };
        assert_eq!(sampler.rings.len(), 1);
        let touched = touch_fresh_pages(300, |_| {});
        let mut hot = HotPages::default();
        let decoded = sampler.drain(&mut hot);
        assert_eq!((decoded.damaged_at, decoded.lost), (None, 0));
        let found: BTreeSet<u64> = decoded.samples.iter().map(|s| s.address & !4095).collect();
        assert!(touched.is_subset(&found), "{} of 300", touched.intersection(&found).count());
        assert!(hot.len() >= 300);
    }

    #[test]
    fn a_ring_that_wraps_many_times_loses_nothing_when_drained() {
        let Some(mut sampler) = own_sampler() else { return };
        let mut hot = HotPages::default();
        let (mut found, mut lost) = (BTreeSet::new(), 0);
        let touched = touch_fresh_pages(20_000, |page| {
            if page % 500 == 499 {
                let decoded = sampler.drain(&mut hot);
                assert_eq!(decoded.damaged_at, None);
                lost += decoded.lost;
                found.extend(decoded.samples.iter().map(|sample| sample.address & !4095));
            }
        });
        assert_eq!(lost, 0);
        assert!(touched.is_subset(&found), "{}", touched.intersection(&found).count());
    }

    #[test]
    fn a_ring_that_is_not_drained_says_how_much_was_lost() {
        let Some(mut sampler) = own_sampler() else { return };
        touch_fresh_pages(10_000, |_| {});
        let mut hot = HotPages::default();
        // The kernel writes the loss in front of the next sample that fits: one of draining itself,
        // which touches new memory, or one of the pages touched after it.
        let first = sampler.drain(&mut hot).lost;
        touch_fresh_pages(10, |_| {});
        let lost = first + sampler.drain(&mut hot).lost;
        assert!((5_000..10_000).contains(&lost), "{lost}");
    }

    #[test]
    fn hot_pages_of_a_thread_become_ranges_inside_its_mappings() {
        let Some(mut sampler) = own_sampler() else { return };
        let mut hot = HotPages::default();
        let mut around = Vec::new();
        let touched = touch_fresh_pages(64, |page| {
            if page == 63 {
                sampler.drain(&mut hot);
                if let Ok((mapped, _)) = ranges::read(&Root::live(), std::process::id()) {
                    around = hot.ranges(&mapped, 8, instep_core::units::Bytes::from_mib(64));
                }
            }
        });
        if around.is_empty() {
            return instep_madehost::skip::note("numa_maps cannot be read here");
        }
        let covered = |page: &u64| around.iter().any(|r| r.start <= *page && *page < r.end);
        assert!(touched.iter().all(covered));
    }

    #[test]
    fn a_thread_that_ended_is_passed_over() {
        let mut sleeper = crate::apply::testing::Sleeper::start();
        let tid = sleeper.tid();
        sleeper.stop();
        let source = Source::page_faults();
        match MemorySampler::start(&source, tid.0, &[tid], &CpuSet::new()) {
            Ok(sampler) => assert_eq!(sampler.rings.len(), 0),
            Err(error) => instep_madehost::skip::note(&format!("{error}")),
        }
    }

    /// `INSTEP_RECORD_FIXTURE=FILE cargo test records_a_fixture` writes the bytes that records.rs
    /// tests with; without the variable it checks that what it would write decodes.
    #[test]
    fn records_a_fixture_when_asked() {
        let Some(mut sampler) = own_sampler() else { return };
        touch_fresh_pages(64, |_| {});
        let bytes = sampler.drain_bytes();
        assert_eq!(records::decode(&bytes).damaged_at, None);
        if let Ok(path) = std::env::var("INSTEP_RECORD_FIXTURE") {
            std::fs::write(path, bytes).unwrap();
        }
    }
}
