//! Parsers of the short files of /proc that a scan reads for every thread.
//!
//! They take bytes and give `None` for what they cannot read; a scan treats that as a thread in
//! the middle of vanishing. `stat` is parsed here and not by `procfs-core`: a line that a copy of
//! /proc holds in part still gives its name, only some of the 52 fields are needed, and it takes
//! half the time (0.9 and 1.9 microseconds, next to some 10 for reading the file).

use instep_core::idset::CpuSet;
use instep_core::units::{CpuId, Nanos};

/// What a scan needs of `/proc/PID/stat` or `/proc/PID/task/TID/stat` (proc_pid_stat(5)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Name, cut by the kernel at 15 bytes; bytes that are not UTF-8 are replaced.
    pub comm: String,
    /// State letter: `R`, `S`, `Z` ...
    pub state: u8,
    /// Parent process.
    pub ppid: u32,
    /// PF_ flags of the kernel.
    pub flags: u64,
    /// User and system time in ticks.
    pub cpu_ticks: u64,
    /// Whether it is a real-time or deadline thread: such priorities are shown as less than -1.
    pub is_real_time: bool,
    /// Threads of the process.
    pub threads: u32,
    /// Start in ticks since boot.
    pub start_ticks: u64,
    /// CPU it last ran on.
    pub cpu: Option<CpuId>,
    /// Whether its policy is SCHED_IDLE: it runs only where nothing else wants to.
    pub is_idle_policy: bool,
    /// Whether the line reaches past the start. Where it does not, times and start are zero
    /// because they are not known.
    pub whole: bool,
}

/// `policy` of such a thread (sched(7)).
const SCHED_IDLE: u32 = 5;

impl Stat {
    /// Whether this is a kernel thread (PF_KTHREAD, include/linux/sched.h, 6.18).
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & 0x0020_0000 != 0
    }

    /// Whether it has ended and waits for its parent.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }
}

/// Parses a `stat` line. The name may hold any byte, `)` included, so the fields begin after the
/// last `)`. Fields missing at the end are zero, and so are times and start unless all are there;
/// `None` when there is no name and state. A field counts when another or white space follows it:
/// what ends a line may be cut, and the last of the kernel's 52 is not needed.
pub fn stat(bytes: &[u8]) -> Option<Stat> {
    let open = bytes.iter().position(|b| *b == b'(')?;
    let close = bytes.iter().rposition(|b| *b == b')').filter(|close| *close > open)?;
    let name = &bytes[open + 1..close.min(open + 1 + 64)];
    let rest = bytes[close + 1..].trim_ascii_start();
    let state = *rest.first()?;
    let end = rest.iter().rposition(u8::is_ascii_whitespace).unwrap_or(0);
    let fields = rest[..end]
        .split(|b| b.is_ascii_whitespace())
        .filter(|field| !field.is_empty())
        .take(50)
        .skip(1);
    let mut out =
        Stat { comm: String::from_utf8_lossy(name).into_owned(), state, ..Stat::default() };
    // Numbered as in proc_pid_stat(5): the first field after the state is 4.
    for (field, number) in fields.zip(4u32..) {
        match number {
            4 => out.ppid = u32_of(field).unwrap_or(0),
            9 => out.flags = u64_of(field).unwrap_or(0),
            14 | 15 => out.cpu_ticks = out.cpu_ticks.saturating_add(u64_of(field).unwrap_or(0)),
            18 => {
                let priority = std::str::from_utf8(field).ok().and_then(|text| text.parse().ok());
                out.is_real_time = priority.is_some_and(|priority: i32| priority < -1);
            }
            20 => out.threads = u32_of(field).unwrap_or(0),
            22 => {
                out.start_ticks = u64_of(field).unwrap_or(0);
                out.whole = true;
            }
            39 => {
                out.cpu = u32_of(field).map(CpuId);
            }
            41 => {
                out.is_idle_policy = u32_of(field) == Some(SCHED_IDLE);
                break;
            }
            _ => {}
        }
    }
    if !out.whole {
        out.cpu_ticks = 0;
    }
    Some(out)
}

/// The start time in a `stat` line, in ticks since boot; `None` also for a line cut before it.
pub fn start_ticks(bytes: &[u8]) -> Option<u64> {
    let close = bytes.iter().rposition(|b| *b == b')')?;
    // Numbered as in proc_pid_stat(5): the first field after the name is 3.
    u64_of(words(&bytes[close + 1..]).nth(22 - 3)?)
}

/// What stands between white space.
fn words(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|b| b.is_ascii_whitespace()).filter(|word| !word.is_empty())
}

