//! The scheduler in the kernel: loads it, feeds it the VM table and settings, drains its counters
//! and events, and notices when it ended.
//!
//! Its end is the kernel's: when the link is dropped, or this process dies however, the default
//! scheduler is back (kernel/sched/ext.c, struct_ops link, Linux 6.12 and later).

use crate::exit::Exit;
use crate::settings::{CpuPlace, HOST_WEIGHT, SchedulerSettings};
use crate::skeleton::{BpfSkel, BpfSkelBuilder, types};
use crate::stats::{COUNTERS, Cost, DomainSeen, LimitSeen, SchedulerEvent, VmSeen};
use crate::table::{Placed, TableLimits, VmEntry, VmTable};
use crate::verifier;
use crate::waits::WaitClasses;
use anyhow::Context as _;
use instep_core::units::{Nanos, NodeId, Tid};
use libbpf_rs::{Link, MapCore as _, MapFlags, MapMut, OpenObject, RingBuffer, RingBufferBuilder};
use scx_utils::{compat, scx_ops_attach, scx_ops_load, scx_ops_open};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::rc::Rc;
use std::time::Duration;

mod feed;
mod weights;

/// The loaded scheduler. Dropping it brings the default back.
pub struct Loaded {
    // Dropped in order: the link first.
    link: Option<Link>,
    ring: RingBuffer<'static>,
    heard: Rc<RefCell<Vec<SchedulerEvent>>>,
    skel: BpfSkel<'static>,
    table: VmTable,
    limits: TableLimits,
    threads: BTreeMap<u32, [u8; feed::THREAD]>,
    /// What was last found out of each VM, by its index.
    found: BTreeMap<u32, String>,
    /// What threads of each cgroup were said to weigh.
    weights: BTreeMap<u64, u32>,
}

/// Where virtual time begins (`POL_ORIGIN` of bpf/policy.h).
const ORIGIN: u64 = 1 << 50;

/// Most events that are kept until they are drained.
const MAX_HEARD: usize = 4096;

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded").field("table", &self.table).finish_non_exhaustive()
    }
}

impl Loaded {
    /// Loads the scheduler for the whole host. `places` are those of all possible CPUs; `vcpus` there are now, and it
    /// has room for more ([`TableLimits::with_room`]).
    ///
    /// # Errors
    /// The kernel refuses it (too old, verifier, another scheduler), or has more CPUs or scheduling domains
    /// than there is room for.
    pub fn load(
        settings: &SchedulerSettings,
        places: &[CpuPlace],
        vcpus: usize,
    ) -> anyhow::Result<Self> {
        scx_utils::try_set_rlimit_infinity();
        verifier::listen();
        Self::try_load(settings, places, TableLimits::with_room(vcpus, places.len())).map_err(
            |error| match verifier::refusal() {
                Some(why) => error.context(why),
                None => error,
            },
        )
    }

    fn try_load(
        settings: &SchedulerSettings,
        places: &[CpuPlace],
        limits: TableLimits,
    ) -> anyhow::Result<Self> {
        // The open object must outlive the skeleton; it is as small as a pointer, once per load.
        let object: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let builder = BpfSkelBuilder::default();
        let mut skel = scx_ops_open!(builder, object, instep_ops, None)?;
        {
            let data = skel.maps.bss_data.as_mut().context("the object has no data")?;
            fill_places(&mut data.instep, places)?;
            data.instep.set.nr_slots = limits.slots;
            write(&mut data.instep.set, settings);
        }
        // The kernel warns of a deprecated operation, which `bpf/higher.bpf.h` needs on old ones only.
        let anywhere = ["scx_bpf_reenqueue_local___v2", "scx_bpf_dsq_reenq"];
        if anywhere.iter().any(|name| compat::ksym_exists(name).unwrap_or(false)) {
            skel.struct_ops.instep_ops_mut().cpu_release = std::ptr::null_mut();
        }
        let mut skel = scx_ops_load!(skel, instep_ops, uei)?;
        let link = scx_ops_attach!(skel, instep_ops)?;
        let heard = Rc::new(RefCell::new(Vec::new()));
        let mut rings = RingBufferBuilder::new();
        let into = Rc::clone(&heard);
        rings.add(&skel.maps.events, move |bytes| {
            let mut heard = into.borrow_mut();
            if let Some(event) = parse_event(bytes).filter(|_| heard.len() < MAX_HEARD) {
                heard.push(event);
            }
            0
        })?;
        let ring = rings.build()?;
        Ok(Self {
            link: Some(link),
            ring,
            heard,
            skel,
            table: VmTable::default(),
            limits,
            threads: BTreeMap::new(),
            found: BTreeMap::new(),
            weights: BTreeMap::new(),
        })
    }

