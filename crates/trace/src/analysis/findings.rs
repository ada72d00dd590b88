//! What the numbers mean: findings in plain words, each with its evidence and what Instep would do,
//! the most time lost first.
//!
//! Times of different kinds overlap: what a VM loses by stacking is also time that it waits. Each
//! finding stands for itself; they are not summed.

use super::report::{AnalysedHost, AnalysedVm, AnalysisFinding, Occupant};
use instep_core::measure;
use instep_core::units::Nanos;
use schemars::JsonSchema;
use serde::Serialize;

/// Kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// vCPUs waited while others ran on their CPUs.
    Steal,
    /// vCPUs waited for siblings on the same CPU.
    Stacking,
    /// A VM that hardly ever blocks ran only in parts: its vCPUs may have spun for waiting siblings.
    NotCoScheduled,
    /// A VM was held up by siblings that could have run.
    Bottleneck,
    /// vCPUs waited while nothing else ran: wake-ups were slow.
    WakeLatency,
    /// Cores were shared while others were idle.
    CoreSharing,
    /// vCPUs moved between nodes.
    NodeMigrations,
    /// A CPU quota stopped vCPUs.
    Throttled,
    /// A VM got less CPU time than its weight gives it beside the others.
    BelowShare,
}

/// Below this part of a VM's wish for CPU time, or this time, nothing is worth a finding.
const LEAST_PART: u64 = 10; // thousandths
const LEAST: u64 = 1_000_000;
/// Less than this part of its share, in thousandths, is within what schedulers keep.
const LEAST_OF_SHARE: u64 = 100;
/// Who sleeps less often than once in this much CPU time computes or spins, and the scheduler runs its
/// vCPUs together (bpf/policy.h, POL_GANG_ON_NS). It does not look at how long sleeps are.
const RARELY: u64 = 20_000_000;
/// Less CPU time than this says nothing (POL_EVIDENCE_NS).
const EVIDENCE: u64 = 10_000_000;

/// Finds what is worth telling.
pub(super) fn find(
    vms: &[AnalysedVm],
    host: &AnalysedHost,
    duration: Nanos,
) -> Vec<AnalysisFinding> {
    let shares = shares(vms);
    let of_vm = |(vm, share): (&AnalysedVm, Option<u64>)| of_vm(vm, share, host, duration);
    let mut findings: Vec<AnalysisFinding> = vms.iter().zip(shares).flat_map(of_vm).collect();
    findings.extend(core_sharing(host, duration));
    for finding in &mut findings {
        finding.text.push_str(command(finding.kind));
    }
    findings.sort_by_key(|finding| {
        (std::cmp::Reverse(finding.lost_ns), finding.kind, finding.vm.clone())
    });
    findings
}

/// A VM's sums over its vCPUs.
struct Sums {
    run: u64,
    steal: u64,
    throttled: u64,
    sleeps: u64,
}

impl Sums {
    fn of(vm: &AnalysedVm) -> Sums {
        let sum = |of: &dyn Fn(&super::report::AnalysedVcpu) -> Option<u64>| {
            vm.vcpus.iter().filter_map(of).sum()
        };
        Sums {
            run: sum(&|vcpu| vcpu.run_ns),
            steal: sum(&|vcpu| vcpu.steal_ns),
            throttled: sum(&|vcpu| vcpu.throttled_ns),
            sleeps: vm.wakeups.total().count,
        }
    }

    fn wanted(&self) -> u64 {
        self.run + self.steal + self.throttled
    }

    /// Whether a quota, and not others, kept its vCPUs from running for most of their waits.
    fn is_held_by_quota(&self) -> bool {
        self.throttled > self.steal
    }

    /// Whether its vCPUs hardly ever sleep: they compute or spin. `None` when they ran too little to tell.
    fn rarely_sleeps(&self) -> Option<bool> {
        (self.run >= EVIDENCE).then(|| self.sleeps.saturating_mul(RARELY) <= self.run)
    }

    /// How often they sleep, where that is rarely.
    fn sleeps(&self) -> String {
        match self.sleeps {
            0 => "never sleeps".to_owned(),
            1 => format!("slept once in {} of CPU time", time(self.run)),
            count => format!("slept {count} times in {} of CPU time", time(self.run)),
        }
    }

    fn is_much(&self, time: u64) -> bool {
        time >= LEAST && Nanos(time).milli_of(Nanos(self.wanted())).0 >= LEAST_PART
    }
}