/// Parses `schedstat`: CPU time and run-queue wait, both in nanoseconds
/// (Documentation/scheduler/sched-stats.rst). `None` where the third number, of time slices, is
/// missing, too: the second may be cut then.
pub fn schedstat(bytes: &[u8]) -> Option<(Nanos, Nanos)> {
    let mut fields = words(bytes);
    let (run, wait) = (u64_of(fields.next()?)?, u64_of(fields.next()?)?);
    fields.next().and_then(u64_of)?;
    Some((Nanos(run), Nanos(wait)))
}

/// The value of `key:` in a `status` file, without surrounding white space.
pub fn status_value<'a>(bytes: &'a [u8], key: &str) -> Option<&'a [u8]> {
    bytes.split(|b| *b == b'\n').find_map(|line| {
        let rest = line.strip_prefix(key.as_bytes())?.strip_prefix(b":")?;
        Some(rest.trim_ascii())
    })
}

/// The real user of a `status` file: the first of the four numbers of `Uid`.
pub fn real_uid(bytes: &[u8]) -> Option<u32> {
    let ids = std::str::from_utf8(status_value(bytes, "Uid")?).ok()?;
    ids.split_ascii_whitespace().next()?.parse().ok()
}

/// `Cpus_allowed_list` of a `status` file; `None` when it is absent, empty or no list, as where a
/// copy was cut in it.
pub fn allowed(bytes: &[u8]) -> Option<CpuSet> {
    let list = std::str::from_utf8(status_value(bytes, "Cpus_allowed_list")?).ok()?;
    if list.ends_with([',', '-']) {
        return None;
    }
    CpuSet::parse_list(list).ok().filter(|set| !set.is_empty())
}

/// `HugetlbPages` of a `status` file, in kB.
pub fn hugetlb_kb(bytes: &[u8]) -> Option<u64> {
    u64_of(status_value(bytes, "HugetlbPages")?.strip_suffix(b"kB")?.trim_ascii())
}

/// Voluntary and other context switches of a thread, from its `status` file.
pub fn context_switches(bytes: &[u8]) -> Option<(u64, u64)> {
    let count = |key| u64_of(status_value(bytes, key)?);
    Some((count("voluntary_ctxt_switches")?, count("nonvoluntary_ctxt_switches")?))
}

/// The first number of `/proc/uptime`: time since boot.
pub fn uptime(bytes: &[u8]) -> Option<Nanos> {
    let text = std::str::from_utf8(bytes).ok()?.split_whitespace().next()?;
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: u64 = seconds.parse().ok()?;
    let mut nanos = 0u64;
    for (digit, scale) in fraction.bytes().zip([100_000_000u64, 10_000_000, 1_000_000, 100_000]) {
        if !digit.is_ascii_digit() {
            return None;
        }
        nanos += u64::from(digit - b'0') * scale;
    }
    Some(Nanos(seconds.checked_mul(Nanos::SECOND.0)?.checked_add(nanos)?))
}

/// Ticks of all CPUs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostTicks {
    /// In which they were not idle: user, nice, system, irq, softirq and steal. `guest` is part of user;
    /// idle and iowait are left out.
    pub busy: u64,
    /// Of these, steal: what the machine's own hypervisor gave to others was not there to be used.
    pub stolen: u64,
}

/// [`HostTicks`] from the `cpu` line of `/proc/stat`.
pub fn host_ticks(bytes: &[u8]) -> Option<HostTicks> {
    const IDLE: [usize; 2] = [3, 4];
    const STEAL: usize = 7;
    let line = bytes.split(|b| *b == b'\n').find(|line| line.starts_with(b"cpu "))?;
    let mut ticks = HostTicks::default();
    let fields = line[4..].split(|b| *b == b' ').filter(|field| !field.is_empty()).take(STEAL + 1);
    for (index, field) in fields.enumerate() {
        let field = u64_of(field)?;
        if !IDLE.contains(&index) {
            ticks.busy = ticks.busy.saturating_add(field);
        }
        if index == STEAL {
            ticks.stolen = field;
        }
    }
    Some(ticks)
}