    /// Takes over new settings.
    pub fn set(&mut self, settings: &SchedulerSettings) {
        if let Some(data) = self.skel.maps.bss_data.as_mut() {
            write(&mut data.instep.set, settings);
        }
        if settings.host_weight.is_some() {
            self.weigh_alone();
        }
    }

    /// Whether it is to be loaded anew, with room for so many vCPUs.
    #[must_use]
    pub fn is_outgrown(&self, vcpus: usize) -> bool {
        self.limits.is_outgrown(vcpus)
    }

    /// The table it was last fed.
    #[must_use]
    pub fn table(&self) -> &VmTable {
        &self.table
    }

    /// Counters since it was loaded, by [`COUNTERS`].
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let Some(data) = self.skel.maps.bss_data.as_ref() else { return Vec::new() };
        let mut sums = [0u64; COUNTERS.len()];
        for cpu in &data.instep.cpus {
            // Has as many counters as there are names, else this does not compile.
            let counts: &[u64; COUNTERS.len()] = &cpu.counters;
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum = sum.wrapping_add(*count);
            }
        }
        COUNTERS.into_iter().zip(sums).collect()
    }

    /// One of them; 0 for a name that there is none of.
    fn counter(&self, name: &str) -> u64 {
        let Some(data) = self.skel.maps.bss_data.as_ref() else { return 0 };
        let Some(at) = COUNTERS.iter().position(|known| *known == name) else { return 0 };
        data.instep.cpus.iter().fold(0, |sum, cpu| sum.wrapping_add(cpu.counters[at]))
    }

    /// What it knows of each VM, one after another.
    pub fn vms(&self) -> impl Iterator<Item = VmSeen> {
        let data = self.skel.maps.bss_data.as_ref();
        let seen = |data: &types::bss, placed: &Placed| {
            let vm = &data.instep.vms[placed.vm as usize];
            let set = &data.instep.vm_set[placed.vm as usize];
            VmSeen {
                name: placed.entry.name.clone(),
                weight: placed.entry.weight,
                period_ns: set.period_ns,
                cosched: placed.entry.cosched,
                latency: placed.entry.latency,
                home: placed.entry.home,
                seats: vm.seats,
                gang_cpus: gang_cpus(vm),
                domain: (vm.joined != 0).then_some(vm.account.domain),
                share: vm.account.share,
                found: self.found.get(&placed.vm).cloned(),
                cpu_ns: vm.account.total_ns,
                held_ns: vm.account.held_ns,
                blocks: vm.total_blocks,
                together_ns: vm.together_ns,
                apart_ns: vm.apart_ns,
                lag_ns: lag_of(&data.instep, vm),
                slots: vm.total_slots,
                tears: vm.total_tears,
                vcpus: waits_of(&data.instep, placed),
            }
        };
        self.table.vms.iter().filter_map(move |placed| Some(seen(data?, placed)))
    }

    /// For how long CPU limits held the threads of each VM, summed over them, since its entry was begun.
    #[must_use]
    pub fn held(&self) -> Vec<(&VmEntry, Nanos)> {
        let Some(data) = self.skel.maps.bss_data.as_ref() else { return Vec::new() };
        let held = |placed: &Placed| Nanos(data.instep.vms[placed.vm as usize].account.held_ns);
        self.table.vms.iter().map(|placed| (&placed.entry, held(placed))).collect()
    }

    /// What it knows of each scheduling domain.
    #[must_use]
    pub fn domains(&self) -> Vec<DomainSeen> {
        let Some(data) = self.skel.maps.bss_data.as_ref() else { return Vec::new() };
        let all = data.instep.domains.iter().zip(0..data.instep.set.nr_domains);
        all.map(|(domain, number)| DomainSeen {
            domain: number,
            node: NodeId(domain.node.try_into().unwrap_or_default()),
            cpus: domain.nr_lanes,
            clock_ns: domain.clock.saturating_sub(ORIGIN),
            vms: domain.nr_members,
            gangs: domain.nr_gangs,
            host_held_ns: domain.host.held_ns,
        })
        .collect()
    }

    /// The CPU limits of cgroups with threads of late, at most 4,096 of them: any user may set some in a cgroup that was handed
    /// over.
    #[must_use]
    pub fn limits(&self) -> Vec<LimitSeen> {
        let (map, now) = (&self.skel.maps.limits, monotonic_ns());
        let seen = |key: Vec<u8>| {
            let value = map.lookup(&key, MapFlags::ANY).ok()??;
            let word =
                |at: usize| Some(u64::from_ne_bytes(value.get(at..at + 8)?.try_into().ok()?));
            let quota = word(std::mem::offset_of!(types::limit, quota))?;
            let period = word(std::mem::offset_of!(types::limit, period))?;
            Some(LimitSeen {
                group: u64::from_ne_bytes(key.try_into().ok()?),
                milli_cpus: quota.saturating_mul(1000).checked_div(period)?,
                // What is due is added by the first thread that runs after the refill.
                is_used_up: word(std::mem::offset_of!(types::limit, left))?.cast_signed() <= 0
                    && now < word(std::mem::offset_of!(types::limit, refill_at))?,
                held_ns: word(std::mem::offset_of!(types::limit, held_ns))?,
            })
        };
        map.keys().take(4096).filter_map(seen).collect()
    }

    /// The inode number of a cgroup whose CPU limit does not hold, as the scheduler has no room for it.
    #[must_use]
    pub fn lost_limit(&self) -> Option<u64> {
        let data = self.skel.maps.bss_data.as_ref()?;
        Some(data.instep.lost_limit).filter(|id| *id != 0)
    }

    /// Forgets cgroups, and CPU limits of cgroups, under which nothing ran for a minute: they may be gone. One that is
    /// still there is found anew by the first thread that runs.
    pub fn forget_idle(&mut self) {
        const MINUTE: u64 = 60_000_000_000;
        let before = monotonic_ns().saturating_sub(MINUTE);
        let maps = &self.skel.maps;
        delete_before(&maps.limits, std::mem::offset_of!(types::limit, refill_at), before);
        for gone in delete_before(&maps.groups, std::mem::offset_of!(types::group, seen_at), before)
        {
            // It may have no weight yet.
            let _ = maps.group_weights.delete(&gone);
        }
        let of_user = |key: &Vec<u8>| {
            let value = maps.groups.lookup(key, MapFlags::ANY).ok().flatten();
            let at = std::mem::offset_of!(types::group, of_user);
            value.is_some_and(|value| value.get(at).is_some_and(|byte| *byte != 0))
        };
        // One that comes meanwhile is counted the next time.
        let of_users = maps.groups.keys().filter(of_user).count();
        if let Some(data) = self.skel.maps.bss_data.as_mut() {
            data.instep.user_groups = of_users as u32;
        }
    }

    /// Whether it found cgroups for which it has no room: what lies there weighs as if it lay in the cgroup above.
    #[must_use]
    pub fn lost_groups(&self) -> bool {
        self.counter("groups_lost") > 0
    }

    /// How often it found a cgroup with another weight than before.
    #[must_use]
    pub fn reweighed(&self) -> u64 {
        self.counter("reweighed")
    }

    /// What each of its programs has cost; times only while `kernel.bpf_stats_enabled` is 1.
    #[must_use]
    pub fn costs(&self) -> Vec<Cost> {
        let own = |name: &str| name.starts_with("instep_");
        let all = libbpf_rs::query::ProgInfoIter::default().filter_map(|info| {
            let name = info.name.to_string_lossy().into_owned();
            own(&name).then_some(Cost {
                name,
                runs: info.run_cnt,
                ns: info.run_time_ns,
                instructions: info.verified_insns,
            })
        });
        all.collect()
    }

    /// Events since they were last drained; what they say of VMs is known from then on.
    pub fn drain(&mut self) -> Vec<SchedulerEvent> {
        let _ = self.ring.consume();
        let events = std::mem::take(&mut *self.heard.borrow_mut());
        let found = events.iter().filter_map(|event| Some((event.vm, event.describe()?)));
        self.found.extend(found);
        events
    }

    /// `None` while it is in force; else why it is not.
    pub fn exited(&mut self) -> Option<Exit> {
        let uei = &self.skel.maps.data_data.as_ref()?.uei;
        // SAFETY: the record lies in memory shared with the kernel, which lives as long as the
        // skeleton; the kernel writes `kind` last (UEI_RECORD of scx_cargo 1.1.4).
        let kind = unsafe { std::ptr::read_volatile(&raw const uei.kind) };
        if kind == 0 {
            return None;
        }
        let bytes = |text: &[i8]| text.iter().map(|byte| byte.cast_unsigned()).collect::<Vec<u8>>();
        let dump = self.skel.maps.data_uei_dump.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let dump = dump.ok().flatten().unwrap_or_default();
        let (reason, message) = (bytes(&uei.reason), bytes(&uei.msg));
        let exit = Exit::of(kind, uei.exit_code, uei.exit_cpu, &reason, &message, &dump);
        self.link = None;
        Some(exit)
    }
}