/// Findings of a VM with this share of the CPU time. A cause appears in one finding only: CPU time of others beyond their
/// share explains the VM's waits for them, and a quota explains siblings that stand still.
fn of_vm(
    vm: &AnalysedVm,
    share: Option<u64>,
    host: &AnalysedHost,
    duration: Nanos,
) -> Vec<AnalysisFinding> {
    let sums = Sums::of(vm);
    [
        throttled(vm, &sums),
        below_share(vm, share, &sums).or_else(|| steal(vm, &sums)),
        stacking(vm, host, &sums),
        not_co_scheduled(vm, &sums),
        bottleneck(vm, host, &sums),
        wake_latency(vm, &sums),
        node_migrations(vm, duration),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn finding(kind: FindingKind, vm: &AnalysedVm, lost: u64, text: String) -> Option<AnalysisFinding> {
    Some(AnalysisFinding { kind, vm: Some(vm.name.clone()), lost_ns: lost, text })
}

fn throttled(vm: &AnalysedVm, sums: &Sums) -> Option<AnalysisFinding> {
    let its = vm.throttled.as_ref().filter(|its| sums.is_much(its.ns))?;
    let quota = its.quota_milli_cpus.map_or_else(String::new, |quota| {
        format!(" of {}", percent(quota, 1000).replace(".0 %", " %"))
    });
    let whose = match (its.is_above, its.is_shared) {
        (true, _) => "a quota above its cgroup,",
        (false, true) => "the quota of a cgroup that it shares with others,",
        (false, false) => "its own quota",
    };
    let raise = match &its.file {
        Some(file) if its.is_shared => format!(
            "It stops all threads of that cgroup and below together. `echo {} > {}` removes it.",
            none(file),
            quoted(file)
        ),
        Some(file) => {
            format!(
                "No scheduler and no placement changes this. `echo {} > {}` removes the quota; \
                 with libvirt `virsh schedinfo {} --live vcpu_quota=-1`.",
                none(file),
                quoted(file),
                quoted(&vm.name)
            )
        }
        None => "The quota has been removed since.".to_owned(),
    };
    let text = format!(
        "{} was throttled by {whose}{quota}: {} of the {} that its vCPUs wanted. {raise}",
        vm.name,
        time(its.ns),
        time(sums.wanted()),
    );
    finding(FindingKind::Throttled, vm, its.ns, text)
}

/// The text that means no quota in this file.
fn none(file: &str) -> &'static str {
    if file.ends_with("cpu.max") { "max" } else { "-1" }
}

/// A word for a shell: others choose names of VMs and cgroups.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@".contains(c);
    if !word.starts_with('-') && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The part of each VM in the CPU time that all of them had together, by their weights and by the time that their vCPUs
/// wanted; `None` where the weight of one of them is not known.
fn shares(vms: &[AnalysedVm]) -> Vec<Option<u64>> {
    let claim = |vm: &AnalysedVm| {
        let sums = Sums::of(vm);
        // A VM does not claim the time that a quota keeps from it.
        Some((u64::from(vm.periods.weight?), sums.run + sums.steal))
    };
    let claims: Option<Vec<(u64, u64)>> = vms.iter().map(claim).collect();
    let Some(claims) = claims.filter(|claims| claims.len() > 1) else {
        return vec![None; vms.len()];
    };
    let had = vms.iter().map(|vm| Sums::of(vm).run).sum();
    measure::fair_shares(had, &claims).into_iter().map(Some).collect()
}

fn below_share(vm: &AnalysedVm, share: Option<u64>, sums: &Sums) -> Option<AnalysisFinding> {
    let (share, weight) = share.zip(vm.periods.weight)?;
    let lost = share.saturating_sub(sums.run);
    if Nanos(lost).milli_of(Nanos(share)).0 < LEAST_OF_SHARE || !sums.is_much(lost) {
        return None;
    }
    let text = format!(
        "{} got less than its weight's share: {} of the {} that weight {weight} gives it beside the other VMs, \
         while its vCPUs wanted {}. The default scheduler keeps weights on each CPU; Instep would keep them \
         over all CPUs of a domain.",
        vm.name,
        time(sums.run),
        time(share),
        time(sums.wanted()),
    );
    finding(FindingKind::BelowShare, vm, lost, text)
}

/// The command that acts on a finding of this kind.
fn command(kind: FindingKind) -> &'static str {
    match kind {
        FindingKind::Throttled => "",
        FindingKind::NodeMigrations | FindingKind::CoreSharing => {
            " `instep plan` shows where, `instep run` does it."
        }
        FindingKind::Steal
        | FindingKind::Stacking
        | FindingKind::NotCoScheduled
        | FindingKind::Bottleneck
        | FindingKind::BelowShare => {
            " `instep run --dispatch auto` does it, or says what this host lacks for it."
        }
        FindingKind::WakeLatency => {
            " `cpupower idle-set --disable-by-latency 10` leaves shallow states only."
        }
    }
}

