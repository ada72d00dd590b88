//! Hardware counters of a command: fetch stalls, FPU stalls, L2 and last-level misses, whose ratio
//! between two placements tells module contention from crowded caches (systems.md, 1).
//!
//! Which event of which processor counts what is in tables (`events/*.toml`), a file for each
//! microarchitecture with its source. None was at hand when this was written: the tables are not
//! tried on hardware; counting itself is tested with software events.

use crate::error::Error;
use crate::root::Root;
use instep_core::units::{Milli, Tid};
use perf_event::events::Raw;
use perf_event::{Builder, Counter};
use serde::Deserialize;
use std::io;

/// What is counted, in the order of [`CounterTable::events`].
pub const NAMES: [&str; 4] = ["fetch_stall", "fpu_stall", "l2_miss", "llc_miss"];
const TABLES: [&str; 4] = [
    include_str!("events/amd-bulldozer.toml"),
    include_str!("events/amd-zen2.toml"),
    include_str!("events/intel-skylake.toml"),
    include_str!("events/intel-skylake-server.toml"),
];
/// `PERF_TYPE_RAW` (include/uapi/linux/perf_event.h).
const RAW: u32 = 4;
/// `PERF_TYPE_HARDWARE` and `PERF_COUNT_HW_CPU_CYCLES`.
const CYCLES: (u32, u64) = (0, 0);

/// The events of one microarchitecture.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CounterTable {
    /// The microarchitecture.
    pub name: String,
    /// Where the events are documented.
    pub source: String,
    /// `vendor_id` of /proc/cpuinfo.
    vendor: String,
    /// `cpu family`.
    family: u32,
    /// Ranges of `model`, both ends included.
    models: Vec<(u32, u32)>,
    fetch_stall: Option<HardwareEvent>,
    fpu_stall: Option<HardwareEvent>,
    l2_miss: Option<HardwareEvent>,
    llc_miss: Option<HardwareEvent>,
    /// Spin hints, where they can be counted.
    pause: Option<Pause>,
}

/// The event of the spin hint PAUSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    code: u16,
    umask: u8,
    /// Cycles that one takes.
    cycles: u64,
}

impl Pause {
    /// The part of the cycles that went by in so many hints; none without cycles. What a loop does between
    /// two hints is not in it.
    pub fn part(self, hints: u64, cycles: u64) -> Option<Milli> {
        let spent = u128::from(hints) * u128::from(self.cycles) * 1000;
        let part = spent.checked_div(cycles.into())?;
        Some(Milli(u64::try_from(part).unwrap_or(1000).min(1000)))
    }
}

/// An event as the processor numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HardwareEvent {
    /// Event select; AMD's have 12 bits.
    pub code: u16,
    /// Unit mask.
    pub umask: u8,
}

/// A processor by /proc/cpuinfo.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// `vendor_id`.
    pub vendor: String,
    /// `cpu family`.
    pub family: u32,
    /// `model`.
    pub model: u32,
}

impl CounterTable {
    /// The table of this processor among all that there are.
    pub fn of(cpu: &Cpu) -> Option<Self> {
        let fits = |table: &CounterTable| {
            let model = |range: &(u32, u32)| (range.0..=range.1).contains(&cpu.model);
            table.vendor == cpu.vendor
                && table.family == cpu.family
                && table.models.iter().any(model)
        };
        TABLES.iter().filter_map(|text| parse(text).ok()).find(fits)
    }

    /// Its events in the order of [`NAMES`]; `None` for what the processor cannot count.
    pub fn events(&self) -> [Option<HardwareEvent>; 4] {
        [self.fetch_stall, self.fpu_stall, self.l2_miss, self.llc_miss]
    }
}

impl HardwareEvent {
    /// The configuration word: bits 8 to 11 of the code are in bits 32 to 35 (x86 `format/event`).
    pub fn config(self) -> u64 {
        let code = u64::from(self.code);
        code & 0xff | u64::from(self.umask) << 8 | (code >> 8 & 0xf) << 32
    }
}

/// Counters of the spin hint and of cycles of threads that run already, at user level; of guests' vCPUs,
/// what the guest does at any level, and nothing of the host. A hint that makes the guest exit
/// (pause-loop exiting) is not counted.
pub struct PauseCounters {
    pause: Pause,
    threads: Vec<Counters>,
}

impl std::fmt::Debug for PauseCounters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PauseCounters {{ {} threads }}", self.threads.len())
    }
}

