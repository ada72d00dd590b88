//! Which event of this CPU samples memory accesses, read from sysfs: load latency by PEBS on Intel,
//! IBS op on AMD.
//!
//! The kernel describes events as `event=0xcd,umask=0x1,ldlat=3` and says in `format/` which bits
//! of which configuration word each term means. It does not know whether the event can really be
//! opened: a virtual machine may list events it does not have.

use crate::error::Error;
use crate::root::Root;
use std::path::PathBuf;

const DEVICES: &str = "sys/bus/event_source/devices";
/// Loads that took at least this many cycles: cache misses to memory, near or far, are slower on
/// every x86 server (perf-mem's own default).
const LOAD_LATENCY: u64 = 30;

/// The words of an event for `perf_event_open`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventWords {
    /// `type`: the number of the PMU.
    pub pmu: u32,
    /// `config`, `config1`, `config2`.
    pub config: [u64; 3],
}

/// How the CPU samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Intel: precise event-based sampling of slow loads.
    Pebs,
    /// AMD: instruction-based sampling of operations, every CPU as a whole.
    Ibs,
    /// Any machine: first touches of pages. Says nothing of speed; proves the machinery.
    PageFaults,
}

/// A memory sampling event of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// How it samples.
    pub method: Method,
    /// The event.
    pub event: EventWords,
    /// An event that must lead its group (Intel since Alder Lake and Sapphire Rapids).
    pub leader: Option<EventWords>,
    /// Events (IBS: cycles) between two samples: some thousand samples a second and CPU at most.
    pub period: u64,
}

impl Source {
    /// The page-fault event that every Linux has.
    #[must_use]
    pub fn page_faults() -> Self {
        // PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS.
        let event = EventWords { pmu: 1, config: [2, 0, 0] };
        Self { method: Method::PageFaults, event, leader: None, period: 1 }
    }

    /// Whether accesses of KVM guests are seen, see [`crate::apply::sampling`]: by no source yet.
    #[must_use]
    pub fn sees_kvm_guests(&self) -> bool {
        false
    }
}

/// Chooses the event of the host under `root`.
///
/// # Errors
/// `no memory sampling on this CPU`, with what was looked for; a PMU description that cannot be
/// understood.
pub fn choose(root: &Root) -> Result<Source, Error> {
    // `cpu_core` are the P-cores of a hybrid CPU.
    for pmu in ["cpu", "cpu_core"] {
        if let Some(mut event) = read_event(root, pmu, "mem-loads")? {
            if let Some(bits) = read_format(root, pmu, "ldlat")? {
                bits.put(LOAD_LATENCY, &mut event.config);
            }
            let leader = read_event(root, pmu, "mem-loads-aux")?;
            return Ok(Source { method: Method::Pebs, event, leader, period: 2003 });
        }
    }
    if let Some(pmu) = read_type(root, "ibs_op")? {
        let event = EventWords { pmu, config: [0; 3] };
        return Ok(Source { method: Method::Ibs, event, leader: None, period: 0x4_0000 });
    }
    Err(Error::Unusable {
        what: format!(
            "no memory sampling on this CPU: neither the event mem-loads (Intel PEBS) nor the PMU \
             ibs_op (AMD IBS) is in {}",
            root.join(DEVICES).display()
        ),
        next:
            "memory comes home in address order instead; in a virtual machine, ask for a virtual \
               PMU"
            .into(),
    })
}

fn read_type(root: &Root, pmu: &str) -> Result<Option<u32>, Error> {
    let relative = format!("{DEVICES}/{pmu}/type");
    let Some(text) = root.read_opt(&relative)? else { return Ok(None) };
    let number = text.trim().parse();
    number.map(Some).map_err(|_| Error::parse(&root.join(&relative), 1, &text, "a PMU number"))
}

fn read_event(root: &Root, pmu: &str, name: &str) -> Result<Option<EventWords>, Error> {
    let relative = format!("{DEVICES}/{pmu}/events/{name}");
    let Some(text) = root.read_opt(&relative)? else { return Ok(None) };
    let bad = |value: &str| {
        Error::parse(
            &root.join(&relative),
            1,
            value,
            "a list of TERM=NUMBER the PMU has formats for",
        )
    };
    let Some(number) = read_type(root, pmu)? else { return Ok(None) };
    let mut event = EventWords { pmu: number, ..EventWords::default() };
    for (term, value) in parse_terms(&text).map_err(|term| bad(&term))? {
        let bits = read_format(root, pmu, &term)?.ok_or_else(|| bad(&term))?;
        bits.put(value, &mut event.config);
    }
    Ok(Some(event))
}

fn read_format(root: &Root, pmu: &str, term: &str) -> Result<Option<Bits>, Error> {
    let plain = term.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if !plain {
        return Ok(None);
    }
    let relative: PathBuf = [DEVICES, pmu, "format", term].iter().collect();
    let Some(text) = root.read_opt(&relative)? else { return Ok(None) };
    let bits = Bits::parse(&text);
    bits.map(Some).ok_or_else(|| {
        Error::parse(&root.join(&relative), 1, text.trim(), "bits such as config:0-7,32-35")
    })
}

