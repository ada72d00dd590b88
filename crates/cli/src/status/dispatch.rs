//! Which scheduler is in force on this host, and why.

use crate::text::{indented, printable, wrapped};
use instep_agent::dispatch::{
    InForce, LastExit, LimitInForce, Program, VmInForce, gone, read, take_held,
};
use instep_agent::published::{SeenRun, SeenScheduler};
use instep_core::snapshot::Snapshot;
use instep_core::units::NodeId;
use instep_core::wording::Count;
use instep_kernel::probe::State;
use instep_kernel::stats::DomainSeen;
use instep_kernel::{LoadPlan, Mode, Probe, plan};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// No run tells why.
const UNTOLD: &str = "no record of a running `instep run` in the state directory";

/// Who schedules threads on this host.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Dispatch")]
pub(crate) struct DispatchJson {
    /// In words.
    in_force: String,
    /// Whether it is Instep's.
    instep: bool,
    /// Why, as a running `instep run` says, or what is known of one that was killed; else that there is none.
    why: String,
    /// When a running `instep run` tries to load it again, in UTC.
    next_attempt: Option<String>,
    /// The run that had loaded Instep's and was killed, while nothing else is in force.
    ended: Option<EndedJson>,
    /// What the kernel offers.
    kernel: Probe,
    /// How often Instep's ended by itself since it was last sound.
    failures: usize,
    /// What Instep's knows of the VMs.
    vms: Vec<VmInForce>,
    /// The clocks of Instep's scheduling domains.
    domains: Vec<DomainSeen>,
    /// CPU limits of cgroups that Instep's keeps, at most 64: those of cgroups in which VMs run, above and below, then others, those
    /// that held threads for longest first. One that is listed stays until another held threads for twice as long.
    limits: Vec<LimitInForce>,
    /// How many there are besides.
    more_limits: usize,
    /// What Instep's counted since it was loaded.
    counters: BTreeMap<String, u64>,
    /// What Instep's consists of.
    programs: Vec<Program>,
    /// How Instep's ended the last time.
    last_exit: Option<LastExit>,
    /// The run, where only its owner may read the rest.
    #[serde(skip)]
    seen: Option<SeenRun>,
}

/// A run that is gone without a word.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "EndedRun")]
struct EndedJson {
    /// Its process.
    pid: u32,
    /// When it last said what was in force, in UTC.
    last_heard: Option<String>,
}

impl DispatchJson {
    /// Counts what limits held as throttled time.
    pub(super) fn take_held(&self, snapshot: &mut Snapshot) {
        if self.instep {
            take_held(&mut snapshot.vms, snapshot.window, &self.vms);
        }
    }
}

/// Asks the kernel, and the word that a running `instep run` leaves: all of it, or what it tells everybody.
pub(crate) fn read_dispatch(state: &Path, run: Option<SeenRun>) -> DispatchJson {
    let kernel = Probe::of(Path::new("/"), &[]);
    let told = read(state);
    let known = told.is_some();
    let enabled = kernel.state == Some(State::Enabled);
    let gone = (!known && !enabled).then(|| gone(state)).flatten();
    let run = run.filter(|_| !known);
    let mut told: InForce = told.unwrap_or_default();
    let scheduler = run.as_ref().and_then(|run| run.scheduler.as_ref());
    if let Some(SeenScheduler { instep, why }) = scheduler {
        (told.instep, told.why) = (*instep, why.clone());
    }
    DispatchJson {
        in_force: kernel.in_force(),
        instep: told.instep && kernel.ops.as_deref().is_some_and(|ops| ops.starts_with("instep")),
        why: match &gone {
            _ if known || scheduler.is_some() => told.why,
            Some(gone) => gone.why(),
            None => untold(&kernel),
        },
        next_attempt: told.next_attempt,
        ended: gone.map(|gone| EndedJson { pid: gone.pid, last_heard: gone.heard_at() }),
        kernel,
        failures: told.failures,
        vms: told.vms,
        domains: told.domains,
        limits: told.limits,
        more_limits: told.more_limits,
        counters: told.counters,
        programs: told.programs,
        last_exit: told.last_exit,
        seen: run,
    }
}

impl DispatchJson {
    /// The node that Instep's scheduler keeps a VM on while that has room.
    pub(crate) fn home_of(&self, vm: &str) -> Option<NodeId> {
        let known = self.vms.iter().filter(|_| self.instep);
        let home = known.filter(|known| known.name == vm).find_map(|known| known.home_node);
        home.or_else(|| self.seen.as_ref().filter(|_| self.instep)?.home_of(vm))
    }

