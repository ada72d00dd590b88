//! The kernel scheduler in the loop: whether it is in force and why, what it is fed, and that it
//! comes back after it ended.
//!
//! ```text
//! off(why) <--plan-- begin --plan--> loaded --ended----> waiting --backoff over--> loaded
//!                      |                ^                    |  CPU hotplug, more vCPUs: at once
//!                      |                +--------------------+
//!                      |                +--ejected three times within an hour--> given up
//!                      +--somebody else's is loaded--> waiting --every 30 s--> loaded
//!                                        loaded --a VM has cookies--^
//! ```
//! A configuration that is read again loads at once whatever waits, but for a scheduler that ended or could not
//! be loaded while nothing of `[dispatch]` changed: that is as faulty as before.
//!
//! It knows nothing of BPF: `instep-kernel` does. Without that crate's feature `kernel` it is
//! always off.

mod held;
pub mod in_force;
mod limits;
mod places;
mod preview;
pub(crate) mod scheduler;
pub mod table;
mod weights;

use crate::config::Config;
use crate::config::dispatch::DispatchConfig;
use crate::error::Error;
use crate::observe::{Observer, SharedScanner, VmKey};
pub use held::take_held;
pub use in_force::{
    InForce, KilledRun, LastExit, Program, VmInForce, WaitsInForce, forget, gone, read,
};
use instep_core::idset::CpuSet;
use instep_core::units::{Nanos, NodeId, Tid};
use instep_host::Root;
use instep_host::apply::Instance;
use instep_host::discover::{Scan, Trust, isolated_cpus};
use instep_kernel::backoff::Backoff;
use instep_kernel::exit::Exit;
use instep_kernel::loaded::Loaded;
use instep_kernel::{CpuPlace, LoadPlan, Mode, Probe, VmEntry, cookies, plan};
pub use limits::LimitInForce;
use places::places;
pub use preview::preview;
use scheduler::Scheduler;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// How often the scheduler is looked after while the loop waits or moves memory.
pub const LOOK: Duration = Duration::from_secs(1);
/// Looks between two scans for VMs that came and went.
const LOOKS_PER_SCAN: u32 = 2;
/// Looks between two questions after what the programs cost.
const LOOKS_PER_COST: u32 = 10;
/// How often it is tried again while somebody else's scheduler is loaded or VMs have cookies.
const BUSY: Duration = Duration::from_secs(30);
/// How long the start waits for a scheduler that is just going, such as that of a run before.
const GOING: Duration = Duration::from_secs(5);

const LOST_LIMITS: &str = "CPU limits of cgroups (cpu.max) would not hold: there are more than 65,536 of them, one of root's lies \
                           below 32 levels of cgroups, or the kernel has no memory for one";

const LOST_GROUPS: &str = "there are more cgroups than the kernel scheduler has room for (65,536, of which ordinary users' have \
                           half): what lies in the others weighs as if it lay in the cgroup above them";

const STAYS_OUT: &str = "the kernel scheduler stays out until [dispatch] is changed and read again (SIGHUP), or instep run is \
                         started again";

/// vCPUs of all VMs.
fn vcpus_of(entries: &[VmEntry]) -> usize {
    entries.iter().map(|entry| entry.vcpus.len()).sum()
}

/// The kernel scheduler as the loop holds it.
#[derive(Debug)]
pub struct Dispatch {
    config: DispatchConfig,
    /// The owners whose VMs enter the scheduler's table.
    trust: Trust,
    homes: BTreeMap<VmKey, NodeId>,
    /// The CPUs that it was last loaded to keep apart: those of `isolcpus=` and of isolated cpuset partitions.
    isolated: CpuSet,
    scanner: SharedScanner,
    feeder: weights::WeightFeeder,
    held: held::HeldRates,
    cgroups: limits::CgroupPaths,
    /// The limits that it keeps, and how many there are besides.
    limits: (Vec<LimitInForce>, usize),
    /// How often cgroups had another weight than before, when weights were last written.
    reweighed: u64,
    backoff: Backoff,
    state: State,
    dir: Option<PathBuf>,
    instance: Instance,
    looks: u32,
    /// What the table is made of has changed: the next look makes it anew.
    feeds_next: bool,
    said: Vec<String>,
    /// Warnings on the VM table that stand and were told.
    warned: BTreeSet<String>,
    /// VMs that there is no room for in its table, or that it did not take: it keeps none at home.
    refused: BTreeSet<VmKey>,
    programs: Vec<Program>,
    last_exit: Option<LastExit>,
}

