//! One look at a host for commands that touch nothing: live over a window, or from copies.

use crate::args::HostArgs;
use crate::hypervisor;
use crate::tell;
use crate::text::{plural, printable, wrapped};
use anyhow::Context as _;
use instep_agent::config::Config;
use instep_agent::observe::{
    Observation, Observer, absent, keep_only, keep_trusted, leave_ignored,
};
use instep_agent::published::{self, HOST, STATE_DIR, SeenRun};
use instep_agent::vm_settings;
use instep_agent::xen::{self, DomainObservation, Memory, PriorScan};
use instep_core::snapshot::Snapshot;
use instep_core::units::{Milli, Nanos, VmId};
use instep_host::Root;
use instep_host::apply::{Journal, StateDir};
use instep_host::discover::{Manager, Scan, ScanOptions, Scanner, Trust, VmFacts};
use instep_xen::scan::{self, Depth};
use instep_xen::{Source, XenScan};
use std::path::{Path, PathBuf};

/// What was seen, and what should be said about it.
pub(crate) struct Observed {
    pub(crate) snapshot: Snapshot,
    pub(crate) scan: Scan,
    pub(crate) warnings: Vec<String>,
    /// Whether loads are averages since each VM started, for want of an earlier copy.
    pub(crate) since_start: bool,
    /// What a running or finished `instep run` changed, if that can be read; of copies nothing.
    pub(crate) journal: Option<Journal>,
    /// What a run tells everybody, where its journal may not be read.
    pub(crate) seen: Option<SeenRun>,
    /// Of a Xen host, what was found there; `scan` is empty then.
    pub(crate) xen: Option<XenSeen>,
}

/// What was found on a Xen host beside its snapshot.
pub(crate) struct XenSeen {
    pub(crate) scan: XenScan,
    /// *Competing modules* of the window, in millionths of a module.
    pub(crate) competing: u64,
}

/// Looks at the host that the options name, on Xen for memory by node if `config` asks for it; VMs of owners that `trust` refuses are left alone, and with
/// a `trust` those, too, that are to be ignored.
pub(crate) fn observe(
    args: &HostArgs,
    config: &Config,
    trust: Option<&Trust>,
) -> anyhow::Result<Observed> {
    let root = root(args.root.as_deref())?;
    if let Some(source) = hypervisor::xen(args.hypervisor, args.root.as_deref())? {
        let mut observed = observe_xen(&source, args, config)?;
        if let Some(name) = keep_only(&mut observed.snapshot, &config.vms).first() {
            anyhow::bail!(absent(&observed.snapshot, name));
        }
        return Ok(observed);
    }
    let mut options = ScanOptions::once();
    options.definitions = config.discover.vm_settings;
    let mut loads_only = options.clone();
    loads_only.memory.enabled = false;
    let mut observer = Observer::new(root.clone(), loads_only.clone())?;
    let mut warnings = observer.topology().warnings().to_vec();
    let mut before = None;
    let (journal, seen) = if root.is_live() {
        observer.begin()?;
        std::thread::sleep(config.window);
        journal_or_seen(&seen_state_dir(args.state_dir.as_deref()), &mut warnings)
    } else {
        if let Some(dir) = &args.before {
            let scan = Scanner::new(root_at(dir)?, loads_only).scan();
            let scan = scan.context("the copy given with --before")?;
            before = Some(scan.at);
            observer.continue_from(scan);
        }
        (None, None)
    };
    observer.set_options(options);
    let elapsed = args.elapsed.map(|elapsed| Nanos(elapsed.as_nanos() as u64));
    let Observation { mut snapshot, scan } = observer.observe(journal.as_ref(), elapsed)?;
    if let Some(seen) = &seen {
        seen.fill_in(&mut snapshot);
    }
    if let Some(before) = before {
        in_order(before, scan.at)?;
    }
    if let Some(trust) = trust {
        keep_trusted(&mut snapshot, &scan, trust);
        leave_ignored(&mut snapshot, &scan);
    }
    if let Some(name) = keep_only(&mut snapshot, &config.vms).first() {
        anyhow::bail!(absent(&snapshot, name));
    }
    warnings.extend(scan.warnings.iter().cloned());
    warnings.extend(vm_settings::problems(&scan));
    let since_start = !root.is_live() && before.is_none();
    Ok(Observed { snapshot, scan, warnings, since_start, journal, seen, xen: None })
}

