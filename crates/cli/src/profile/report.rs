//! The result of a profile as plain data: schema `instep.profile/1`, and what text and page draw.

use super::judged;
use super::numbers::{fraction, time};
use super::placing;
use super::watch::Seen;
use instep_cli::imitation::Imitation;
use instep_core::policy::PolicyName;
use instep_core::profile::advice::{Advice, CoScheduling};
use instep_core::profile::placing::Run;
use instep_core::profile::{ApplicationKind, HARDLY_ACTIVE, Profile, Watched, potential};
use instep_core::topology::Topology;
use instep_core::units::{Milli, Nanos};
use schemars::JsonSchema;
use serde::Serialize;

/// Shares whose potential is told beside the one asked for.
const SHARES: [u64; 4] = [250, 500, 750, 1000];
/// Others that had more than this part of the CPU time that was wanted are told.
const DISTURBED: u64 = 50;
/// With more than this part there is no type and no advice: both would be of the machine's other load.
const SPOILT: u64 = 250;
/// The most points of the series that are kept; more are put together.
const MAX_SERIES: usize = 4000;

/// Schema `instep.profile/1`. Fractions are 0 to 1; a field that is not known is null.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Profile")]
pub(crate) struct ProfileReport {
    #[schemars(extend("const" = "instep.profile/1"))]
    pub(super) schema: &'static str,
    /// The command, process or VM.
    pub(super) what: String,
    /// Of a VM its vCPU threads in the order of the vCPUs; else empty.
    pub(super) vcpu_tids: Vec<u32>,
    /// `switches`: every context switch was traced; `proc`: /proc was asked at intervals.
    pub(super) source: &'static str,
    pub(super) cpus: u32,
    pub(super) share: f64,
    pub(super) period_ns: u64,
    pub(super) profile: Numbers,
    /// Mean threads active in each span: when it began, its length, threads.
    pub(super) series: Vec<(u64, u64, f64)>,
    /// Time with exactly 0, 1, 2, ... threads running; empty unless traced.
    pub(super) levels_ns: Vec<u64>,
    /// Empty without advice.
    pub(super) potential: Vec<Bound>,
    /// Null for a program that is hardly active, too brief or was kept from CPUs; [`ProfileReport::no_advice`] has the reason.
    pub(super) advice: Option<Advised>,
    pub(super) no_advice: Option<String>,
    pub(super) curve: Vec<Point>,
    pub(super) places: Vec<Place>,
    /// The synthetic program of a scenario that was written, and what the simulator makes of it.
    pub(super) scenario: Option<Imitation>,
    pub(super) warnings: Vec<String>,
    #[serde(skip)]
    pub(super) failed: bool,
    #[serde(skip)]
    pub(super) exact: Profile,
    #[serde(skip)]
    pub(super) advised: Option<Advice>,
    #[serde(skip)]
    pub(super) placing: Option<placing::Advice>,
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "ProfileNumbers")]
pub(super) struct Numbers {
    pub(super) threads: u32,
    pub(super) elapsed_ns: u64,
    pub(super) run_ns: u64,
    pub(super) wait_ns: u64,
    /// Threads that ran or could run.
    pub(super) busy: f64,
    /// Of these without busy waiting, where that is known.
    pub(super) parallelism: f64,
    pub(super) blocks_per_s: f64,
    pub(super) between_blocks_ns: Option<u64>,
    pub(super) busy_waiting: Option<f64>,
    pub(super) why_no_busy_waiting: Option<&'static str>,
    pub(super) efficiency: f64,
    pub(super) speedup: f64,
    pub(super) slice_ns: u64,
    #[serde(rename = "type")]
    pub(super) kind: Option<u8>,
}

/// The potential at one share and period.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "PotentialAtShare")]
pub(super) struct Bound {
    pub(super) share: f64,
    pub(super) period_ns: u64,
    pub(super) potential: f64,
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "ProfileAdvice")]
pub(super) struct Advised {
    pub(super) vcpus: u32,
    /// The part of the speed that so many vCPUs keep by Amdahl's law.
    pub(super) keeps: f64,
    pub(super) period_ns: u64,
    /// Whether the VM's time should go to its vCPUs by their demand.
    pub(super) match_work: bool,
    /// `pays`, `may_pay`, `harms`, `indifferent`, `if_it_spins` or `alone`.
    pub(super) co_scheduling: &'static str,
    /// The placement policy: what the places tell, by the two below, or the default where no two were
    /// compared; none where they were and tell nothing.
    pub(super) policy: Option<PolicyName>,
    /// Whether it is what places that were compared tell.
    pub(super) policy_measured: bool,
    /// Time with threads that share cores, times that apart.
    pub(super) core_sharing: Option<f64>,
    /// Time across nodes, times that within one.
    pub(super) across_nodes: Option<f64>,
}