#[derive(Debug)]
enum State {
    Off(String),
    Loaded {
        kernel: Box<Loaded>,
        since: Instant,
    },
    Waiting {
        until: Instant,
        at: SystemTime,
        why: String,
        failed: bool,
    },
    /// The kernel ejected it too often, or it could not keep a CPU limit.
    GivenUp(String),
}

impl State {
    /// Until something passes that the scheduler is not to blame for, or the next look at that.
    fn busy(why: String) -> Self {
        Self::waiting(BUSY, why, false)
    }

    /// Until the next attempt, so long from now; `failed` where it is for a failure of the scheduler.
    fn waiting(wait: Duration, why: String, failed: bool) -> Self {
        State::Waiting { until: Instant::now() + wait, at: SystemTime::now() + wait, why, failed }
    }
}

impl Dispatch {
    /// Probes, plans and loads. `state` is where what is in force is written.
    ///
    /// # Errors
    /// The mode is `kernel` and it cannot be loaded; this process cannot be read under /proc.
    pub fn begin(
        config: &Config,
        observer: &Observer,
        state: Option<&Path>,
    ) -> Result<Self, Error> {
        let trust = config.trust();
        let config = &config.dispatch;
        let mut dispatch = Self {
            config: config.clone(),
            trust,
            homes: BTreeMap::new(),
            isolated: CpuSet::default(),
            scanner: observer.scanner(),
            feeder: weights::WeightFeeder::new(),
            held: held::HeldRates::default(),
            cgroups: limits::CgroupPaths::default(),
            limits: (Vec::new(), 0),
            reweighed: 0,
            backoff: Backoff::default(),
            state: State::Off(String::new()),
            dir: state.map(Path::to_owned),
            instance: Instance::this()?,
            looks: 0,
            feeds_next: true,
            said: Vec::new(),
            warned: BTreeSet::new(),
            refused: BTreeSet::new(),
            programs: Vec::new(),
            last_exit: None,
        };
        let end = Instant::now() + GOING;
        while config.mode != Mode::Off && is_going() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        dispatch.try_load();
        match (&dispatch.state, config.mode) {
            (State::Off(why) | State::Waiting { why, .. }, Mode::Kernel) => {
                Err(Error::Dispatch { why: why.clone() })
            }
            _ => Ok(dispatch),
        }
    }

    /// Takes over a new configuration.
    pub fn reload(&mut self, config: &Config) {
        self.trust = config.trust();
        let config = &config.dispatch;
        let was = std::mem::replace(&mut self.config, config.clone());
        let again = match &self.state {
            State::Loaded { .. } => was.mode != config.mode,
            // Each SIGHUP would load a faulty scheduler again.
            State::Waiting { until, failed: true, .. }
                if was.without_vms() == config.without_vms() =>
            {
                let left = until.saturating_duration_since(Instant::now());
                self.said.push(format!(
                    "nothing of [dispatch] changed but settings of VMs: the kernel scheduler, which failed, is tried again in {}",
                    humantime::format_duration(Duration::from_secs(left.as_secs()))
                ));
                false
            }
            State::GivenUp(why) if was.without_vms() == config.without_vms() => {
                self.said.push(format!("nothing of [dispatch] changed but settings of VMs: {why}"));
                false
            }
            // The cause that kept it out may be gone now.
            State::Off(_) | State::GivenUp(_) | State::Waiting { .. } => true,
        };
        if again {
            self.state = State::Off(String::new());
            self.try_load();
        }
        if let State::Loaded { kernel, .. } = &mut self.state {
            kernel.set(&config.settings().unwrap_or_default());
            self.feeds_next = true;
        }
    }

    /// What is in force.
    #[must_use]
    pub fn in_force(&self) -> InForce {
        let base = InForce {
            instance: self.instance.clone(),
            failures: self.backoff.failures(),
            programs: self.programs.clone(),
            last_exit: self.last_exit.clone(),
            ..InForce::default()
        };
        match &self.state {
            State::Off(why) | State::GivenUp(why) => InForce { why: why.clone(), ..base },
            State::Waiting { why, at, .. } => {
                let at = humantime::format_rfc3339_seconds(*at).to_string();
                InForce { why: why.clone(), next_attempt: Some(at), ..base }
            }
            State::Loaded { kernel, .. } => {
                let counters = kernel.counters();
                InForce {
                    instep: true,
                    why: "loaded by instep run".to_owned(),
                    counters: counters.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
                    vms: self.held.add_to(in_force::vms_in_force(kernel.vms())),
                    domains: kernel.domains(),
                    limits: self.limits.0.clone(),
                    more_limits: self.limits.1,
                    ..base
                }
            }
        }
    }

