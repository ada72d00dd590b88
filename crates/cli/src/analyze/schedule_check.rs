//! `instep analyze --check`: holds a recorded schedule against the checkers that the simulator has, too.
//!
//! It reads the file three times: to find the VMs, to find their threads and CPUs, and to check. Where the recorder
//! lost events one schedule ends and another begins, of which nothing is known: until its first switch
//! (recorders begin on one CPU after the other) a CPU counts as busy. The same holds where a switch is missing
//! without a reported loss, as when a thread leaves a CPU on which another one had been put. Nobody knows when
//! it came, so nothing is checked from the moment on at which that other thread was put there.
//!
//! What it does not know: affinities (where nobody tells them, a thread may use the CPUs that it
//! used), weights of what is no VM, real-time classes, quotas, and CPUs that went off line.

use super::rules::{self, Rules};
use super::{AnalysisSettings, each, open, settings};
use crate::args::AnalyzeArgs;
use crate::text::plural;
use crate::{Outcome, print, print_json, tell};
use instep_check::mask::Mask;
use instep_check::picture::TaskLife;
use instep_check::{Fact, FactKind, RuleWatch, ScheduleFinding};
use instep_core::idset::CpuSet;
use instep_trace::analysis::analyze;
use instep_trace::event::{Event, Fact as Seen, Left, MAX_CPUS};
use instep_trace::stream::EventStream;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The most threads that are judged: every moment every one is looked at.
const MAX_THREADS: usize = 20_000;

/// Judges every file; one that cannot be judged does not keep the others from it.
pub(super) fn command(
    args: &AnalyzeArgs,
    settings: &AnalysisSettings,
    rules: &str,
) -> anyhow::Result<Outcome> {
    let rules = Rules::parse(rules)?;
    let allowed: anyhow::Result<Vec<_>> =
        args.allowed.iter().map(|text| rules::allowed(text)).collect();
    let allowed = allowed?;
    let show = |_: &Path, said: &CheckedFile| {
        if args.json {
            return Ok(());
        }
        print(&said.line())?;
        said.warnings.iter().for_each(|warning| tell(&format!("warning: {warning}")));
        Ok(())
    };
    let one = |path: &Path| one(path, (args, settings), &allowed, &rules);
    let (told, whole) = each(&args.files, one, show)?;
    if args.json {
        print_json(&Checked { schema: "instep.check/1", files: &told })?;
    }
    whole?;
    let sound = told.iter().all(|said| said.finding.is_none());
    Ok(if sound { Outcome::Fine } else { Outcome::Finding })
}

fn one(
    path: &Path,
    (args, settings): (&AnalyzeArgs, &AnalysisSettings),
    allowed: &[(String, CpuSet)],
    rules: &Rules,
) -> anyhow::Result<CheckedFile> {
    let regular = std::fs::metadata(path).map_or(true, |metadata| metadata.is_file());
    anyhow::ensure!(
        regular && path.as_os_str() != "-",
        "--check reads a trace three times: give it a file, not a pipe"
    );
    let cast = TraceThreads::of(path, (args, settings), allowed, rules)?;
    let judged = judge(&mut *open(path)?, &cast, rules);
    let mut warnings = cast.warnings.clone();
    if cast.missing > 0 {
        warnings.push(format!(
            "switches are missing at {} although no loss is reported: the schedule begins anew \
             behind each, and {} events before are not judged",
            plural(cast.missing as usize, "place"),
            judged.passed
        ));
    }
    if judged.unwoken > 0 {
        warnings.push(format!(
            "{} times a thread ran without a wake-up in the trace: `woken` and `wait` do not see these \
             waits",
            judged.unwoken
        ));
    }
    let vm = |at: usize| cast.vms.get(at).cloned().unwrap_or_else(|| at.to_string());
    let finding = judged.finding.map(|finding| finding.named(&|at| cast.task(at), &vm));
    Ok(CheckedFile {
        file: super::name(path),
        facts: judged.facts,
        threads: cast.tasks.len(),
        cpus: cast.cpus,
        rules: rules.names(),
        finding,
        warnings,
    })
}

/// What `--json` prints: schema instep.check/1.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "ScheduleCheck")]
pub(crate) struct Checked<'a> {
    #[schemars(extend("const" = "instep.check/1"))]
    schema: &'static str,
    files: &'a [CheckedFile],
}

/// What is told of a file.
#[derive(JsonSchema, Serialize)]
struct CheckedFile {
    file: String,
    facts: u64,
    threads: usize,
    cpus: usize,
    rules: Vec<&'static str>,
    finding: Option<ScheduleFinding>,
    warnings: Vec<String>,
}