/// Where each CPU is, and the scheduling domains that they make up.
fn fill_places(state: &mut types::host_state, places: &[CpuPlace]) -> anyhow::Result<()> {
    anyhow::ensure!(
        places.len() <= state.cpus.len(),
        "{} possible CPUs, more than {}",
        places.len(),
        state.cpus.len()
    );
    let mut domains = 0;
    for (at, place) in places.iter().enumerate() {
        let cpu = &mut state.cpus[at];
        cpu.node = place.node;
        cpu.domain = place.domain;
        cpu.lane = place.lane;
        cpu.core = place.core;
        if place.node < 0 {
            continue;
        }
        let most = state.domains.len();
        let domain = state.domains.get_mut(place.domain as usize).with_context(|| {
            format!("CPU {at} is in scheduling domain {}, of at most {most}", place.domain)
        })?;
        let lanes = domain.cpu.len();
        let slot = domain.cpu.get_mut(place.lane as usize).with_context(|| {
            format!("CPU {at} is lane {} of its domain, of at most {lanes}", place.lane)
        })?;
        *slot = at as u16;
        let lane = 1u64 << place.lane;
        domain.node = place.node;
        domain.lanes |= lane;
        domain.nr_lanes += 1;
        domain.isolated = place.isolated.into();
        if place.core & (lane - 1) == 0 {
            domain.first |= lane;
        }
        if place.core == lane {
            domain.alone |= lane;
        }
        if place.first_of_cache {
            domain.caches |= lane;
        }
        domains = domains.max(place.domain + 1);
    }
    // Others come online by hotplug, at which the scheduler is loaded anew.
    let last = places.iter().rposition(|place| place.node >= 0);
    state.set.nr_cpus = last.map_or(0, |last| last + 1) as u32;
    state.set.nr_domains = domains;
    Ok(())
}