/// A run with some number of threads.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "ProfilePoint")]
pub(super) struct Point {
    pub(super) threads: u32,
    pub(super) elapsed_ns: u64,
    pub(super) run_ns: u64,
    pub(super) parallelism: f64,
    pub(super) efficiency: f64,
    /// Time of the first run / time of this one, times its threads; null where the runs took equal
    /// times whatever they did.
    pub(super) speedup: Option<f64>,
    /// CPU time beyond that of the first run: busy waiting, or work slowed down by sharing.
    pub(super) excess_ns: u64,
}

/// A run on some CPUs.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "ProfiledPlace")]
pub(super) struct Place {
    pub(super) cpus: String,
    pub(super) threads: u32,
    /// Cores and nodes that the CPUs belong to.
    pub(super) cores: u32,
    pub(super) nodes: u32,
    pub(super) elapsed_ns: u64,
    pub(super) run_ns: u64,
    pub(super) parallelism: f64,
}

/// A program that runs for less than this, a few allocation periods, gets no advice.
pub(super) const BRIEF: Nanos = Nanos(100_000_000);

/// What was seen as a report.
pub(super) fn new(what: String, seen: &Seen, share: Milli, period: Nanos) -> ProfileReport {
    let watched = &seen.watched;
    let (mut profile, mut advice) = judged(watched, share, period);
    // A program that is hardly active, its waits included, lost nothing that matters.
    let mut no_advice = advice.is_none().then(|| hardly_active(&profile));
    let taken = advice.as_ref().map(|_| Disturbance::of(watched));
    if profile.elapsed < BRIEF {
        (profile.kind, advice, no_advice) = (None, None, Some(too_brief(&profile)));
    } else if let Some(taken) = taken.as_ref().filter(|taken| taken.part.0 > SPOILT) {
        (profile.kind, advice, no_advice) = (None, None, Some(taken.warning()));
    }
    let mut shares = SHARES.to_vec();
    shares.push(share.0);
    shares.sort_unstable();
    shares.dedup();
    let periods: Vec<Nanos> =
        advice.iter().flat_map(|advice| &advice.potential).map(|(period, _)| *period).collect();
    let bound = |share: u64, period: Nanos| {
        let potential = potential(watched, profile.threads, Milli(share), period)?;
        Some(Bound {
            share: fraction(Milli(share)),
            period_ns: period.0,
            potential: fraction(potential),
        })
    };
    let bounds =
        shares.iter().flat_map(|share| periods.iter().filter_map(|p| bound(*share, *p))).collect();
    let mut warnings = seen.warnings.clone();
    let failed = seen.ended.is_some_and(|ended| !ended.success());
    if let Some(ended) = seen.ended.filter(|_| failed) {
        warnings.push(format!("the command failed: {ended}"));
    }
    warnings.extend(taken.filter(|taken| taken.part.0 > DISTURBED).map(|taken| taken.warning()));
    ProfileReport {
        schema: "instep.profile/1",
        what,
        vcpu_tids: Vec::new(),
        source: if seen.traced { "switches" } else { "proc" },
        cpus: watched.cpus,
        share: fraction(share),
        period_ns: period.0,
        profile: numbers(&profile, unseen(seen)),
        series: series(&watched.intervals, profile.threads),
        levels_ns: watched.levels.iter().map(|time| time.0).collect(),
        potential: bounds,
        advice: advice.as_ref().map(Advised::new),
        no_advice,
        curve: Vec::new(),
        places: Vec::new(),
        scenario: None,
        warnings,
        failed,
        exact: profile,
        advised: advice,
        placing: None,
    }
}

/// Why busy waiting could not be told.
fn unseen(seen: &Seen) -> Option<&'static str> {
    match (seen.watched.busy_waiting, seen.guest, seen.traced) {
        (Some(_), ..) => None,
        (None, true, _) => Some("the code that its vCPUs run is the guest's"),
        (None, false, false) => Some("/proc does not show which code runs"),
        (None, false, true) => Some("too little of the code that ran could be read"),
    }
}

/// CPU time that others had while it was wanted.
struct Disturbance {
    taken: Nanos,
    /// Of that, at most: what the machine's own hypervisor gave to other machines.
    stolen: Nanos,
    /// Of all that was wanted and could be had.
    part: Milli,
}

impl Disturbance {
    fn of(watched: &Watched) -> Self {
        let taken = watched.taken();
        let wanted = Nanos(watched.run().0.saturating_add(taken.0));
        Self { taken, stolen: watched.stolen.min(taken), part: taken.milli_of(wanted) }
    }