impl CheckedFile {
    fn line(&self) -> String {
        let Self { file, facts, threads, cpus, .. } = self;
        let rules = self.rules.join(", ");
        let result =
            self.finding.as_ref().map_or("no finding".to_owned(), ScheduleFinding::to_string);
        format!(
            "{file}: {facts} facts of {threads} threads on {cpus} CPUs; rules {rules}: {result}\n"
        )
    }
}

/// The VMs and threads of a trace.
#[derive(Clone, Debug, Default)]
struct TraceThreads {
    /// When the trace begins, by its clock.
    begin: u64,
    cpus: usize,
    /// The threads, and the index of each.
    threads: BTreeMap<u32, usize>,
    /// By index: thread, VM, weight, CPUs.
    tasks: Vec<(u32, usize, u32, Mask)>,
    vms: Vec<String>,
    /// What is wrong with the trace.
    warnings: Vec<String>,
    /// Places where a switch is missing.
    missing: u64,
    /// Events between which one is missing, by their number in the trace: ascending and apart.
    gaps: Vec<(u64, u64)>,
}

/// The thread that was put on each CPU, and by which event.
#[derive(Default)]
struct Chain {
    put: BTreeMap<u32, (u32, u64)>,
    /// Where each thread was last.
    last: BTreeMap<u32, u32>,
    gaps: Vec<(u64, u64)>,
}

impl Chain {
    /// The event with this number switches `cpu` from `prev` to `next`.
    fn switch(&mut self, cpu: u32, (prev, next): (u32, u32), number: u64) {
        if let Some((put, since)) = self.put.insert(cpu, (next, number))
            && put != prev
        {
            self.gaps.push((since, number));
        }
        self.last.extend([(prev, cpu), (next, cpu)]);
    }

    /// The gaps, those that overlap as one.
    fn gaps(mut self) -> Vec<(u64, u64)> {
        // A CPU's last switch may be missing: a thread that was last seen elsewhere has left it.
        for (cpu, (tid, since)) in &self.put {
            if *tid != 0 && self.last.get(tid) != Some(cpu) {
                self.gaps.push((*since, u64::MAX));
            }
        }
        self.gaps.sort_unstable();
        let mut apart: Vec<(u64, u64)> = Vec::new();
        for (begin, end) in self.gaps {
            match apart.last_mut().filter(|last| begin < last.1) {
                Some(last) => last.1 = last.1.max(end),
                None => apart.push((begin, end)),
            }
        }
        apart
    }
}

impl TraceThreads {
    fn of(
        path: &Path,
        (args, settings): (&AnalyzeArgs, &AnalysisSettings),
        allowed: &[(String, CpuSet)],
        rules: &Rules,
    ) -> anyhow::Result<Self> {
        let mut stream = open(path)?;
        let guests = stream.header().guests.clone();
        let report = analyze(&mut *stream, settings);
        settings::ensure_begun(path, stream.tally())?;
        settings::ensure_known(&report, args, settings)?;
        let (mut cast, used) = Self::seen(&mut *open(path)?);
        let threads = cast.threads.len();
        anyhow::ensure!(
            threads <= MAX_THREADS,
            "{}: {threads} threads; --check judges {MAX_THREADS} at most",
            path.display()
        );
        cast.begin = report.host.begin_ns;
        cast.warnings = stream.tally().warnings(stream.header());
        cast.vms = report.vms.iter().map(|vm| vm.name.clone()).collect();
        for (name, _) in allowed {
            anyhow::ensure!(
                cast.vms.contains(name),
                "--allowed {name}: the trace has no such VM; it has {}",
                cast.vms.join(", ")
            );
        }
        let mut alone = report.vms.len()..;
        cast.tasks = cast
            .threads
            .keys()
            .zip(used)
            .map(|(tid, used)| (*tid, 0, 100, Mask::of(cast.cpus, used)))
            .collect();
        for (number, vm) in report.vms.iter().enumerate() {
            let told = guests.iter().find(|guest| guest.name == vm.name);
            let told = told.and_then(|guest| guest.weight);
            let weight = settings.weights.get(&vm.name).copied().or(told).unwrap_or(100);
            let own: Vec<usize> =
                vm.vcpus.iter().filter_map(|vcpu| cast.threads.get(&vcpu.tid).copied()).collect();
            let mask = cast.allowed_of(&vm.name, &own, allowed, rules.is_apart());
            for at in own {
                let task = &mut cast.tasks[at];
                (task.1, task.2) = (number, weight);
                if let Some(mask) = &mask {
                    task.3 = mask.clone();
                }
            }
        }
        let vcpus: Vec<u32> =
            report.vms.iter().flat_map(|vm| vm.vcpus.iter().map(|vcpu| vcpu.tid)).collect();
        for task in cast.tasks.iter_mut().filter(|task| !vcpus.contains(&task.0)) {
            task.1 = alone.next().unwrap_or(0);
        }
        Ok(cast)
    }

