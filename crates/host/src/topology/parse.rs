//! The formats of sysfs and /proc that describe a topology, each a pure function of the text.
//!
//! An error says what should have stood there; the caller knows the file and the text.

use instep_core::idset::{CpuSet, IdSet, MAX_ID};
use instep_core::units::{Bytes, CpuId, Id};

/// Without surrounding white space and NUL bytes: some kernels end an attribute with `\n\0`
/// (node/online of 2.6.3x, the CPU masks of 5.15-rc1).
fn trimmed(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || c == '\0')
}

/// The kernel's list format, `0-3,8`, ascending as the kernel writes it. Surrounding white space
/// is allowed, nothing at all is the empty set.
///
/// # Errors
/// Anything else, or a number above [`MAX_ID`].
pub fn list<T: Id>(text: &str) -> Result<IdSet<T>, &'static str> {
    const EXPECTED: &str = "an ascending list like 0-3,8";
    let mut from = 0u64;
    let text = trimmed(text);
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let low: u32 = low.parse().map_err(|_| EXPECTED)?;
        let high: u32 = high.parse().map_err(|_| EXPECTED)?;
        if u64::from(low) < from || low > high {
            return Err(EXPECTED);
        }
        from = u64::from(high) + 1;
    }
    IdSet::parse_list(text).map_err(|_| EXPECTED)
}

/// The kernel's mask format: 32-bit words in hexadecimal, the highest first, joined by commas.
/// The first word may have fewer digits.
///
/// # Errors
/// Anything else, or a bit above [`MAX_ID`].
pub fn mask(text: &str) -> Result<CpuSet, &'static str> {
    const EXPECTED: &str = "a mask like 00000000,0000000f";
    let mut cpus = CpuSet::new();
    for (word, digits) in (0u32..).zip(trimmed(text).rsplit(',')) {
        if digits.is_empty() || digits.len() > 8 || digits.starts_with('+') {
            return Err(EXPECTED);
        }
        let bits = u32::from_str_radix(digits, 16).map_err(|_| EXPECTED)?;
        if bits != 0 && word > MAX_ID / 32 {
            return Err(EXPECTED);
        }
        let set = (0..32).filter(|bit| bits & (1 << bit) != 0);
        cpus.extend(set.map(|bit| CpuId(word * 32 + bit)));
    }
    Ok(cpus)
}

/// One decimal number, possibly negative (the kernel's -1 is "not known").
///
/// # Errors
/// Anything else.
pub fn number(text: &str) -> Result<i64, &'static str> {
    trimmed(text).parse().map_err(|_| "a number")
}

/// `cpuN/online`: `1` or `0`.
///
/// # Errors
/// Anything else.
pub fn flag(text: &str) -> Result<bool, &'static str> {
    match trimmed(text) {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err("0 or 1"),
    }
}

/// `cpuN/cache/indexK/type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheType {
    /// Data only.
    Data,
    /// Instructions only.
    Instruction,
    /// Both.
    Unified,
}

/// `cpuN/cache/indexK/type`.
///
/// # Errors
/// A word that the kernel does not write (drivers/base/cacheinfo.c, 6.18).
pub fn cache_type(text: &str) -> Result<CacheType, &'static str> {
    match trimmed(text) {
        "Data" => Ok(CacheType::Data),
        "Instruction" => Ok(CacheType::Instruction),
        "Unified" => Ok(CacheType::Unified),
        _ => Err("Data, Instruction or Unified"),
    }
}

/// Installed memory of a node or a host: the `MemTotal:` line of `node/nodeN/meminfo`
/// (`Node 0 MemTotal: 16772456 kB`) or of `/proc/meminfo`. The kernel's kB are KiB.
///
/// # Errors
/// No such line, or no number of kB in it.
pub fn memory_total(text: &str) -> Result<Bytes, &'static str> {
    const EXPECTED: &str = "meminfo with a line `MemTotal: N kB`";
    let value = text.lines().find_map(|line| line.split_once("MemTotal:")).ok_or(EXPECTED)?.1;
    let kib: u64 =
        value.trim().strip_suffix("kB").ok_or(EXPECTED)?.trim().parse().map_err(|_| EXPECTED)?;
    kib.checked_mul(1024).map(Bytes).ok_or(EXPECTED)
}