/// The vCPUs of a VM, and how long each waited.
fn waits_of(state: &types::host_state, placed: &Placed) -> Vec<(Tid, WaitClasses)> {
    let slots = state.slots.iter().skip(placed.first_slot as usize);
    let waits = slots
        .map(|slot| WaitClasses { counts: slot.wait_counts, longest_us: slot.longest_wait_us });
    placed.entry.vcpus.iter().map(|thread| thread.tid).zip(waits).collect()
}

/// How far a VM is behind its domain's clock; 0 before it has joined one.
fn lag_of(state: &types::host_state, vm: &types::vm_state) -> i64 {
    // The parts of a VM in several pools are equally far ahead.
    let (domain, vtime) = match vm.parts.first() {
        Some(part) if vm.nr_parts > 1 && vm.seats == 0 => (part.domain, part.vtime),
        _ => (vm.account.domain, vm.account.vtime),
    };
    let domain = state.domains.get(domain as usize).filter(|_| vm.joined != 0);
    domain.map_or(0, |domain| domain.clock.wrapping_sub(vtime) as i64)
}

/// How many CPUs the gang of a VM has, in all its domains.
fn gang_cpus(vm: &types::vm_state) -> u32 {
    vm.parts.iter().take(vm.nr_parts as usize).map(|part| part.set.count_ones()).sum()
}