    fn try_load(&mut self) {
        // Those of the scheduler before.
        (self.limits, self.programs) = ((Vec::new(), 0), Vec::new());
        let (vms, plan) = decide((&self.config, &self.trust), &self.scanner);
        let next = match plan {
            LoadPlan::Stay(why) => State::Off(why),
            LoadPlan::Busy(why) => State::busy(why),
            LoadPlan::Load => match self.read_places() {
                Ok(places) => self.load(&places, vcpus_of(&vms.0)),
                Err(why) => State::Off(why),
            },
        };
        if let (State::Off(why), true) = (&next, self.config.mode != Mode::Off) {
            self.said.push(format!("the kernel's default scheduler stays: {why}"));
        }
        // Said once while it stays so.
        let before = match &self.state {
            State::Waiting { why, .. } => why.as_str(),
            _ => "",
        };
        if let State::Waiting { why, until, .. } = &next
            && *until > Instant::now() + BUSY / 2
            && why != before
        {
            self.said.push(format!("Instep's kernel scheduler is not loaded for now: {why}"));
        }
        self.state = next;
        self.write();
    }

    /// Where each CPU is now, or why the scheduler cannot be told.
    fn read_places(&mut self) -> Result<Vec<CpuPlace>, String> {
        let root = Root::live();
        self.isolated = isolated_cpus(&root);
        let topology = instep_host::topology::read(&root)
            .map_err(|error| format!("the CPUs cannot be read: {error}"))?;
        places(&topology, &self.isolated)
    }

    fn load(&mut self, places: &[CpuPlace], vcpus: usize) -> State {
        let settings = self.config.settings().unwrap_or_default();
        match Loaded::load(&settings, places, vcpus) {
            Ok(kernel) => {
                self.said.push("Instep's kernel scheduler is in force".to_owned());
                (self.looks, self.feeds_next) = (0, true);
                self.refused.clear();
                self.feeder = weights::WeightFeeder::new();
                State::Loaded { kernel: Box::new(kernel), since: Instant::now() }
            }
            Err(error) => self.wait(format!("it cannot be loaded: {error:#}")),
        }
    }

    /// It could not be loaded: waits before the next attempt.
    fn wait(&mut self, why: String) -> State {
        let wait = self.backoff.failed(Duration::ZERO);
        self.wait_for(wait, why)
    }

    /// The kernel ejected it: waits before the next attempt, or gives it up.
    fn eject(&mut self, why: &str, lasted: Duration) -> State {
        if let Some(wait) = self.backoff.ejected(lasted, Instant::now()) {
            return self.wait_for(wait, format!("Instep's scheduler ended: {why}"));
        }
        let why =
            format!("Instep's scheduler ended: {why}; three ejections within an hour: {STAYS_OUT}");
        self.said.push(format!("the kernel's default scheduler is in force: {why}"));
        State::GivenUp(why)
    }

    fn wait_for(&mut self, wait: Duration, why: String) -> State {
        self.said.push(format!(
            "the kernel's default scheduler is in force: {why}; trying again in {}",
            humantime::format_duration(wait)
        ));
        State::waiting(wait, why, true)
    }

    fn supervise_loaded(&mut self) {
        let State::Loaded { kernel, since } = &mut self.state else { return };
        if let Some(exit) = kernel.exited() {
            let lasted = since.elapsed();
            self.state = State::Off(String::new());
            if exit.restart() {
                self.load_again("CPUs came or went");
            } else {
                self.note_exit(&exit);
                self.state = self.eject(&exit.why(), lasted);
            }
            return;
        }
        if let Some(id) = kernel.lost_limit() {
            return self.give_up_for_limit(&Root::live(), id);
        }
        if self.looks.is_multiple_of(LOOKS_PER_COST) {
            self.programs = kernel.costs().into_iter().map(Program::from).collect();
            kernel.forget_idle();
        }
        for event in kernel.drain() {
            tracing::debug!(?event, "kernel scheduler");
        }
        if std::mem::take(&mut self.feeds_next) || self.looks.is_multiple_of(LOOKS_PER_SCAN) {
            self.feed();
        }
        self.looks = self.looks.wrapping_add(1);
        self.update_weights();
        if let State::Loaded { kernel, .. } = &self.state {
            let limits = kernel.limits();
            self.cgroups.update(&Root::live(), &limits);
            self.limits = self.cgroups.name(&limits);
            let first = |entry: &VmEntry| entry.vcpus.first().map(|vcpu| vcpu.tid);
            let counters =
                kernel.held().into_iter().filter_map(|(entry, held)| Some((first(entry)?, held)));
            self.held.update(counters, Instant::now());
        }
    }