    /// The CPUs of a VM's vCPUs, if they are the same for all: as told, or for `apart` all that any
    /// of them used.
    fn allowed_of(
        &self,
        name: &str,
        own: &[usize],
        allowed: &[(String, CpuSet)],
        together: bool,
    ) -> Option<Mask> {
        if let Some((_, told)) = allowed.iter().rev().find(|(told, _)| told == name) {
            let cpus = told.iter().map(|cpu| cpu.0 as usize).filter(|cpu| *cpu < self.cpus);
            return Some(Mask::of(self.cpus, cpus));
        }
        let used = own.iter().flat_map(|at| self.tasks[*at].3.iter());
        together.then(|| Mask::of(self.cpus, used))
    }

    /// Threads, the CPUs on which each ran, and where switches are missing.
    fn seen(stream: &mut dyn EventStream) -> (Self, Vec<Vec<usize>>) {
        let mut used: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let (mut chain, mut number) = (Chain::default(), 0);
        let (mut batch, mut cpus) = (Vec::new(), stream.header().cpus.unwrap_or(1));
        let mut add = |tid: u32, cpu: u32| {
            let used = used.entry(tid).or_default();
            if !used.contains(&(cpu as usize)) {
                used.push(cpu as usize);
            }
        };
        while stream.next_batch(&mut batch) {
            for event in &batch {
                number += 1;
                match event.fact {
                    Seen::Switch { prev, next, .. } => {
                        chain.switch(event.cpu.0, (prev.0, next.0), number);
                        cpus = cpus.max(event.cpu.0 + 1);
                        add(prev.0, event.cpu.0);
                        add(next.0, event.cpu.0);
                    }
                    // Who never runs is there, too.
                    Seen::Wakeup { tid, target, .. } => add(tid.0, target.0),
                    // A loss that is told begins a schedule anew by itself.
                    Seen::Lost { .. } => chain.put.clear(),
                    _ => {}
                }
            }
        }
        used.remove(&0);
        let gaps = chain.gaps();
        let cast = Self {
            cpus: cpus.min(MAX_CPUS) as usize,
            threads: used.keys().zip(0..).map(|(tid, at)| (*tid, at)).collect(),
            missing: gaps.len() as u64,
            gaps,
            ..Self::default()
        };
        (cast, used.into_values().collect())
    }

    fn task(&self, at: usize) -> String {
        let Some((tid, vm, ..)) = self.tasks.get(at) else { return "of a CPU".to_owned() };
        match self.vms.get(*vm) {
            Some(name) => format!("{tid} ({name})"),
            None => tid.to_string(),
        }
    }
}

/// What came of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct CheckResult {
    facts: u64,
    /// How often a thread ran without a wake-up before.
    unwoken: u64,
    /// Events that were passed over, for a switch is missing near them.
    passed: u64,
    finding: Option<ScheduleFinding>,
}

/// A part of the trace without losses that is being judged.
struct Bench<'a> {
    cast: &'a TraceThreads,
    begin: u64,
    watch: RuleWatch,
    judged: CheckResult,
}

/// Walks along the gaps, event by event.
struct Gaps<'a> {
    left: &'a [(u64, u64)],
    number: u64,
}

impl Gaps<'_> {
    /// The next event comes: whether a gap ends with it, which may hold no event, and whether it is
    /// within one.
    fn step(&mut self) -> (bool, bool) {
        self.number += 1;
        let ended = self.left.iter().take_while(|(_, end)| *end <= self.number).count();
        self.left = &self.left[ended..];
        (ended > 0, self.left.first().is_some_and(|(begin, _)| *begin < self.number))
    }
}

fn judge(stream: &mut dyn EventStream, cast: &TraceThreads, rules: &Rules) -> CheckResult {
    let (mut batch, mut judged) = (Vec::new(), CheckResult::default());
    let mut bench: Option<Bench<'_>> = None;
    let mut gaps = Gaps { left: &cast.gaps, number: 0 };
    while stream.next_batch(&mut batch) {
        for event in &batch {
            let (ended, within) = gaps.step();
            judged.passed += u64::from(within);
            if ended || within || matches!(event.fact, Seen::Lost { .. }) {
                judged.finding = bench.take().and_then(|here| here.end(&mut judged).err());
            }
            let schedules = matches!(
                event.fact,
                Seen::Switch { .. } | Seen::Wakeup { .. } | Seen::Migrate { .. }
            );
            if judged.finding.is_none() && schedules && !within {
                let here = bench.get_or_insert_with(|| Bench::begin(cast, event.time.0, rules));
                judged.finding = here.see(event).err().map(|finding| here.dated(finding));
            }
            if judged.finding.is_some() {
                judged.add(bench.take().map(|here| here.judged).unwrap_or_default());
                return judged;
            }
        }
    }
    judged.finding = bench.and_then(|here| here.end(&mut judged).err());
    judged
}

