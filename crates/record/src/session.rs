//! One recording from its beginning to its end, bounded in time and size.

use crate::bpf::Bpf;
use crate::error::Error;
use crate::proc_facts::{self, Thread};
use crate::silent::Silent;
use crate::source::{Choice, Source, Wanted};
use crate::tracefs::Tracefs;
use instep_core::units::{CpuId, Nanos, Tid};
use instep_host::discover::{ScanOptions, Scanner, VmFacts};
use instep_host::{Root, system, topology};
use instep_trace::event::{Event, Fact};
use instep_trace::rec::{End, Head, Lost, VcpuHead, VmHead, Writer};
use instep_trace::topology::TopologyDocument;
use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;

/// How often the source is drained. The rings hold far more than comes in that time.
const ROUND: Duration = Duration::from_millis(100);
/// A killed recorder loses no more than the blocks of so many rounds.
const FLUSH_EVERY: u32 = 10;

/// What shall be recorded.
#[derive(Clone, Debug)]
pub struct RecordOptions {
    /// For how long; until stopped when not given.
    pub duration: Option<Duration>,
    /// The recording ends when it is as large, in bytes; by a block or two it may be larger.
    pub max_bytes: u64,
    /// Names of VMs; all when empty.
    pub vms: Vec<String>,
    /// Where events come from.
    pub source: Choice,
    /// Bytes of buffers in the kernel; by the number of CPUs when not given.
    pub buffer: Option<u64>,
    /// Whether blocks are compressed.
    pub compress: bool,
    /// What the head says of who records.
    pub command: String,
    /// Instep's version, for the head.
    pub version: String,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Since the beginning.
    pub elapsed: Duration,
    /// Events written.
    pub events: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// What was recorded.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Where events came from.
    pub source: String,
    /// Why not from BPF, when that was tried first.
    pub why_not_bpf: Option<String>,
    /// Why it ended: `time`, `size` or `stopped`.
    pub ended: String,
    /// How long it recorded.
    pub duration: Duration,
    /// Events written, facts of threads included.
    pub events: u64,
    /// Bytes written.
    pub bytes: u64,
    /// What was lost, by place.
    pub lost: Vec<Lost>,
    /// CPU time of this process from beginning to end.
    pub cost: Duration,
    /// CPU time of its programs in the kernel, where that is counted.
    pub kernel_cost: Option<Duration>,
    /// Why that is not counted, where it is not.
    pub why_no_kernel_cost: Option<String>,
    /// VMs at the beginning: name, process, number of vCPUs.
    pub vms: Vec<(String, u32, usize)>,
    /// What was odd.
    pub warnings: Vec<String>,
}

impl Summary {
    /// Events lost at all places.
    pub fn lost_events(&self) -> u64 {
        self.lost.iter().map(|lost| lost.events).sum()
    }
}

