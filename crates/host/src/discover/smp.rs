//! How many CPUs a monitor gives its guest and how many threads each of their cores has, from
//! `-smp` (QEMU) and `--cpus` (cloud-hypervisor, crosvm).

use super::args::{keys, last};

/// The most vCPUs that are believed: KVM_MAX_VCPUS with the largest CONFIG_KVM_MAX_NR_VCPUS on
/// x86-64 (arch/x86/kvm/Kconfig, 6.18).
pub const MAX_VCPUS: u32 = 4096;

/// CPUs of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Smp {
    /// CPUs at start, at least 1.
    pub cpus: u32,
    /// CPUs it may have after hot-plug, at least `cpus`.
    pub max: u32,
    /// Sockets, 0 when not said.
    pub sockets: u32,
    /// Threads of a core, at least 1.
    pub threads: u32,
    /// Whether the command line said anything.
    pub said: bool,
}

impl Default for Smp {
    fn default() -> Self {
        Smp { cpus: 1, max: 1, sockets: 0, threads: 1, said: false }
    }
}

/// QEMU's `-smp` (qemu-options.hx, 10.0): `[cpus=]n`, `maxcpus`, `sockets`, `dies`, `clusters`,
/// `modules`, `cores`, `threads`; what is left out follows from the rest.
pub fn qemu<'a>(options: impl Iterator<Item = &'a str>) -> Smp {
    let read: Vec<_> = options.flat_map(|option| keys(option, "cpus")).collect();
    if read.is_empty() {
        return Smp::default();
    }
    let number = |key: &str| last(&read, key).and_then(count);
    let levels = ["drawers", "books", "sockets", "dies", "clusters", "modules", "cores"];
    // `clusters` of 1..: levels that are not named hold one of each.
    let groups: u32 = levels.iter().filter_map(|level| number(level)).fold(1, u32::saturating_mul);
    let named = number("threads");
    let whole = groups.saturating_mul(named.unwrap_or(1));
    let cpus = number("cpus").or(number("maxcpus")).unwrap_or(whole).clamp(1, MAX_VCPUS);
    let max = number("maxcpus").unwrap_or(cpus.max(whole)).clamp(cpus, MAX_VCPUS);
    let threads = named.unwrap_or_else(|| {
        // QEMU computes the threads only when both sockets and cores are given.
        let both = number("sockets").is_some() && number("cores").is_some();
        if both { (max / groups.max(1)).max(1) } else { 1 }
    });
    Smp { cpus, max, sockets: number("sockets").unwrap_or(0), threads, said: true }
}

/// cloud-hypervisor's `--cpus boot=4,max=8,topology=THREADS:CORES:DIES:PACKAGES`.
pub fn cloud_hypervisor(option: Option<&str>) -> Smp {
    let Some(option) = option else { return Smp::default() };
    let read = keys(option, "boot");
    let cpus = last(&read, "boot").and_then(count).unwrap_or(1).min(MAX_VCPUS);
    let max = last(&read, "max").and_then(count).unwrap_or(cpus).clamp(cpus, MAX_VCPUS);
    let threads = last(&read, "topology")
        .and_then(|topology| count(topology.split(':').next()?))
        .unwrap_or(1);
    Smp { cpus, max, sockets: 0, threads, said: true }
}

/// crosvm's `--cpus 4` or `--cpus num-cores=4`.
pub fn crosvm(option: Option<&str>) -> Smp {
    let Some(option) = option else { return Smp::default() };
    let cpus = last(&keys(option, "num-cores"), "num-cores").and_then(count).unwrap_or(1);
    let cpus = cpus.min(MAX_VCPUS);
    Smp { cpus, max: cpus, sockets: 0, threads: 1, said: true }
}

fn count(text: &str) -> Option<u32> {
    text.parse().ok().filter(|count| (1..=65_536).contains(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> (u32, u32, u32) {
        let smp = qemu([text].into_iter());
        (smp.cpus, smp.max, smp.threads)
    }

    #[test]
    fn what_is_left_out_of_smp_follows_from_the_rest() {
        assert_eq!(of("4"), (4, 4, 1));
        assert_eq!(of("cpus=4,maxcpus=8"), (4, 8, 1));
        assert_eq!(of("8,sockets=2,cores=2,threads=2"), (8, 8, 2));
        assert_eq!(of("sockets=2,dies=1,cores=4,threads=2"), (16, 16, 2));
        assert_eq!(of("8,sockets=2,cores=2"), (8, 8, 2));
        assert_eq!(of("2,maxcpus=16,sockets=1,dies=1,cores=8,threads=2"), (2, 16, 2));
        assert_eq!(of("8,threads=2"), (8, 8, 2));
    }

    #[test]
    fn nonsense_gives_one_cpu_and_no_overflow() {
        for bad in ["", "x", "0", "-1", "99999999999", "cpus="] {
            assert_eq!(of(bad), (1, 1, 1), "{bad}");
        }
        assert_eq!(of("sockets=65536,cores=65536,threads=65536").0, MAX_VCPUS);
        assert_eq!(qemu(std::iter::empty()), Smp::default());
    }

    #[test]
    fn the_other_monitors_say_it_their_way() {
        let ch = cloud_hypervisor(Some("boot=4,max=8,topology=2:2:1:2"));
        assert_eq!((ch.cpus, ch.max, ch.threads), (4, 8, 2));
        assert_eq!(cloud_hypervisor(Some("4")).cpus, 4);
        assert_eq!(crosvm(Some("num-cores=3")).cpus, 3);
        assert_eq!(crosvm(Some("2")).cpus, 2);
    }
}