impl PauseCounters {
    /// Counts from now on, of threads that are `guests`' vCPUs or not; `None` where the table has no such
    /// event. Threads that have ended are left out.
    ///
    /// # Errors
    /// The kernel refuses the events.
    pub fn of_threads(
        tids: &[Tid],
        guests: bool,
        table: &CounterTable,
    ) -> Result<Option<Self>, Error> {
        let Some(pause) = table.pause else { return Ok(None) };
        let event = HardwareEvent { code: pause.code, umask: pause.umask };
        let words = [Some((RAW, event.config())), Some(CYCLES)];
        let of = if guests { Of::Guest } else { Of::Thread };
        let open = |tid: &Tid| match Counters::open(tid.0, &words, of) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => None,
            opened => Some(opened),
        };
        let threads: io::Result<_> = tids.iter().filter_map(open).collect();
        let threads = threads.map_err(|error| Error::system("cannot count spin hints", error))?;
        Ok(Some(Self { pause, threads }))
    }

    /// The part of the threads' cycles that went by in spin hints since.
    pub fn part(&mut self) -> Option<Milli> {
        let (mut hints, mut cycles) = (0u64, 0u64);
        for thread in &mut self.threads {
            if let [Some(more_hints), Some(more_cycles)] = thread.read()[..] {
                hints = hints.saturating_add(more_hints);
                cycles = cycles.saturating_add(more_cycles);
            }
        }
        self.pause.part(hints, cycles)
    }
}

/// Reads a table.
///
/// # Errors
/// What is wrong with it.
pub fn parse(text: &str) -> Result<CounterTable, String> {
    toml::from_str(text).map_err(|error| error.to_string())
}

/// The first processor of /proc/cpuinfo.
pub fn cpu(cpuinfo: &str) -> Cpu {
    let value = |key: &str| {
        cpuinfo.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then(|| value.trim().to_owned())
        })
    };
    let number = |key| value(key).and_then(|value| value.parse().ok()).unwrap_or(0);
    let vendor = value("vendor_id").unwrap_or_default();
    Cpu { vendor, family: number("cpu family"), model: number("model") }
}

/// Which table counts on this machine.
///
/// # Errors
/// Why none does: no counters, or no table for this processor.
pub fn choose(root: &Root) -> Result<CounterTable, Error> {
    let next = "places are told apart by time alone".to_owned();
    if root.read_opt("sys/bus/event_source/devices/cpu/type")?.is_none() {
        let what = "this machine has no hardware counters (virtual machines often hide them)";
        return Err(Error::Unusable { what: what.to_owned(), next });
    }
    let cpu = cpu(&root.read("proc/cpuinfo")?);
    CounterTable::of(&cpu).ok_or_else(|| Error::Unusable {
        what: format!(
            "no event table for {} family {:#x} model {:#x}",
            cpu.vendor, cpu.family, cpu.model
        ),
        next,
    })
}

/// What counters are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// A process from its exec on, and all that is started then; user level.
    Command,
    /// One thread, from now on; user level.
    Thread,
    /// One vCPU thread, from now on: what its guest does at any level.
    Guest,
}

/// Counters of a command that has not begun yet.
pub struct Counters {
    counters: Vec<Option<Counter>>,
}

impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Counters {{ {} }}", self.counters.iter().flatten().count())
    }
}

impl Counters {
    /// Prepares to count the events of `table` in process `pid` from its exec on, and in all that
    /// it starts.
    ///
    /// # Errors
    /// The kernel refuses the events.
    pub fn of_command(pid: u32, table: &CounterTable) -> Result<Self, Error> {
        let words = table.events().map(|event| event.map(|event| (RAW, event.config())));
        Self::open(pid, &words, Of::Command)
            .map_err(|error| Error::system("cannot count events", error))
    }

    fn open(pid: u32, words: &[Option<(u32, u64)>], of: Of) -> io::Result<Self> {
        let pid =
            libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        let counter = |(kind, config): (u32, u64)| {
            let mut builder = Builder::new(Raw::new(config));
            builder.attrs_mut().type_ = kind;
            builder.observe_pid(pid).any_cpu().inherit(of == Of::Command);
            if of == Of::Guest {
                builder.include_kernel().exclude_host(true);
            }
            match of {
                Of::Command => builder.enable_on_exec(true).build(),
                Of::Thread | Of::Guest => builder.enabled(true).build(),
            }
        };
        let counters: io::Result<_> =
            words.iter().map(|word| word.map(counter).transpose()).collect();
        Ok(Self { counters: counters? })
    }