    /// Tells the loaded scheduler what VMs and cgroups weigh.
    fn update_weights(&mut self) {
        let State::Loaded { kernel, .. } = &mut self.state else { return };
        self.reweighed = kernel.reweighed();
        if self.config.host_weight.is_none()
            && let Err(error) = self.feeder.update(kernel)
        {
            // What was said before holds until the next look.
            tracing::debug!(%error, "weights of cgroups");
        }
    }

    fn load_again(&mut self, why: &str) {
        self.said.push(format!("{why}: loading the scheduler again"));
        self.state = State::Off(String::new());
        self.try_load();
    }

    /// Tells the loaded scheduler of the VMs that there are.
    fn feed(&mut self) {
        let Some((scan, threads)) = self.scan() else { return };
        let State::Loaded { kernel, .. } = &mut self.state else { return };
        let (entries, mut warnings) = table::all_entries(&scan, &self.homes, &self.config);
        let threads = threads.of_vms().chain(table::vcpus(&entries[scan.vms.len()..]));
        if let Some(why) = cookies::find_reason_to_leave(threads, self.config.despite_cookies) {
            return self.unload(why);
        }
        let vcpus = vcpus_of(&entries);
        if kernel.is_outgrown(vcpus) {
            return self.load_again(&format!("{vcpus} vCPUs need more room"));
        }
        if scan.isolated != self.isolated {
            return self.load_again("other CPUs are isolated");
        }
        warnings.extend(kernel.lost_groups().then(|| LOST_GROUPS.to_owned()));
        let fed = kernel.feed(entries);
        let taken = fed.as_ref().map_or(&[][..], |_| kernel.table().vms.as_slice());
        self.refused = table::refused(&scan.vms, taken);
        self.cgroups.note_vms(taken.iter().map(|placed| placed.entry.cgroup.as_str()));
        match fed {
            Ok(more) => warnings.extend(more),
            Err(error) => warnings.push(format!("the VM table was not taken: {error:#}")),
        }
        self.warn(warnings.into_iter().collect());
    }

    /// Looks for VMs. When that fails nobody knows more than before: what was warned of stands.
    fn scan(&mut self) -> Option<(Scan, Threads)> {
        let error = match trusted(&self.scanner, &self.trust) {
            Ok(found) => return Some(found),
            Err(error) => error,
        };
        let mut now = self.warned.clone();
        now.insert(format!(
            "cannot look for VMs: {error}; the kernel scheduler goes on with those it knows"
        ));
        self.warn(now);
        None
    }

    /// These warnings stand now; those that did not before are told.
    fn warn(&mut self, now: BTreeSet<String>) {
        self.said.extend(now.difference(&self.warned).cloned());
        self.warned = now;
    }

    /// Brings the default back until nothing speaks against Instep's any more.
    fn unload(&mut self, why: String) {
        self.said.push(format!("Instep's kernel scheduler is taken out for now: {why}"));
        self.state = State::busy(why);
    }

    /// Brings the default back for good, as the scheduler cannot keep a CPU limit: that of the cgroup with this inode number.
    fn give_up_for_limit(&mut self, root: &Root, id: u64) {
        // Limits do not hold until it is out; the search for the cgroup takes its time.
        self.state = State::GivenUp(LOST_LIMITS.to_owned());
        let which = limits::find_lost_limit(root, id).unwrap_or_else(|| LOST_LIMITS.to_owned());
        let why = format!("{which}; {STAYS_OUT}");
        self.said.push(format!("the kernel's default scheduler is in force: {why}"));
        self.state = State::GivenUp(why);
    }

    /// Keeps what the kernel says of an end that was not asked for.
    fn note_exit(&mut self, exit: &Exit) {
        let dump = self.dir.as_deref().and_then(|dir| in_force::keep_dump(dir, exit));
        if let Some(path) = &dump {
            self.said.push(format!("{} says what the CPUs were doing", path.display()));
        }
        self.last_exit = Some(LastExit { why: exit.why(), dump });
    }

    /// Whether it is in force or will be tried again.
    #[cfg(test)]
    fn is_active(&self) -> bool {
        !matches!(self.state, State::Off(_) | State::GivenUp(_))
    }

    /// Writes what `instep status` reads; a directory that is full or gone is no reason to stop.
    fn write(&self) {
        let Some(dir) = &self.dir else { return };
        if let Err(error) = in_force::write(dir, &self.in_force()) {
            tracing::debug!(%error, "cannot write to {}", dir.display());
        }
    }
}

impl Scheduler for Dispatch {
    /// It is in force, and so is that mechanism.
    fn keeps_homes(&self) -> bool {
        matches!(self.state, State::Loaded { .. }) && self.config.keeps_homes()
    }