/// `event=0xcd,umask=0x1,ldlat=3` as pairs; a term without a value is 1.
///
/// # Errors
/// The first term that is no `NAME` or `NAME=NUMBER`.
pub fn parse_terms(text: &str) -> Result<Vec<(String, u64)>, String> {
    let terms = text.trim().split(',').filter(|term| !term.is_empty());
    terms
        .map(|term| {
            let (name, value) = term.split_once('=').unwrap_or((term, "1"));
            let number = match value.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16),
                None => value.parse(),
            };
            number.map(|number| (name.to_owned(), number)).map_err(|_| term.to_owned())
        })
        .collect()
}

/// Which bits of which configuration word a term fills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits {
    word: usize,
    /// Bit ranges, low and high included, filled from the value's lowest bit on.
    ranges: Vec<(u32, u32)>,
}

impl Bits {
    /// Reads a `format` file: `config1:0-15`, `config:0-7,32-35`, `config:19`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (word, ranges) = text.trim().split_once(':')?;
        let word = ["config", "config1", "config2"].iter().position(|name| *name == word)?;
        let range = |part: &str| {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let (low, high) = (low.parse().ok()?, high.parse().ok()?);
            (low <= high && high < 64).then_some((low, high))
        };
        let ranges = ranges.split(',').map(range).collect::<Option<Vec<(u32, u32)>>>()?;
        (ranges.len() <= 64).then_some(Self { word, ranges })
    }

    fn put(&self, value: u64, config: &mut [u64; 3]) {
        let mut rest = value;
        for (low, high) in &self.ranges {
            let width = high - low + 1;
            let mask = if width >= 64 { u64::MAX } else { (1 << width) - 1 };
            config[self.word] &= !(mask << low);
            config[self.word] |= (rest & mask) << low;
            rest = rest.checked_shr(width).unwrap_or(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn pmu(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(DEVICES).join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = Root::at(dir.path());
        (dir, root)
    }

    const INTEL: [(&str, &str); 6] = [
        ("cpu/type", "4\n"),
        ("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3\n"),
        ("cpu/format/event", "config:0-7\n"),
        ("cpu/format/umask", "config:8-15\n"),
        ("cpu/format/ldlat", "config1:0-15\n"),
        ("cpu/format/edge", "config:18\n"),
    ];

    #[test]
    fn intel_samples_slow_loads_by_pebs() {
        let (_dir, root) = pmu(&INTEL);
        let source = choose(&root).unwrap();
        assert_eq!(source.event, EventWords { pmu: 4, config: [0x1cd, LOAD_LATENCY, 0] });
        assert_eq!((source.method, source.leader), (Method::Pebs, None));
    }

    #[test]
    fn newer_intel_events_get_their_leader() {
        let mut files = INTEL.to_vec();
        files.push(("cpu/events/mem-loads-aux", "event=0x03,umask=0x82"));
        let (_dir, root) = pmu(&files);
        let leader = choose(&root).unwrap().leader.unwrap();
        assert_eq!(leader.config, [0x8203, 0, 0]);
    }

    #[test]
    fn amd_samples_by_ibs() {
        let (_dir, root) = pmu(&[("cpu/type", "4\n"), ("ibs_op/type", "11\n")]);
        let source = choose(&root).unwrap();
        assert_eq!((source.method, source.event.pmu), (Method::Ibs, 11));
    }

    #[test]
    fn a_host_without_either_says_so() {
        let (_dir, root) = pmu(&[("software/type", "1\n")]);
        let text = choose(&root).unwrap_err().to_string();
        assert!(text.starts_with("no memory sampling on this CPU: "), "{text}");
    }

    #[test]
    fn damaged_descriptions_name_the_file() {
        for (name, text) in [
            ("cpu/events/mem-loads", "event=fish"),
            ("cpu/events/mem-loads", "event=0xcd,../../secret=1"),
            ("cpu/events/mem-loads", "unknown=1"),
            ("cpu/type", "x"),
            ("cpu/format/umask", "config:8-99"),
            ("cpu/format/umask", "config9:8"),
            ("cpu/format/umask", ""),
        ] {
            let files = INTEL.map(|(file, good)| (file, if file == name { text } else { good }));
            let (_dir, root) = pmu(&files);
            let told = choose(&root).unwrap_err().to_string();
            assert!(told.contains(name) || told.contains("mem-loads"), "{name} {text}: {told}");
        }
    }

    #[test]
    fn a_value_is_spread_over_split_bits() {
        let mut config = [0; 3];
        Bits::parse("config:0-7,32-35").unwrap().put(0xabc, &mut config);
        assert_eq!(config[0], 0xa_0000_00bc);
        Bits::parse("config2:0-63").unwrap().put(u64::MAX, &mut config);
        assert_eq!(config[2], u64::MAX);
    }
}