/// Looks at a Xen host over a window, or at copies of one.
fn observe_xen(source: &Source, args: &HostArgs, config: &Config) -> anyhow::Result<Observed> {
    let mut warnings = Vec::new();
    let (mut journal, mut before) = (None, None);
    if source.is_live() {
        before = Some(scan::scan(source, Depth::Times)?);
        std::thread::sleep(config.window);
        journal = xen_journal(args.state_dir.as_deref(), &mut warnings);
    } else if let Some(dir) = &args.before {
        let scan = scan::scan(&Source::Copy(dir.clone()), Depth::Times);
        before = Some(scan.context("the copy given with --before")?);
    }
    let elapsed = args.elapsed.map(|elapsed| Nanos(elapsed.as_nanos() as u64));
    let known = PriorScan { before: before.as_ref(), elapsed, journal: journal.as_ref() };
    let DomainObservation { snapshot, scan, competing } =
        xen::observe_domains(source, xen::depth_of(config), &known, &mut Memory::new())?;
    warnings.extend(snapshot.topology.warnings().iter().cloned());
    warnings.extend(scan.warnings.iter().cloned());
    Ok(Observed {
        snapshot,
        scan: Scan::default(),
        warnings,
        since_start: before.is_none(),
        journal: None,
        seen: None,
        xen: Some(XenSeen { scan, competing }),
    })
}

/// What Instep changed on this Xen host, if that can be read.
pub(crate) fn xen_journal(
    named: Option<&Path>,
    warnings: &mut Vec<String>,
) -> Option<instep_xen::apply::Journal> {
    let state = state_dir(named).ok()?;
    instep_xen::apply::Journal::load(state.path()).unwrap_or_else(|error| {
        warnings.push(format!("original affinities are unknown: {error}"));
        None
    })
}

/// Refuses copies in the wrong order; one without an uptime (zero) could be any.
fn in_order(before: Nanos, after: Nanos) -> anyhow::Result<()> {
    let known = before.0 != 0 && after.0 != 0;
    anyhow::ensure!(
        !known || before < after,
        "the copy given with --before is not the earlier one: its host was up for {}s, that of \
         --root for {}s; give them the other way round (and both of one boot)",
        before.milli_of(Nanos::SECOND),
        after.milli_of(Nanos::SECOND)
    );
    Ok(())
}

/// This host, or the copy of one.
pub(crate) fn root(copy: Option<&Path>) -> anyhow::Result<Root> {
    copy.map_or_else(|| Ok(Root::live()), root_at)
}

fn root_at(dir: &Path) -> anyhow::Result<Root> {
    anyhow::ensure!(
        dir.is_dir(),
        "{} is not a folder; --root and --before take a folder that holds a host's proc and sys",
        dir.display()
    );
    Ok(Root::at(dir))
}

/// What a running or finished `instep run` changed, if that can be read.
pub(crate) fn journal(named: Option<&Path>, warnings: &mut Vec<String>) -> Option<Journal> {
    Journal::load(&seen_state_dir(named)).unwrap_or_else(|error| {
        warnings.push(format!("original affinities are unknown: {error}"));
        None
    })
}

/// The same, or what a run tells everybody where only its owner may read that.
fn journal_or_seen(
    state: &StateDir,
    warnings: &mut Vec<String>,
) -> (Option<Journal>, Option<SeenRun>) {
    match Journal::load(state) {
        Ok(journal) => (journal, None),
        Err(error) => {
            let seen = published::seen(state.path()).filter(|_| error.is_denied());
            if seen.is_none() {
                warnings.push(format!("original affinities are unknown: {error}"));
            }
            (None, seen)
        }
    }
}