fn steal(vm: &AnalysedVm, sums: &Sums) -> Option<AnalysisFinding> {
    let others: Vec<_> =
        vm.culprits.iter().filter(|culprit| culprit.who == Occupant::Other).collect();
    let lost: u64 = others.iter().map(|culprit| culprit.ns).sum();
    let first = others.first().filter(|_| sums.is_much(lost))?;
    let remedy = steal_remedy(vm.vcpus.len(), sums);
    let text = format!(
        "{} waited {} for a CPU, {} of the time its vCPUs wanted one; {} ran in {} of that{}. {remedy}",
        vm.name,
        time(lost),
        percent(lost, sums.wanted()),
        first.name,
        percent(first.ns, lost),
        match others.get(1) {
            Some(second) if second.ns * 10 > lost =>
                format!(", {} in {}", second.name, percent(second.ns, lost)),
            _ => String::new(),
        },
    );
    finding(FindingKind::Steal, vm, lost, text)
}

/// What Instep would do for a VM that others keep from its CPUs.
fn steal_remedy(vcpus: usize, sums: &Sums) -> &'static str {
    match sums.rarely_sleeps() {
        _ if vcpus < 2 => {
            "Instep would place its one vCPU where there is room, and give it its share by weight."
        }
        Some(true) => {
            "Its vCPUs hardly ever sleep, they compute or spin: Instep would run them at the same time \
             (relaxed co-scheduling), so that what it spends waiting for siblings is saved."
        }
        Some(false) => {
            "Its vCPUs sleep and wake: Instep would keep them on different CPUs and boost one that \
             holds the others up, within the VM's share."
        }
        None => "Instep would keep its vCPUs on different CPUs, and give it its share by weight.",
    }
}

fn stacking(vm: &AnalysedVm, host: &AnalysedHost, sums: &Sums) -> Option<AnalysisFinding> {
    let own = vm.culprits.iter().find(|culprit| culprit.who == Occupant::Siblings)?;
    if !sums.is_much(own.ns) {
        return None;
    }
    let worst = vm.stacked_on.iter().max_by_key(|on| (on.ns, std::cmp::Reverse(on.cpu)));
    let worst = worst.map_or(String::new(), |on| format!(", most on CPU {}", on.cpu));
    let remedy = if vm.vcpus.len() > host.cpus {
        "It has more vCPUs than the host has CPUs, so siblings must share, and fewer vCPUs would help most; \
         Instep would keep their number per CPU even."
    } else {
        "Instep would never queue siblings on one CPU while another that they may use has none \
         (balance)."
    };
    let text = format!(
        "vCPUs of {} waited {} while a sibling ran on the same CPU; two or more were on one CPU \
         {:.1} % of the time{worst}. {remedy}",
        vm.name,
        time(own.ns),
        vm.stacking? * 100.0,
    );
    finding(FindingKind::Stacking, vm, own.ns, text)
}

fn not_co_scheduled(vm: &AnalysedVm, sums: &Sums) -> Option<AnalysisFinding> {
    let (lost, co_run) = vm.beside_waiting_ns.zip(vm.co_run)?;
    if sums.rarely_sleeps() != Some(true)
        || sums.is_held_by_quota()
        || vm.vcpus.len() < 2
        || co_run > 0.9
        || !sums.is_much(lost)
    {
        return None;
    }
    let text = format!(
        "{} {}, and its vCPUs ran {} while a sibling was not let run (co-run {:.2}, up \
         to {} apart): if they wait for each other by spinning, that was spent for nothing. Instep \
         would run its vCPUs at the same time, as a gang.",
        vm.name,
        sums.sleeps(),
        time(lost),
        co_run,
        time(vm.max_skew_ns?),
    );
    finding(FindingKind::NotCoScheduled, vm, lost, text)
}