    /// For people: a short line, why, and a line for each VM that Instep's scheduler knows.
    pub(crate) fn drawn(&self, width: usize) -> String {
        let next = self.next_attempt.as_ref();
        let next = next.map_or_else(String::new, |at| format!("; next attempt at {at}"));
        let mut text = format!("\nscheduler: {}\n", printable(&self.in_force));
        let why = format!("{}{next}", self.why);
        text.push_str(&indented(&wrapped(&why, width.saturating_sub(2)), 2));
        if let Some(LastExit { why, dump }) = &self.last_exit {
            let dump = dump.as_ref().map_or_else(String::new, |path| {
                format!("; {} says what the CPUs were doing", path.display())
            });
            let line = printable(&format!("it was thrown out before: {why}{dump}"));
            text.push_str(&indented(&wrapped(&line, width.saturating_sub(2)), 2));
        }
        for vm in &self.vms {
            let line = printable(&vm_line(vm));
            text.push_str(&indented(&wrapped(&line, width.saturating_sub(2)), 2));
        }
        for line in self.limit_lines() {
            text.push_str(&indented(&wrapped(&printable(&line), width.saturating_sub(2)), 2));
        }
        text
    }

    /// The CPU limits of cgroups with what each held, and for how long they held threads outside VMs, whose lines do not tell it.
    fn limit_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let shown = self.limits.iter().take(SHOWN_LIMITS).map(|limit| {
            let used_up = if limit.is_used_up { ", used up now" } else { "" };
            let held = milliseconds(limit.held_ns);
            let cpus = limit.milli_cpus as f64 / 1000.0;
            format!("{} ({cpus} CPUs, held its threads for {held}{used_up})", limit.cgroup)
        });
        let shown: Vec<String> = shown.collect();
        if !shown.is_empty() {
            let more = match self.limits.len() - shown.len() + self.more_limits {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            lines.push(format!("CPU limits of cgroups: {}{more}", shown.join(", ")));
        }
        let held_ns: u64 = self.domains.iter().map(|domain| domain.host_held_ns).sum();
        if held_ns >= 1_000_000 {
            let held = milliseconds(held_ns);
            lines.push(format!(
                "threads outside VMs, such as services: held for {held} by CPU limits"
            ));
        }
        lines
    }
}

/// For people, of limits; `--json` has more.
const SHOWN_LIMITS: usize = 8;

/// A time without what is below a millisecond.
fn milliseconds(ns: u64) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_millis(ns / 1_000_000))
}

/// No run tells why, and whether one would change that.
fn untold(kernel: &Probe) -> String {
    let would = format!("{UNTOLD}; `instep run --dispatch auto` would");
    // VMs are not looked at here, so their cookies are not known.
    match plan(Mode::Auto, kernel, plan::BUILT, true) {
        LoadPlan::Load => format!("{would} load Instep's"),
        LoadPlan::Stay(why) | LoadPlan::Busy(why) => format!("{would} not load Instep's: {why}"),
    }
}