/// Records into `out`. `wait` waits for the time it is given, or less, and says whether to stop.
///
/// # Errors
/// No VM of a wanted name, no source of events, or the recording cannot be written.
pub fn record<W: Write>(
    out: W,
    options: &RecordOptions,
    wait: &mut dyn FnMut(Duration) -> bool,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Summary, Error> {
    let root = Root::live();
    let (host, scanner) = RecordedHost::read(&root, &options.vms)?;
    let wanted = Wanted {
        buffer: options.buffer.unwrap_or_else(|| buffer_for(host.cpus.len())),
        cpus: host.cpus.clone(),
        only: match options.vms.as_slice() {
            [] => Vec::new(),
            names => host.wanted(names).map(|vm| vm.pid).collect(),
        },
    };
    let (source, why_not_bpf) = start_source(options.source, &wanted)?;
    let mut session = Session::begin(out, source, (root, scanner), &host, options)?;
    let ended = session.run(options, wait, progress)?;
    let mut summary = session.finish(ended)?;
    summary.why_not_bpf = why_not_bpf;
    let told = |vm: &VmFacts| (vm.name.clone(), vm.pid, vm.vcpus.len());
    summary.vms = host.wanted(&options.vms).map(told).collect();
    Ok(summary)
}

/// A megabyte a CPU, at least sixteen: more than two seconds of 100,000 events a second and CPU.
fn buffer_for(cpus: usize) -> u64 {
    (cpus as u64).clamp(16, 256) << 20
}

/// The host at the beginning.
struct RecordedHost {
    cpus: Vec<CpuId>,
    topology: TopologyDocument,
    vms: Vec<VmFacts>,
    warnings: Vec<String>,
}

impl RecordedHost {
    /// The host, and the scanner that looked at it.
    fn read(root: &Root, names: &[String]) -> Result<(Self, Scanner), Error> {
        let topology = topology::read(root)?;
        let mut options = ScanOptions::once();
        options.memory.enabled = false;
        let mut scanner = Scanner::new(root.clone(), options);
        let scan = scanner.scan()?;
        let mut warnings = topology.warnings().to_vec();
        warnings.extend(scan.warnings);
        let known: Vec<&str> = scan.vms.iter().map(|vm| vm.name.as_str()).collect();
        if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
            let known = match known.as_slice() {
                [] => "no VM runs whose vCPUs are known; see `instep status`".to_owned(),
                known => format!("there are: {}", known.join(", ")),
            };
            return Err(Error::NoVm { name: name.clone(), known });
        }
        let host = RecordedHost {
            cpus: topology.cpus().iter().map(|cpu| cpu.id).collect(),
            topology: TopologyDocument::of(&topology),
            vms: scan.vms,
            warnings,
        };
        Ok((host, scanner))
    }

    /// The VMs of these names; all when there are none.
    fn wanted<'a>(&'a self, names: &'a [String]) -> impl Iterator<Item = &'a VmFacts> {
        self.vms.iter().filter(|vm| names.is_empty() || names.contains(&vm.name))
    }

    fn head(&self, root: &Root, source: &dyn Source, options: &RecordOptions) -> Head {
        let kernel = |file: &str| {
            let text = root.read(format!("proc/sys/kernel/{file}")).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let vcpus = |vm: &VmFacts| {
            vm.vcpus.iter().map(|vcpu| VcpuHead { index: vcpu.index, tid: vcpu.tid.0 }).collect()
        };
        let vm = |vm: &VmFacts| VmHead {
            name: vm.name.clone(),
            pid: vm.pid,
            vcpus: vcpus(vm),
            weight: Some(vm.weight),
        };
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let mut warnings = self.warnings.clone();
        warnings.extend(source.warnings());
        Head {
            hostname: kernel("hostname"),
            release: kernel("osrelease"),
            command: Some(options.command.clone()),
            instep: Some(options.version.clone()),
            source: Some(source.name().to_owned()),
            clock: Some("monotonic".to_owned()),
            started_unix_s: now.ok().map(|now| now.as_secs()),
            cpus: u32::try_from(self.cpus.len()).ok(),
            topology: Some(self.topology.clone()),
            vms: self.vms.iter().map(vm).collect(),
            only: options.vms.clone(),
            warnings,
        }
    }
}

struct Session<W> {
    root: Root,
    source: Box<dyn Source>,
    writer: Writer<W>,
    events: Vec<Event>,
    begin: Nanos,
    cost_before: Duration,
    /// The kernel's counters, read after the first round: what the kernel adds to them later began
    /// when events were recorded already.
    before: Option<(Vec<proc_facts::Reading>, proc_facts::Quotas)>,
    scanner: Scanner,
    tids: Vec<u32>,
    silent: Silent,
    seen: BTreeSet<Tid>,
    warnings: Vec<String>,
}

impl<W: Write> Session<W> {
    /// The source runs already, so that no thread is born unseen while /proc is read.
    fn begin(
        out: W,
        source: Box<dyn Source>,
        (root, scanner): (Root, Scanner),
        host: &RecordedHost,
        options: &RecordOptions,
    ) -> Result<Self, Error> {
        let begin = system::clocks().0;
        let head = host.head(&root, source.as_ref(), options);
        let writer = Writer::begin(out, &head, options.compress).map_err(Error::Write)?;
        let tids: Vec<u32> =
            host.vms.iter().flat_map(|vm| vm.vcpus.iter().map(|vcpu| vcpu.tid.0)).collect();
        let mut session = Session {
            before: None,
            scanner,
            root,
            source,
            writer,
            events: Vec::new(),
            begin,
            cost_before: cpu_time(),
            silent: Silent::new(&tids),
            tids,
            seen: BTreeSet::new(),
            warnings: head.warnings,
        };
        session.threads(begin)?;
        Ok(session)
    }

    /// Writes names and processes of the threads that were not seen before.
    fn threads(&mut self, time: Nanos) -> Result<(), Error> {
        for Thread { tid, tgid, name } in proc_facts::threads(&self.root) {
            if self.seen.insert(tid) {
                for fact in [Fact::Member { tid, tgid }, Fact::Named { tid, name }] {
                    let event = Event { time, cpu: CpuId(0), fact };
                    self.writer.event(&event).map_err(Error::Write)?;
                }
            }
        }
        Ok(())
    }

    /// Drains and writes until it is time to end; says why it ended. The time that was asked for begins here:
    /// on a slow host the names of all threads alone may take a second.
    fn run(
        &mut self,
        options: &RecordOptions,
        wait: &mut dyn FnMut(Duration) -> bool,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<&'static str, Error> {
        let start = system::clocks().0;
        for round in 1u32.. {
            let elapsed = since(start);
            let left = options.duration.map(|all| all.saturating_sub(elapsed));
            if left == Some(Duration::ZERO) {
                return Ok("time");
            }
            if wait(left.unwrap_or(ROUND).min(ROUND)) {
                return Ok("stopped");
            }
            self.drain(options.max_bytes)?;
            if self.before.is_none() {
                let quotas = proc_facts::quotas(&mut self.scanner);
                self.before = Some((proc_facts::readings(&self.root, &self.tids), quotas));
                self.silent.visit(&self.root);
            }
            if round.is_multiple_of(FLUSH_EVERY) {
                self.writer.flush().map_err(Error::Write)?;
            }
            let (events, bytes) = (self.writer.records(), self.writer.size());
            progress(&Progress { elapsed: self.elapsed(), events, bytes });
            if bytes >= options.max_bytes {
                return Ok("size");
            }
        }
        Ok("time")
    }

    /// Writes what has come, one round.
    fn drain(&mut self, max_bytes: u64) -> Result<(), Error> {
        loop {
            self.events.clear();
            let is_more = self.source.drain(&mut self.events)?;
            for event in &self.events {
                self.silent.hear(event);
                self.writer.event(event).map_err(Error::Write)?;
            }
            // More than can be written must not keep it here for ever.
            if !is_more || self.writer.size() >= max_bytes {
                self.writer.round();
                return Ok(());
            }
        }
    }

    fn elapsed(&self) -> Duration {
        since(self.begin)
    }

    fn finish(mut self, ended: &str) -> Result<Summary, Error> {
        let after = proc_facts::readings(&self.root, &self.tids);
        let quotas = proc_facts::quotas(&mut self.scanner);
        self.source.stop();
        let duration = self.elapsed();
        // What the rings still hold is bounded by their size.
        self.drain(u64::MAX)?;
        if !self.source.tells_processes() {
            self.threads(system::clocks().0)?;
        }
        let lost = self.source.lost();
        let (kernel_cost, why_no_kernel_cost) = match self.source.kernel_cost_ns() {
            Ok(cost) => (Some(cost), None),
            Err(why) => (None, Some(why)),
        };
        let cost = cpu_time().saturating_sub(self.cost_before);
        let before = self.before.unwrap_or_default();
        let end = End {
            ended: ended.to_owned(),
            duration_ns: nanos(duration),
            records: 0,
            lost: lost.clone(),
            cost_ns: Some(nanos(cost)),
            kernel_cost_ns: kernel_cost,
            counters: proc_facts::counters(&before.0, &after),
            throttled: proc_facts::throttled(&before.1, quotas),
        };
        self.writer.flush().map_err(Error::Write)?;
        let (events, bytes) = (self.writer.records(), self.writer.size());
        self.writer.finish(&end).map_err(Error::Write)?;
        Ok(Summary {
            source: self.source.name().to_owned(),
            ended: ended.to_owned(),
            duration,
            events,
            bytes,
            lost,
            cost,
            kernel_cost: kernel_cost.map(Duration::from_nanos),
            why_no_kernel_cost,
            warnings: self.warnings,
            ..Summary::default()
        })
    }
}

fn since(begin: Nanos) -> Duration {
    Duration::from_nanos(system::clocks().0.since(begin).0)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// CPU time of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Starts the source that is wanted; what was tried first and failed is told.
fn start_source(
    choice: Choice,
    wanted: &Wanted,
) -> Result<(Box<dyn Source>, Option<String>), Error> {
    let bpf = match choice {
        Choice::Tracefs => None,
        Choice::Auto | Choice::Bpf => Some(Bpf::start(wanted)),
    };
    let why = match bpf {
        Some(Ok(bpf)) => return Ok((Box::new(bpf), None)),
        Some(Err(why)) if choice == Choice::Bpf => {
            return Err(Error::NoSource(format!("BPF cannot be used: {why}")));
        }
        Some(Err(why)) => Some(why),
        None => None,
    };
    match Tracefs::start(wanted) {
        Ok(tracefs) => Ok((Box::new(tracefs), why)),
        Err(tracefs) => Err(Error::NoSource(match why {
            Some(bpf) => format!(
                "nothing gives scheduling events: BPF: {bpf}; tracefs: {tracefs}; run it as root"
            ),
            None => format!("tracefs cannot be used: {tracefs}"),
        })),
    }
}