fn bottleneck(vm: &AnalysedVm, host: &AnalysedHost, sums: &Sums) -> Option<AnalysisFinding> {
    let held = &vm.held_up;
    if held.passes == 0 || sums.is_held_by_quota() || !sums.is_much(held.held_ns) {
        return None;
    }
    let text = format!(
        "{} was held up {} for {}: vCPUs slept longer than the ideal scheduling interval ({}) \
         while a sibling could run and did not. Instep would boost that sibling within the VM's \
         share.",
        vm.name,
        if held.passes == 1 { "once".to_owned() } else { format!("{} times", held.passes) },
        time(held.held_ns),
        time(host.ideal_interval_ns),
    );
    finding(FindingKind::Bottleneck, vm, held.held_ns, text)
}

fn wake_latency(vm: &AnalysedVm, sums: &Sums) -> Option<AnalysisFinding> {
    let is_latency = |who: Occupant| matches!(who, Occupant::Idle | Occupant::Waking);
    let latency = vm.culprits.iter().filter(|culprit| is_latency(culprit.who));
    let lost = latency.map(|culprit| culprit.ns).sum();
    if !sums.is_much(lost) {
        return None;
    }
    let wakes = vm.wakeups.total().count;
    let text = format!(
        "vCPUs of {} waited {} although nothing else ran: the time it takes to wake one up on \
         an idle CPU ({} each time, {wakes} times). Shallower idle states or guest-side halt polling \
         help; Instep does not change this.",
        vm.name,
        time(lost),
        time(lost.checked_div(wakes).unwrap_or(0)),
    );
    finding(FindingKind::WakeLatency, vm, lost, text)
}

fn node_migrations(vm: &AnalysedVm, duration: Nanos) -> Option<AnalysisFinding> {
    let moves = vm.moves.across_nodes;
    let seconds = (duration.0 as f64 / 1e9).max(1e-9);
    // Fewer than ten a second cost nothing that can be measured.
    if moves == 0 || (moves as f64) < 10.0 * seconds {
        return None;
    }
    let text = format!(
        "vCPUs of {} moved between NUMA nodes {:.0} times a second, away from their memory and \
         caches. Instep would keep them on the node that holds most of the VM's memory.",
        vm.name,
        moves as f64 / seconds,
    );
    finding(FindingKind::NodeMigrations, vm, 0, text)
}

fn core_sharing(host: &AnalysedHost, duration: Nanos) -> Option<AnalysisFinding> {
    let lost = host.avoidable_sharing_ns?;
    if lost < LEAST || Nanos(lost).milli_of(duration).0 < LEAST_PART {
        return None;
    }
    let text = format!(
        "Two threads of one core were busy for {} ({} of the trace) while another core was idle \
         (competing modules {:.2}). Instep would use idle cores first.",
        time(lost),
        percent(lost, duration.0),
        host.competing_modules.unwrap_or(0.0),
    );
    Some(AnalysisFinding { kind: FindingKind::CoreSharing, vm: None, lost_ns: lost, text })
}

/// A duration for people: three digits and a unit.
#[must_use]
pub fn time(nanos: u64) -> String {
    let (value, unit) = match nanos {
        0..1_000 => (nanos as f64, "ns"),
        1_000..1_000_000 => (nanos as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (nanos as f64 / 1e6, "ms"),
        _ => (nanos as f64 / 1e9, "s"),
    };
    match value {
        ..9.995 if unit != "ns" => format!("{value:.2}{unit}"),
        ..99.95 if unit != "ns" => format!("{value:.1}{unit}"),
        _ => format!("{value:.0}{unit}"),
    }
}

fn percent(part: u64, whole: u64) -> String {
    let percent = if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 };
    if percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_commands_are_quoted() {
        let path = "/sys/fs/cgroup/machine.slice/machine-qemu\\x2d1\\x2dweb.scope/cpu.max";
        assert_eq!(quoted(path), format!("'{path}'"));
        assert_eq!(quoted("/a/cpu.max"), "/a/cpu.max");
        assert_eq!(quoted("x'; rm -rf /"), r"'x'\''; rm -rf /'");
    }

    #[test]
    fn times_have_three_digits_and_a_unit() {
        let shown = [7, 1_500, 12_345_678, 1_999_000_000, 123_000_000_000].map(time);
        assert_eq!(shown, ["7ns", "1.50us", "12.3ms", "2.00s", "123s"]);
    }
}