/// The state directory of the run to show: the one that was named, else this user's own if a run published or left something there,
/// else that of the host's run.
pub(crate) fn seen_state_dir(named: Option<&Path>) -> StateDir {
    let is_used = |own: &StateDir| {
        named.is_some() || own.path().join(HOST).exists() || Journal::path_in(own).exists()
    };
    let own = state_dir(named).ok().filter(is_used);
    own.unwrap_or_else(|| StateDir::at(STATE_DIR))
}

/// The state directory that was named, or the default for this user.
pub(crate) fn state_dir(named: Option<&Path>) -> anyhow::Result<StateDir> {
    if let Some(dir) = named {
        return Ok(StateDir::at(dir));
    }
    if rustix::process::geteuid().is_root() {
        return Ok(StateDir::at(STATE_DIR));
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|dir| dir.is_absolute()).context(
        "there is no place for Instep's state, as XDG_RUNTIME_DIR names no directory; run it as \
         root (placing other users' threads needs root or CAP_SYS_NICE), set XDG_RUNTIME_DIR, or \
         name a folder with --state-dir DIR",
    )?;
    Ok(StateDir::at(runtime.join("instep")))
}

/// A quota as the VM's own, or with the cgroup whose it is.
pub(crate) fn quota_named(quota: Milli, facts: Option<&VmFacts>) -> String {
    let shared = facts.map(|facts| &facts.quota).filter(|quota| quota.is_shared);
    match shared.and_then(|quota| quota.file.as_ref()) {
        Some(file) => {
            let file = file.display().to_string();
            format!("the quota of {quota} CPUs that it shares with others ({})", printable(&file))
        }
        None => format!("its quota of {quota} CPUs"),
    }
}

impl Observed {
    /// The UUID by which libvirt knows a VM, or why it is not to be asked about it. A name is what any
    /// user may call a process; the cgroup is what libvirt alone gives.
    pub(crate) fn libvirt_uuid(&self, id: VmId) -> Result<&str, String> {
        let is_managed = |vm: &&VmFacts| vm.owner.is_in_libvirt_cgroup();
        let vm = self.scan.vms.iter().find(|vm| vm.pid == id.0).filter(is_managed);
        let Some(vm) = vm.filter(|vm| vm.manager == Some(Manager::Libvirt)) else {
            return Err(
                "no VM of libvirt in machine.slice or kubepods, see --format taskset".into()
            );
        };
        let is_uuid = |uuid: &&str| {
            uuid.len() == 36 && uuid.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
        };
        let uuid = vm.uuid.as_deref().filter(is_uuid).ok_or("its command line has no UUID")?;
        let same =
            self.scan.vms.iter().filter(is_managed).filter(|vm| vm.uuid.as_deref() == Some(uuid));
        match same.count() {
            1 => Ok(uuid),
            _ => Err(format!("another process has its UUID {uuid}, too")),
        }
    }

    /// Prints warnings on standard error, unless they are part of the JSON already.
    pub(crate) fn report_warnings(&self, in_json: bool) {
        if !in_json {
            for warning in &self.warnings {
                tell(&format!("warning: {warning}"));
            }
        }
    }

    /// The VMs that are seen and left alone, each with its reason.
    pub(crate) fn left_alone(&self, width: usize) -> String {
        let opaque = &self.snapshot.opaque;
        if opaque.is_empty() {
            return String::new();
        }
        let mut text = format!("\nLeft alone ({}):\n", plural(opaque.len(), "VM"));
        for vm in opaque {
            // Of a VM that does not count none are.
            let vcpus = match vm.vcpus {
                0 => String::new(),
                vcpus => format!(", {}", plural(vcpus as usize, "vCPU")),
            };
            let line = format!(
                "{} ({} {}){vcpus}: {}",
                printable(&vm.name),
                if self.xen.is_some() { "domain" } else { "pid" },
                vm.id,
                vm.why
            );
            for (index, line) in wrapped(&line, width - 4).iter().enumerate() {
                text.push_str(if index == 0 { "  " } else { "    " });
                text.push_str(line);
                text.push('\n');
            }
        }
        text
    }
}