/// All settings but those of the host's size, which are fixed when it is loaded.
fn write(set: &mut types::instep_settings, settings: &SchedulerSettings) {
    set.slice_ns = nanos(settings.slice);
    set.slot_ns = nanos(settings.slot);
    set.wake_slack_ns = nanos(settings.wake_slack);
    set.lag_ns = nanos(settings.lag);
    set.host_weight = settings.host_weight.unwrap_or(HOST_WEIGHT).clamp(1, 10_000);
    set.mechanisms = settings.mechanisms.0;
}

/// Deletes the entries of a map whose time at this offset is before that; their keys.
fn delete_before(map: &MapMut<'_>, at: usize, before: u64) -> Vec<Vec<u8>> {
    let is_idle = |key: &Vec<u8>| {
        let value = map.lookup(key, MapFlags::ANY).ok().flatten();
        let bytes = value.and_then(|value| value.get(at..at + 8)?.try_into().ok());
        bytes.is_some_and(|bytes| u64::from_ne_bytes(bytes) < before)
    };
    let idle: Vec<Vec<u8>> = map.keys().filter(is_idle).collect();
    for key in &idle {
        // It may have been used again meanwhile, which costs nothing.
        let _ = map.delete(key);
    }
    idle
}

/// The clock of limits (bpf/limit.bpf.h), nanoseconds.
fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads a `struct instep_event`; `None` when it is too short.
fn parse_event(bytes: &[u8]) -> Option<SchedulerEvent> {
    let word = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let half = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    Some(SchedulerEvent {
        at_ns: word(0)?,
        a: word(8)?,
        b: word(16)?,
        kind: half(24)?,
        vm: half(28)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::MAX_DOMAINS;
    use crate::table::LIMITS;
    use instep_core::topology::LANES;
    use std::mem::offset_of;

    #[test]
    fn events_are_laid_out_as_they_are_read() {
        assert_eq!(offset_of!(types::instep_event, a), 8);
        assert_eq!(offset_of!(types::instep_event, kind), 24);
    }

    #[test]
    fn limits_and_counters_are_those_of_the_object() {
        // By type alone: one such state is more than a test's stack.
        fn len<S, T, const N: usize>(_: fn(&S) -> &[T; N]) -> usize {
            N
        }
        assert_eq!(len(|state: &types::host_state| &state.vms), LIMITS.vms as usize);
        assert_eq!(len(|state: &types::host_state| &state.slots), LIMITS.slots as usize);
        assert_eq!(len(|cpu: &types::cpu_state| &cpu.counters), COUNTERS.len());
        assert_eq!(len(|state: &types::host_state| &state.domains), MAX_DOMAINS as usize);
        assert_eq!(len(|state: &types::domain_state| &state.cpu), LANES);
        let vcpus = LIMITS.vcpus;
        assert!(vcpus <= LIMITS.slots);
    }
}