    /// What was counted, in the order of [`NAMES`], scaled up where counters took turns.
    pub fn read(&mut self) -> Vec<Option<u64>> {
        let read = |counter: &mut Option<Counter>| {
            let read = counter.as_mut()?.read_count_and_time().ok()?;
            let scaled = u128::from(read.count) * u128::from(read.time_enabled);
            u64::try_from(scaled.checked_div(read.time_running.into())?).ok()
        };
        self.counters.iter_mut().map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    #[test]
    fn every_table_is_read_and_names_its_source() {
        for text in TABLES {
            let table = parse(text).unwrap();
            assert!(table.source.len() > 20 && table.events().iter().flatten().count() >= 3);
        }
        let unknown = format!("{}\nspeed = 3\n", TABLES[0]);
        assert!(parse(&unknown).unwrap_err().contains("speed"));
    }

    #[test]
    fn the_processors_of_the_published_experiments_have_their_tables() {
        let of = |vendor: &str, family, model| {
            let cpu = Cpu { vendor: vendor.to_owned(), family, model };
            CounterTable::of(&cpu).map(|table| table.name)
        };
        assert!(of("AuthenticAMD", 0x15, 2).unwrap().contains("Piledriver"), "Opteron 6376");
        assert_eq!(of("GenuineIntel", 6, 0x55).unwrap(), "Intel Skylake server");
        assert_eq!(of("GenuineIntel", 6, 0x5e).unwrap(), "Intel Skylake");
        assert_eq!(of("GenuineIntel", 6, 1), None);
    }

    #[test]
    fn spin_hints_are_a_part_of_the_cycles() {
        let pause = |text: &str| parse(text).unwrap().pause;
        let client = pause(TABLES[2]).unwrap();
        assert_eq!((client.code, client.umask, client.cycles), (0xcc, 0x40, 140));
        assert_eq!(pause(TABLES[3]).map(|pause| pause.cycles), Some(40));
        assert_eq!(pause(TABLES[1]), None);
        assert_eq!(client.part(1_000_000, 280_000_000), Some(Milli(500)));
        assert_eq!(client.part(0, 1_000), Some(Milli(0)));
        assert_eq!(client.part(3_000_000, 280_000_000), Some(Milli(1000)), "no more than all");
        assert_eq!((client.part(5, 0), client.part(u64::MAX, 1)), (None, Some(Milli(1000))));
    }

    #[test]
    fn zen_2_has_what_came_from_memory_for_misses_of_the_last_level() {
        let events = parse(TABLES[1]).unwrap().events();
        assert_eq!(events[3], Some(HardwareEvent { code: 0x43, umask: 0x48 }));
    }

    #[test]
    fn codes_of_twelve_bits_are_split() {
        assert_eq!(HardwareEvent { code: 0x1d7, umask: 0x12 }.config(), 0x1_0000_12d7);
    }

    #[test]
    fn cpuinfo_tells_the_processor() {
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n\
                    model name\t: x\n";
        let expected = Cpu { vendor: "GenuineIntel".to_owned(), family: 6, model: 85 };
        assert_eq!(cpu(text), expected);
        assert_eq!(cpu("model : fish"), Cpu::default());
    }

    #[test]
    fn a_machine_without_counters_is_said_to_have_none() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let error = choose(&Root::at(dir.path())).unwrap_err().to_string();
        assert!(error.contains("no hardware counters"), "{error}");
    }

    #[test]
    fn what_a_command_and_its_children_do_is_counted() {
        // PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK: nanoseconds of CPU time.
        let mut command = Command::new("sh");
        command.args(["-c", "kill -STOP $$; exec sh -c 'sh -c \"i=0; while [ \\$i -lt 20000 ]; do i=\\$((i+1)); done\"; :'"]);
        let mut child = command.spawn().unwrap();
        let opened = Counters::open(child.id(), &[Some((1, 1)), None], Of::Command);
        // SAFETY: a signal to our own child, which is not reaped yet.
        unsafe { libc::kill(child.id().cast_signed(), libc::SIGCONT) };
        let mut counters = match opened {
            Ok(counters) => counters,
            Err(error) => {
                child.wait().unwrap();
                return instep_madehost::skip::note(&format!("perf events: {error}"));
            }
        };
        let begin = std::time::Instant::now();
        while child.try_wait().unwrap().is_none() {
            // SAFETY: as above; it may have stopped itself only now.
            unsafe { libc::kill(child.id().cast_signed(), libc::SIGCONT) };
            assert!(begin.elapsed().as_secs() < 60);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let counts = counters.read();
        assert!(counts[0].is_some_and(|ns| ns > 1_000_000), "{counts:?}");
        assert_eq!(counts[1], None);
    }

    proptest! {
        #[test]
        fn any_cpuinfo_is_read_without_panic(text: String) {
            let _ = (cpu(&text), parse(&text));
        }
    }
}