/// One VM in a line.
fn vm_line(vm: &VmInForce) -> String {
    let VmInForce { name, weight, .. } = vm;
    let home = vm.home_node.map_or_else(String::new, |node| format!("home node {node}, "));
    let prompt = if vm.latency == "prompt" { "prompt, " } else { "" };
    let domain = vm.domain.map_or_else(String::new, |domain| format!("domain {domain}, "));
    let gang = match (vm.together, vm.gang_cpus) {
        (false, _) => "no gang".to_owned(),
        (true, cpus) => {
            format!("gang of {} vCPUs on {}", vm.gang_vcpus, Count::of(cpus as usize, "CPU"))
        }
    };
    let share = format!("entitled to {:.1} CPUs", f64::from(vm.share_milli) / 1000.0);
    let lag = match vm.lag_ns / 1_000_000 {
        0 => "on its domain's clock".to_owned(),
        ms @ 1.. => format!("{ms}ms behind its domain's clock"),
        ms => format!("{}ms ahead of its domain's clock", -ms),
    };
    let blocks = vm.blocks;
    let held = match vm.held_ns / 1_000_000 {
        0 => String::new(),
        _ => format!(", held for {} by CPU limits", milliseconds(vm.held_ns)),
    };
    let waits = match vm.waits.count {
        0 => String::new(),
        _ => format!(
            ", waits of {} at p99 and {} at most",
            humantime::format_duration(Duration::from_micros(vm.waits.p99_us)),
            humantime::format_duration(Duration::from_micros(vm.waits.longest_us))
        ),
    };
    let found = vm.found.as_ref().map_or_else(String::new, |found| format!("; {found}"));
    format!(
        "{name}: weight {weight}, {prompt}{home}{domain}{gang}, {share}, {lag}, {blocks} blocks{waits}{held}{found}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_agent::dispatch::WaitsInForce;

    #[test]
    fn vm_is_at_home_where_the_scheduler_that_is_in_force_keeps_it() {
        let mut dispatch = read_dispatch(Path::new("/nonexistent"), None);
        let home_node = Some(NodeId(1));
        dispatch.vms = vec![VmInForce { name: "a".into(), home_node, ..VmInForce::default() }];
        dispatch.instep = true;
        assert_eq!((dispatch.home_of("a"), dispatch.home_of("b")), (home_node, None));
        assert!(dispatch.drawn(80).contains("a: weight 0, home node 1, no gang"));
        dispatch.vms[0] = VmInForce {
            together: true,
            gang_vcpus: 4,
            gang_cpus: 2,
            domain: Some(0),
            share_milli: 1500,
            lag_ns: -7_000_000,
            waits: WaitsInForce { count: 9, p50_us: 1, p99_us: 2047, longest_us: 3000 },
            found: Some("gang of 4 vCPUs formed".into()),
            ..dispatch.vms[0].clone()
        };
        let drawn = dispatch.drawn(2000);
        let state = "domain 0, gang of 4 vCPUs on 2 CPUs, entitled to 1.5 CPUs, 7ms ahead of its";
        assert!(drawn.contains(state) && drawn.contains("; gang of 4 vCPUs formed"), "{drawn}");
        assert!(drawn.contains("waits of 2ms 47us at p99 and 3ms at most"), "{drawn}");
        dispatch.instep = false;
        assert_eq!(dispatch.home_of("a"), None);
    }

    #[test]
    fn cgroups_with_limits_are_listed_with_what_these_held() {
        let mut dispatch = read_dispatch(Path::new("/nonexistent"), None);
        let limits = |dispatch: &DispatchJson| dispatch.drawn(2000).contains("CPU limits");
        assert!(!limits(&dispatch), "there are none");
        let domain = |domain, host_held_ns| DomainSeen {
            domain,
            node: NodeId(0),
            cpus: 2,
            clock_ns: 0,
            vms: 0,
            gangs: 0,
            host_held_ns,
        };
        dispatch.domains = vec![domain(0, 1_500_000_000), domain(1, 2_000_000_000)];
        let limit = |at: u64| LimitInForce {
            cgroup: format!("/system.slice/{at}.service"),
            milli_cpus: 200 + at,
            is_used_up: at == 0,
            held_ns: at * 1_000_000,
        };
        dispatch.limits = (0..10).map(limit).collect();
        dispatch.more_limits = 5;
        let drawn = dispatch.drawn(2000);
        for line in [
            "\n  CPU limits of cgroups: /system.slice/0.service (0.2 CPUs, held its threads for 0s, used up now), ",
            ", /system.slice/7.service (0.207 CPUs, held its threads for 7ms) and 7 more\n",
            "\n  threads outside VMs, such as services: held for 3s 500ms by CPU limits\n",
        ] {
            assert!(drawn.contains(line), "{line} in {drawn}");
        }
        dispatch.limits.clear();
        assert!(!dispatch.drawn(2000).contains("cgroups"), "what was held stays");
    }

    #[test]
    fn reason_and_next_attempt_are_shown_to_every_user() {
        let mut dispatch = read_dispatch(Path::new("/nonexistent"), None);
        let would = "; `instep run --dispatch auto` would ";
        assert!(dispatch.why.starts_with(UNTOLD) && dispatch.why.contains(would));
        assert!(dispatch.drawn(2000).contains(&dispatch.why), "{}", dispatch.drawn(2000));
        let none = Probe { release: "6.1.0".into(), ..Probe::default() };
        let known = if plan::BUILT { "Linux 6.1.0 has no sched_ext" } else { "feature `kernel`" };
        let why = untold(&none);
        assert!(why.contains(known), "{why}");
        dispatch.why = "Instep's scheduler ended: a thread waited for too long".into();
        dispatch.next_attempt = Some("2026-11-23T08:11:15Z".into());
        let drawn = dispatch.drawn(200);
        assert!(drawn.contains("too long; next attempt at 2026-11-23T08:11:15Z"), "{drawn}");
    }
}