impl CheckResult {
    fn add(&mut self, other: Self) {
        self.facts += other.facts;
        self.unwoken += other.unwoken;
        self.passed += other.passed;
    }
}

impl<'a> Bench<'a> {
    fn begin(cast: &'a TraceThreads, begin: u64, rules: &Rules) -> Self {
        // After all threads one for each CPU, each of a VM of its own: what runs there until the first
        // switch.
        let others = cast.tasks.len() + cast.vms.len();
        let tasks = cast.tasks.iter().map(|task| (task.1, task.2));
        let tasks: Vec<(usize, u32)> =
            tasks.chain((0..cast.cpus).map(|cpu| (others + cpu, 100))).collect();
        let checkers = rules.promises(cast.vms.len()).checkers(cast.vms.len(), true);
        let watch = RuleWatch::new(cast.cpus, &tasks, checkers);
        let mut bench = Self { cast, begin, watch, judged: CheckResult::default() };
        let allowed = cast.tasks.iter().zip(0..);
        let mut facts: Vec<FactKind> = allowed
            .map(|((.., cpus), task)| FactKind::Allowed { task, cpus: cpus.clone() })
            .collect();
        for cpu in 0..cast.cpus as u32 {
            let task = bench.unknown(cpu);
            facts.extend([FactKind::Wake { task, cpu }, FactKind::Start { task, cpu }]);
        }
        for what in facts {
            // These break no rule: all threads are blocked, and each CPU begins with one.
            let _ = bench.watch.see(&Fact { at: 0, what });
        }
        bench
    }

    fn end(mut self, judged: &mut CheckResult) -> Result<(), ScheduleFinding> {
        judged.add(std::mem::take(&mut self.judged));
        self.watch.end().map_err(|finding| self.dated(finding))
    }

    /// The finding with its time since the trace's begin instead of this part's.
    fn dated(&self, finding: ScheduleFinding) -> ScheduleFinding {
        ScheduleFinding { at: finding.at + self.begin.saturating_sub(self.cast.begin), ..finding }
    }

    /// The task that runs on a CPU of which nothing is known yet.
    fn unknown(&self, cpu: u32) -> u32 {
        self.cast.tasks.len() as u32 + cpu
    }

    fn life(&self, task: u32) -> TaskLife {
        self.watch.picture().tasks[task as usize].life
    }

    /// Shows what happened to the checkers; what cannot matter is passed over.
    fn see(&mut self, event: &Event) -> Result<(), ScheduleFinding> {
        let at = event.time.0.saturating_sub(self.begin);
        let index = |tid: u32| self.cast.threads.get(&tid).map(|at| *at as u32);
        match event.fact {
            Seen::Switch { prev, next, left } => {
                let (prev, next) = (index(prev.0), index(next.0));
                self.switch(at, event.cpu.0, (prev, left), next)
            }
            Seen::Wakeup { tid, target, .. } => match index(tid.0) {
                // A thread that still waits or runs is woken, too: that changes nothing.
                Some(task) if self.life(task) == TaskLife::Blocked => {
                    self.tell(at, FactKind::Wake { task, cpu: target.0 })
                }
                _ => Ok(()),
            },
            Seen::Migrate { tid, to, .. } => match index(tid.0) {
                Some(task) if self.life(task) == TaskLife::Waiting => {
                    self.tell(at, FactKind::Move { task, cpu: to.0 })
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn switch(
        &mut self,
        at: u64,
        cpu: u32,
        (prev, left): (Option<u32>, Left),
        next: Option<u32>,
    ) -> Result<(), ScheduleFinding> {
        let unknown = self.unknown(cpu);
        let running = self.watch.picture().cpus.get(cpu as usize).and_then(|cpu| cpu.running);
        if running == Some(unknown) {
            self.tell(at, FactKind::Stop { task: unknown, cpu, blocks: true })?;
            if let Some(task) = prev {
                self.start(at, cpu, task)?;
            }
        }
        if let Some(task) = prev {
            self.tell(at, FactKind::Stop { task, cpu, blocks: left != Left::Runnable })?;
        }
        next.map_or(Ok(()), |task| self.start(at, cpu, task))
    }

    fn start(&mut self, at: u64, cpu: u32, task: u32) -> Result<(), ScheduleFinding> {
        if self.life(task) == TaskLife::Blocked {
            let ran_before = self.watch.picture().tasks[task as usize].ran > 0;
            self.judged.unwoken += u64::from(ran_before);
            self.tell(at, FactKind::Wake { task, cpu })?;
        }
        self.tell(at, FactKind::Start { task, cpu })
    }

    fn tell(&mut self, at: u64, what: FactKind) -> Result<(), ScheduleFinding> {
        self.judged.facts += 1;
        self.watch.see(&Fact { at, what })
    }
}