    fn warning(&self) -> String {
        let mut taken = time(self.taken.0);
        if self.stolen.0 > 0 {
            let stolen = time(self.stolen.0);
            taken = format!("{taken}, of it {stolen} by this machine's own hypervisor");
        }
        format!(
            "other threads had the CPUs in {}% of the time that its threads wanted to run \
             ({taken}); measure again when the machine is quiet",
            self.part.0 / 10,
        )
    }
}

/// Why there is neither type nor advice.
fn too_brief(profile: &Profile) -> String {
    format!(
        "it ran for {} only, and that is its start rather than its work. Profile something that runs \
         for a second or more",
        time(profile.elapsed.0)
    )
}

/// Why there is neither type nor advice.
fn hardly_active(profile: &Profile) -> String {
    format!(
        "it was hardly active: {:.3} CPUs on average, and below {:.1} chance decides its type. Any VM \
         serves it as it was; profile it under the load that matters",
        fraction(profile.busy),
        fraction(HARDLY_ACTIVE)
    )
}

impl Advised {
    fn new(advice: &Advice) -> Self {
        Self {
            vcpus: advice.vcpus.0,
            keeps: fraction(advice.vcpus.1),
            period_ns: advice.period.0,
            match_work: advice.match_work,
            co_scheduling: match advice.together {
                CoScheduling::Pays => "pays",
                CoScheduling::Harms => "harms",
                CoScheduling::MayPay => "may_pay",
                CoScheduling::Indifferent => "indifferent",
                CoScheduling::IfItSpins => "if_it_spins",
                CoScheduling::Alone => "alone",
            },
            policy: None,
            policy_measured: false,
            core_sharing: None,
            across_nodes: None,
        }
    }
}

fn numbers(profile: &Profile, why_no_busy_waiting: Option<&'static str>) -> Numbers {
    Numbers {
        threads: profile.threads,
        elapsed_ns: profile.elapsed.0,
        run_ns: profile.run.0,
        wait_ns: profile.wait.0,
        busy: fraction(profile.busy),
        parallelism: fraction(profile.parallelism),
        blocks_per_s: fraction(profile.frequency),
        between_blocks_ns: profile.between.map(|between| between.0),
        busy_waiting: profile.busy_waiting.map(fraction),
        why_no_busy_waiting,
        efficiency: fraction(profile.efficiency),
        speedup: fraction(profile.speedup()),
        slice_ns: profile.slice.0,
        kind: profile.kind.map(ApplicationKind::number),
    }
}

fn series(intervals: &[instep_core::profile::Interval], threads: u32) -> Vec<(u64, u64, f64)> {
    let step = intervals.len().div_ceil(MAX_SERIES).max(1);
    let mut at = 0;
    let span = |part: &[instep_core::profile::Interval]| {
        let length: u64 = part.iter().map(|interval| interval.length.0).sum();
        let active: u64 = part.iter().map(|interval| interval.active(threads).0).sum();
        let begin = at;
        at += length;
        (begin, length, fraction(Nanos(active).milli_of(Nanos(length))))
    };
    intervals.chunks(step).map(span).collect()
}

impl Point {
    pub(super) fn new(threads: u32, profile: &Profile) -> Self {
        Self {
            threads,
            elapsed_ns: profile.elapsed.0,
            run_ns: profile.run.0,
            parallelism: fraction(profile.parallelism),
            efficiency: fraction(profile.efficiency),
            speedup: None,
            excess_ns: 0,
        }
    }
}

impl Place {
    /// A run on `cpus`.
    pub(super) fn new(cpus: &str, profile: &Profile, run: &Run) -> Self {
        Self {
            cpus: cpus.to_owned(),
            threads: run.threads,
            cores: run.cores,
            nodes: run.nodes,
            elapsed_ns: profile.elapsed.0,
            run_ns: profile.run.0,
            parallelism: fraction(profile.parallelism),
        }
    }
}

impl ProfileReport {
    /// Advises a placement policy by the runs of each place on this machine.
    pub(super) fn place(&mut self, runs: &[Run], topology: &Topology) {
        let whose = placing::PlacedProgram {
            threads: self.exact.threads,
            parallelism: self.exact.parallelism,
            is_vm: !self.vcpu_tids.is_empty(),
        };
        let placing = placing::Advice::new(runs, topology, whose);
        if let Some(advice) = &mut self.advice {
            advice.policy = placing.policy();
            advice.policy_measured = placing.told.policy.is_some();
            advice.core_sharing = placing.told.sharing.map(fraction);
            advice.across_nodes = placing.told.across.map(fraction);
        }
        self.placing = Some(placing);
    }