/// `node/nodeN/distance`: numbers separated by white space.
///
/// # Errors
/// Something that is no number, or more numbers than there can be nodes.
pub fn distances(text: &str) -> Result<Vec<u32>, &'static str> {
    const EXPECTED: &str = "distances like 10 21 21";
    let numbers = text.split_whitespace().take(MAX_ID as usize + 1).map(str::parse);
    let numbers: Vec<u32> = numbers.collect::<Result<_, _>>().map_err(|_| EXPECTED)?;
    if numbers.len() > MAX_ID as usize { Err(EXPECTED) } else { Ok(numbers) }
}

/// What `/proc/cpuinfo` of x86 says of one CPU's place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuinfoEntry {
    /// `processor`: the kernel's CPU number.
    pub processor: u32,
    /// `physical id`: the package.
    pub package: Option<u32>,
    /// `core id`: unique in the package, or on some AMD processors only in a node of it.
    pub core: Option<u32>,
    /// `siblings`: CPUs of the package.
    pub siblings: Option<u32>,
    /// `cpu cores`: cores of the package.
    pub cores: Option<u32>,
}

/// `/proc/cpuinfo` as far as it tells places. Blocks without a `processor` number are skipped,
/// and so are values that are no numbers: other architectures use the same keys for text.
pub fn cpuinfo(text: &str) -> Vec<CpuinfoEntry> {
    let mut entries = Vec::<CpuinfoEntry>::new();
    for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
        let Ok(value) = value.trim().parse::<u32>() else { continue };
        let key = key.trim();
        if key == "processor" {
            if entries.len() > MAX_ID as usize {
                break;
            }
            entries.push(CpuinfoEntry { processor: value, ..CpuinfoEntry::default() });
        } else if let Some(last) = entries.last_mut() {
            match key {
                "physical id" => last.package = Some(value),
                "core id" => last.core = Some(value),
                "siblings" => last.siblings = Some(value),
                "cpu cores" => last.cores = Some(value),
                _ => {}
            }
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(text: &str) -> Result<String, &'static str> {
        list::<CpuId>(text).map(|set| set.to_string())
    }

    #[test]
    fn lists_are_read_and_must_ascend() {
        assert_eq!(cpus("0-3,8\n").unwrap(), "0-3,8");
        assert_eq!(cpus("\n").unwrap(), "");
        assert_eq!(cpus("0-7\n\0").unwrap(), "0-7", "as some kernels end it");
        for bad in ["3-1", "4,0-3", "0-3,3", "0-99999", "a", "0,", "-1", "0x3", "1-2-3"] {
            assert!(cpus(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn masks_are_read_from_the_highest_word() {
        assert_eq!(mask("00000000,00000101\n").unwrap().to_string(), "0,8");
        assert_eq!(mask("ff,00000000").unwrap().to_string(), "32-39");
        assert_eq!(mask("fffff").unwrap().to_string(), "0-19");
        assert_eq!(mask("0").unwrap(), CpuSet::new());
        for bad in ["", "x", "1,,2", "123456789", "+1", "-1", "1,"] {
            assert!(mask(bad).is_err(), "{bad}");
        }
        let high = format!("1{}", ",00000000".repeat(2048));
        assert!(mask(&high).is_err());
    }

    #[test]
    fn memory_is_read_in_either_meminfo() {
        let node = "Node 0 MemTotal:     16772456 kB\nNode 0 MemFree: 1 kB\n";
        assert_eq!(memory_total(node), Ok(Bytes(16_772_456 * 1024)));
        assert_eq!(memory_total("MemTotal:  1024 kB"), Ok(Bytes(1 << 20)));
        for bad in
            ["", "MemTotal:", "MemTotal: 12", "MemTotal: x kB", "MemTotal: 99999999999999999999 kB"]
        {
            assert!(memory_total(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn distances_are_numbers() {
        assert_eq!(distances("10 21\n"), Ok(vec![10, 21]));
        assert_eq!(distances(""), Ok(vec![]));
        assert!(distances("10 x").is_err());
        assert!(distances("10 -1").is_err());
    }

    #[test]
    fn cpuinfo_tells_the_places_of_cpus() {
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\nphysical id\t: 1\nsiblings\t: 4\n\
                    core id\t\t: 2\ncpu cores\t: 2\n\nprocessor\t: 1\nphysical id\t: x\n";
        let read = cpuinfo(text);
        assert_eq!(
            read[0],
            CpuinfoEntry {
                processor: 0,
                package: Some(1),
                core: Some(2),
                siblings: Some(4),
                cores: Some(2)
            }
        );
        assert_eq!(read[1], CpuinfoEntry { processor: 1, ..CpuinfoEntry::default() });
        assert_eq!(cpuinfo("processor : fish\nphysical id : 1\n"), []);
    }
}