/// `ticks` at `per_second` as time.
pub fn ticks_to_nanos(ticks: u64, per_second: u64) -> Nanos {
    let nanos = u128::from(ticks) * u128::from(Nanos::SECOND.0) / u128::from(per_second.max(1));
    Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// An unsigned decimal number and nothing else.
pub fn u64_of(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() || bytes.len() > 20 {
        return None;
    }
    bytes.iter().try_fold(0u64, |value, b| {
        let digit = b.is_ascii_digit().then(|| u64::from(b - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

fn u32_of(bytes: &[u8]) -> Option<u32> {
    u64_of(bytes).and_then(|value| u32::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &[u8] = b"159 (CPU 0/KVM) R 1 0 0 0 -1 138412225 294 0 0 0 2708 327 0 0 20 0 5 0 \
        660 519790592 45226 18446744073709551615 1 1 0 0 0 0 2147219511 4100 16963 0 0 0 -1 2 0 0 \
        0 2184 0 0 0 0 0 0 0 0 0\n";

    #[test]
    fn a_thread_line_gives_name_times_start_and_cpu() {
        let read = stat(STAT).unwrap();
        assert_eq!(read.comm, "CPU 0/KVM");
        assert_eq!((read.cpu_ticks, read.threads, read.start_ticks), (3035, 5, 660));
        assert_eq!(read.cpu, Some(CpuId(2)));
        assert!(!read.is_kernel_thread() && !read.is_dead());
    }

    #[test]
    fn a_name_may_hold_parentheses_and_spaces() {
        let read = stat(b"7 (a) R (b) Z 1 0 0").unwrap();
        assert_eq!((read.comm.as_str(), read.state), ("a) R (b", b'Z'));
        assert!(read.is_dead());
    }

    #[test]
    fn a_cut_line_gives_what_it_has() {
        for end in 0..STAT.len() {
            let _ = stat(&STAT[..end]);
        }
        assert_eq!(stat(b"159 (CPU"), None);
        assert_eq!(stat(b")("), None);
        assert_eq!(stat(b"1 (x) S").unwrap().start_ticks, 0);
    }

    #[test]
    fn a_start_time_is_known_or_not_and_never_zero_for_a_cut_line() {
        assert_eq!(start_ticks(STAT), Some(660));
        assert_eq!(start_ticks(b"1 (x) S 0 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 0 1"), Some(0));
        assert_eq!(start_ticks(b"159 (CPU 0/KVM) R 1 0"), None);
        assert_eq!(start_ticks(b"159 (a) b (c"), None);
    }

    #[test]
    fn a_line_cut_before_the_end_of_the_start_gives_no_times() {
        let start = STAT.windows(5).position(|part| part == b" 660 ").unwrap();
        for end in STAT.len() - 160..STAT.len() {
            let Some(read) = stat(&STAT[..end]) else { continue };
            let whole = end > start + 4;
            assert_eq!(read.whole, whole, "{end}");
            let times = if whole { (3035, 660) } else { (0, 0) };
            assert_eq!((read.cpu_ticks, read.start_ticks), times, "{end}");
        }
        let unended = stat(STAT.trim_ascii_end()).unwrap();
        assert_eq!(unended, stat(STAT).unwrap());
    }

    #[test]
    fn list_that_ends_in_the_middle_is_refused() {
        let list = |text: &str| allowed(format!("Name:\tx\n{text}").as_bytes());
        assert_eq!(list("Cpus_allowed_list:\t0-3").unwrap().to_string(), "0-3");
        for cut in ["", "\t", "\t0-", "\t0,", "\t0-3,"] {
            assert_eq!(list(&format!("Cpus_allowed_list:{cut}")), None, "{cut:?}");
        }
    }

    #[test]
    fn schedstat_is_run_and_wait() {
        assert_eq!(schedstat(b"100 20 3\n"), Some((Nanos(100), Nanos(20))));
        assert_eq!(schedstat(b"100"), None);
        assert_eq!(schedstat(b"100 2"), None, "20 is cut");
        assert_eq!(schedstat(b"-1 2 3"), None);
    }

    #[test]
    fn status_lines_are_found_by_their_whole_key() {
        let text = b"Cpus_allowed:\tf\nCpus_allowed_list:\t0-2,8\nHugetlbPages:\t    2048 kB\n";
        assert_eq!(allowed(text).unwrap().to_string(), "0-2,8");
        assert_eq!(hugetlb_kb(text), Some(2048));
        let text = b"voluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n";
        assert_eq!(context_switches(text), Some((150, 545)));
        assert_eq!(context_switches(&text[..30]), None);
        assert_eq!(allowed(b"Cpus_allowed_list:\tfish\n"), None);
        assert_eq!(allowed(b""), None);
    }

    #[test]
    fn uptime_counts_hundredths() {
        assert_eq!(uptime(b"1248.53 2210.04\n"), Some(Nanos(1_248_530_000_000)));
        assert_eq!(uptime(b"7"), Some(Nanos::from_secs(7)));
        for bad in ["", "x", "1.x", "-1.0", "99999999999999999999.0"] {
            assert_eq!(uptime(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn idle_and_iowait_are_not_busy() {
        let text = b"cpu  10 20 30 4000 500 6 7 8 900 90\ncpu0 1 1 1 1\n";
        assert_eq!(host_ticks(text), Some(HostTicks { busy: 81, stolen: 8 }));
        assert_eq!(host_ticks(b"cpu  1 x\n"), None);
        assert_eq!(host_ticks(b"intr 1\n"), None);
    }

    #[test]
    fn ticks_do_not_overflow() {
        assert_eq!(ticks_to_nanos(150, 100), Nanos(1_500_000_000));
        assert_eq!(ticks_to_nanos(u64::MAX, 0), Nanos(u64::MAX));
    }
}