    /// Takes the runs with different numbers of threads, the fewest first.
    pub(super) fn set_curve(&mut self, mut points: Vec<Point>) {
        let Some(first) = points.first() else { return };
        let (base, cpu, threads) = (first.elapsed_ns, first.run_ns, first.threads);
        let near = |time: u64| time.abs_diff(base) < base / 33;
        let fixed = points.len() > 1 && points.iter().all(|point| near(point.elapsed_ns));
        for point in &mut points {
            if !fixed {
                let times = base as f64 / point.elapsed_ns.max(1) as f64;
                point.speedup = Some(times * f64::from(threads));
                point.excess_ns = point.run_ns.saturating_sub(cpu);
            }
        }
        if fixed {
            self.warnings.push(
                "all runs took the same time, so the command seems to run for a time and not for \
                 an amount of work: there is no speedup by time"
                    .to_owned(),
            );
        } else if threads != 1 {
            self.warnings.push(format!(
                "speedups take the run with {threads} threads for {threads} times as fast as one; \
                 give --threads 1,..."
            ));
        }
        self.curve = points;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::profile::{Interval, ThreadSum};

    const SECOND: u64 = 1_000_000_000;

    /// Two threads and a third that waits for them on two CPUs of which others had this many seconds.
    fn report(others: u64, wait: u64) -> ProfileReport {
        let thread = |run| ThreadSum { seen: (0, 0), run: Nanos(run) };
        let run = Nanos(2 * SECOND);
        let watched = Watched {
            cpus: 2,
            intervals: vec![Interval { length: Nanos(2 * SECOND), run, wait: Nanos(wait) }],
            threads: vec![thread(SECOND), thread(SECOND), thread(SECOND / 50)],
            others: Some(Nanos(others * SECOND)),
            stolen: Nanos(others * SECOND / 2),
            ..Watched::default()
        };
        let warnings = Vec::new();
        let seen = Seen { watched, traced: true, guest: false, warnings, ended: None };
        new("a program".to_owned(), &seen, Milli(500), Nanos(24_000_000))
    }

    #[test]
    fn disturbed_machine_gives_a_reason_in_place_of_advice() {
        let disturbed = report(2, 2000 * SECOND);
        let reason = "other threads had the CPUs in 50% of the time that its threads wanted to run (2s, of it \
                      1s by this machine's own hypervisor)";
        let why = disturbed.no_advice.unwrap();
        assert!(why.starts_with(reason) && why.contains("when the machine is quiet"), "{why}");
        assert_eq!(disturbed.warnings, [why]);
        assert!(disturbed.profile.kind.is_none() && disturbed.potential.is_empty());
        // What its own threads wait for each other is no disturbance.
        let own = report(0, 2 * SECOND);
        assert!(own.warnings.is_empty() && own.advice.is_some() && own.profile.kind.is_some());
    }

    fn curve(first: u32, times: &[(u32, u64)]) -> ProfileReport {
        let point = |(threads, ms): &(u32, u64)| Point {
            threads: *threads,
            elapsed_ns: ms * SECOND / 1000,
            run_ns: SECOND * u64::from(*threads),
            parallelism: 1.0,
            efficiency: 1.0,
            speedup: None,
            excess_ns: 0,
        };
        let mut report = report(0, 0);
        report.warnings.clear();
        report.set_curve([&[(first, 1000)], times].concat().iter().map(point).collect());
        report
    }

    #[test]
    fn speedup_is_against_one_thread() {
        let speedups = |report: &ProfileReport| -> Vec<Option<f64>> {
            report.curve.iter().map(|point| point.speedup).collect()
        };
        let one = curve(1, &[(2, 500), (4, 2000)]);
        assert_eq!(speedups(&one), [Some(1.0), Some(2.0), Some(0.5)]);
        assert_eq!((one.curve[2].excess_ns, one.warnings.len()), (3 * SECOND, 0));
        // The first is taken for as many times as fast as one, which is said.
        let two = curve(2, &[(4, 500)]);
        assert_eq!(speedups(&two), [Some(2.0), Some(4.0)]);
        assert!(two.warnings[0].contains("--threads 1"), "{:?}", two.warnings);
        let timed = curve(1, &[(2, 1020), (4, 980)]);
        assert_eq!((speedups(&timed), timed.curve[2].excess_ns), (vec![None; 3], 0));
        assert!(timed.warnings[0].contains("the same time"), "{:?}", timed.warnings);
    }

    #[test]
    fn why_busy_waiting_is_unknown_is_reported() {
        let seen = |guest: bool, traced: bool, known: Option<u64>| {
            let watched = Watched { busy_waiting: known.map(Milli), ..Watched::default() };
            unseen(&Seen { watched, traced, guest, warnings: Vec::new(), ended: None })
        };
        assert_eq!(seen(false, true, Some(0)), None);
        assert!(seen(true, true, None).unwrap().contains("the guest's"));
        assert!(seen(false, false, None).unwrap().contains("/proc"));
        assert!(seen(false, true, None).unwrap().contains("too little"));
    }
}