    fn keeps_home(&self, vm: VmKey) -> bool {
        self.keeps_homes() && !self.refused.contains(&vm)
    }

    fn held(&self) -> BTreeMap<String, Nanos> {
        let State::Loaded { kernel, .. } = &self.state else { return BTreeMap::new() };
        kernel.held().into_iter().map(|(entry, held)| (entry.name.clone(), held)).collect()
    }

    fn note_homes(&mut self, homes: BTreeMap<VmKey, NodeId>) {
        if std::mem::replace(&mut self.homes, homes) != self.homes {
            self.feeds_next = true;
        }
    }

    fn note_arrivals(&mut self) {
        self.feeds_next = true;
    }

    fn follow_weights(&mut self) {
        // Whoever may set weights in a cgroup that was handed over could have it compute all the time.
        if let State::Loaded { kernel, .. } = &self.state
            && (self.feeder.measures_first()
                || self.feeder.is_rested() && kernel.reweighed() != self.reweighed)
        {
            self.update_weights();
        }
    }

    /// Notices that it ended, loads it again when it is time, feeds it the VMs.
    fn supervise(&mut self) -> Vec<String> {
        match &self.state {
            State::Off(_) => return std::mem::take(&mut self.said),
            State::GivenUp(_) => {}
            State::Waiting { until, .. } if Instant::now() >= *until => self.try_load(),
            State::Waiting { .. } => {}
            State::Loaded { .. } => self.supervise_loaded(),
        }
        self.write();
        std::mem::take(&mut self.said)
    }
}

impl Drop for Dispatch {
    fn drop(&mut self) {
        if let Some(dir) = &self.dir {
            in_force::withdraw(dir);
        }
    }
}

type Entries = (Vec<VmEntry>, Vec<String>);

/// Looks at the host: the VMs that there are, with warnings, and what follows for the scheduler.
fn decide(
    (config, trust): (&DispatchConfig, &Trust),
    scanner: &SharedScanner,
) -> (Entries, LoadPlan) {
    let scan = (config.mode != Mode::Off).then(|| trusted(scanner, trust)).transpose();
    let found = scan.as_ref().ok().and_then(Option::as_ref);
    let told = |(scan, _): &(Scan, Threads)| table::all_entries(scan, &BTreeMap::new(), config);
    let entries = found.map(told).unwrap_or_default();
    let threads: Vec<_> = found.map_or_else(Vec::new, |(scan, threads)| {
        threads.of_vms().chain(table::vcpus(&entries.0[scan.vms.len()..])).collect()
    });
    let probe = Probe::of(Path::new("/"), &threads);
    let plan = match (plan(config.mode, &probe, plan::BUILT, config.despite_cookies), scan) {
        // Whether their threads have cookies is not known either.
        (LoadPlan::Load, Err(error)) => LoadPlan::Busy(format!("cannot look for VMs: {error}")),
        (plan, _) => plan,
    };
    (entries, plan)
}

/// Threads of all VMs that a scan found, trusted or not, each with its VM's name.
#[derive(Debug)]
struct Threads(Vec<(String, Tid)>);

impl Threads {
    /// The vCPUs; all threads where vCPUs cannot be told.
    fn all_of(scan: &Scan) -> Self {
        let vcpus =
            scan.vms.iter().flat_map(|vm| vm.vcpus.iter().map(|v| (vm.name.clone(), v.tid)));
        let opaque =
            scan.opaque.iter().flat_map(|vm| vm.threads.iter().map(|t| (vm.name.clone(), t.tid)));
        Self(vcpus.chain(opaque).collect())
    }

    fn of_vms(&self) -> impl Iterator<Item = (&str, Tid)> {
        self.0.iter().map(|(name, tid)| (name.as_str(), *tid))
    }
}

/// Looks for the VMs of trusted owners, and for the threads of all VMs: a thread with a cookie endangers the
/// host, trusted or not.
fn trusted(scanner: &SharedScanner, trust: &Trust) -> Result<(Scan, Threads), instep_host::Error> {
    let mut scan = scanner.borrow_mut().scan_vms()?;
    let threads = Threads::all_of(&scan);
    scan.vms.retain(|vm| trust.refusal(&vm.owner).is_none());
    scan.opaque.retain(|vm| trust.refusal(&vm.owner).is_none());
    Ok((scan, threads))
}

/// Whether some scheduler is just coming or going.
fn is_going() -> bool {
    matches!(Probe::state_of(Path::new("/")), Some(instep_kernel::probe::State::Other(_)))
}

#[cfg(test)]
mod tests;
