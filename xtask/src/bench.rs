//! Cycle time of observing and deciding by number of VMs, beside a plain read of the same files.
//!
//! Trees are made (8 vCPUs a VM, every monitor, on 8 nodes x 16 cores x 2 threads) and lie in
//! memory where the machine allows. The plain read opens and reads, without parsing, the files
//! that a steady scan of a copy needs: it bounds what any reader can reach in the same run, so the
//! ratio holds on a busy machine, too. Times are CPU time of this thread, which other work on the
//! machine lengthens less than the clock's; the whole cycle is given by the clock as well. Reading
//! a real /proc costs the kernel more than a file in memory does: the times are not those of a
//! live host, the growth is.

use anyhow::{Context, Result, bail};
use instep_core::policy::{self, PolicySettings};
use instep_core::topology::Topology;
use instep_core::units::{Bytes, Milli, Nanos, NodeId};
use instep_host::discover::{Scan, ScanOptions, Scanner, snapshot};
use instep_host::{Root, topology};
use instep_madehost::{HostSpec, MadeHost, Random, VmSpec, Vmm, scratch_dir};
use instep_report::stats;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Numbers of VMs measured when none are given.
pub(crate) const SIZES: [u32; 7] = [10, 30, 100, 300, 1000, 3000, 10_000];
const VCPUS: u32 = 8;
const WINDOW: Nanos = Nanos::from_secs(60);
/// The growth law is fitted from here on; below, what does not grow with VMs weighs in.
const FIT_FROM: u32 = 100;

/// What was measured for one number of VMs; medians.
struct Row {
    vms: u32,
    threads: u32,
    first: Duration,
    scan: Duration,
    snapshot: Duration,
    decide: Duration,
    plain: Duration,
    /// The whole cycle by the clock.
    wall: Duration,
    files: usize,
}

impl Row {
    fn cycle(&self) -> Duration {
        self.scan + self.snapshot + self.decide
    }
}

/// Measures each size and prints a Markdown table for docs/performance.md.
pub(crate) fn run(sizes: &[u32]) -> Result<()> {
    if sizes.is_empty() || sizes.contains(&0) {
        bail!("the numbers of VMs to measure must be 1 or more");
    }
    if cfg!(debug_assertions) {
        eprintln!("bench: not optimised; measure with cargo run --release -p xtask -- bench");
    }
    let mut rows = Vec::new();
    for vms in sizes {
        eprintln!("bench: {vms} VMs");
        rows.push(measure(*vms)?);
    }
    print(&rows);
    Ok(())
}

fn host(vms: u32) -> MadeHost {
    let mut hardware = HostSpec::new(8, 16).threads(2).siblings_far();
    hardware.memory_per_node = Bytes::from_mib(4 << 20);
    let mut made = MadeHost::new(hardware);
    let mut random = Random::new(u64::from(vms));
    for number in 0..vms {
        let vmm = Vmm::ALL[number as usize % Vmm::ALL.len()];
        let home = NodeId(random.within(0, 7) as u32);
        let memory = Bytes(random.within(1 << 16, 1 << 20) * 4096);
        let mut vm = VmSpec::new(&format!("vm{number}"), vmm, VCPUS, home, memory);
        if random.chance(30) {
            let other = NodeId(random.within(0, 7) as u32);
            vm = vm.memory_on(other, Bytes(random.within(1, 1 << 18) * 4096));
        }
        vm.vcpus.iter_mut().for_each(|vcpu| vcpu.load = Milli(random.within(0, 1000)));
        made.push(vm);
    }
    made
}

fn measure(vms: u32) -> Result<Row> {
    let made = host(vms);
    let dir = scratch_dir().context("cannot make a scratch directory")?;
    made.write(dir.path()).context("cannot write the made host")?;
    let root = Root::at(dir.path());
    let topology: Arc<Topology> = Arc::new(topology::read(&root)?);
    let mut scanner = Scanner::new(root, ScanOptions::default());
    let (first, scan) = timed(|| scanner.scan());
    let before = earlier(scan?);
    // Threads are looked at anew until they were the same a few times.
    for _ in 0..3 {
        scanner.scan()?;
    }
    let files = needed(dir.path(), &made);
    let rounds = if vms <= 1000 { 9 } else { 5 };
    let [mut scans, mut snapshots, mut decides, mut plains, mut walls] = [const { Vec::new() }; 5];
    for _ in 0..rounds {
        let begun = Instant::now();
        let (took, after) = timed(|| scanner.scan());
        scans.push(took);
        let after = after?;
        let (took, seen) = timed(|| snapshot(&topology, Some(&before), &after, Some(WINDOW)));
        snapshots.push(took);
        let (took, decision) = timed(|| policy::decide(&seen, &PolicySettings::default()));
        decides.push(took);
        walls.push(begun.elapsed());
        if decision.vms.len() != vms as usize {
            bail!("{} verdicts for {vms} VMs", decision.vms.len());
        }
        let (took, bytes) = timed(|| read_all(&files));
        plains.push(took);
        if bytes? == 0 {
            bail!("the plain read found nothing");
        }
    }
    let threads = made.vms.iter().map(|vm| vm.threads(made.uptime).len() as u32).sum();
    Ok(Row {
        vms,
        threads,
        first,
        scan: median(scans),
        snapshot: median(snapshots),
        decide: median(decides),
        plain: median(plains),
        wall: median(walls),
        files: files.len(),
    })
}

/// The same host a window earlier, by what its threads used since they started.
fn earlier(mut scan: Scan) -> Scan {
    let earlier = |time: Nanos| Nanos(time.0 - time.0 / 60);
    for vcpu in scan.vms.iter_mut().flat_map(|vm| &mut vm.vcpus) {
        vcpu.run = earlier(vcpu.run);
        vcpu.ticks = earlier(vcpu.ticks);
    }
    scan.at = scan.at.since(WINDOW);
    scan.host_busy = earlier(scan.host_busy);
    scan
}

/// The files of a steady scan: of every process its stat; of every VM also its cgroup, limits and
/// memory, and of its threads what they use and may use.
fn needed(root: &Path, made: &MadeHost) -> Vec<PathBuf> {
    let proc = root.join("proc");
    let mut files = vec![proc.join("stat"), proc.join("uptime")];
    let pids = fs::read_dir(&proc).into_iter().flatten().flatten();
    let numbered = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    files.extend(
        pids.filter(|entry| entry.file_name().to_str().is_some_and(numbered))
            .map(|entry| entry.path().join("stat")),
    );
    for vm in &made.vms {
        let dir = proc.join(vm.pid.to_string());
        let group = fs::read_to_string(dir.join("cgroup")).unwrap_or_default();
        let group = group.trim_end().trim_start_matches("0::");
        let group = group.split("/libvirt/").next().unwrap_or(group);
        let group = root.join("sys/fs/cgroup").join(group.trim_start_matches('/'));
        let limits =
            ["cpu.weight", "cpuset.cpus.effective", "cpuset.mems.effective", "memory.numa_stat"];
        files.extend(limits.map(|name| group.join(name)));
        files.push(dir.join("cgroup"));
        for thread in vm.threads(made.uptime) {
            let task = dir.join("task").join(thread.tid.to_string());
            files.extend(["stat", "status"].map(|name| task.join(name)));
        }
        for index in 0..vm.vcpus.len() as u32 {
            files.push(dir.join(format!("task/{}/schedstat", vm.vcpu_tid(index))));
        }
    }
    files
}

/// Reads the files one after the other; the sum of their bytes.
fn read_all(files: &[PathBuf]) -> Result<u64> {
    let mut buffer = vec![0u8; 64 << 10];
    let mut sum = 0;
    for path in files {
        let mut file =
            File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        loop {
            let read = file.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            sum += read as u64;
        }
    }
    Ok(sum)
}

/// CPU time that `work` takes, and its result.
fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = cpu_time();
    let result = work();
    (cpu_time().saturating_sub(start), result)
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of this frame, which the call fills.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    Duration::from_secs(part(time.tv_sec)) + Duration::from_nanos(part(time.tv_nsec))
}

fn median(times: Vec<Duration>) -> Duration {
    let seconds: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
    stats::median(&seconds).map(Duration::from_secs_f64).unwrap_or_default()
}

/// The exponent k of time = c * vms^k that fits best, by least squares of the logarithms; `None`
/// for fewer than two points.
fn exponent(points: &[(f64, f64)]) -> Option<f64> {
    let logs: Vec<(f64, f64)> = points
        .iter()
        .filter(|(x, y)| *x > 0.0 && *y > 0.0)
        .map(|(x, y)| (x.ln(), y.ln()))
        .collect();
    let count = logs.len() as f64;
    let mean = |pick: fn(&(f64, f64)) -> f64| logs.iter().map(pick).sum::<f64>() / count;
    let (mean_x, mean_y) = (mean(|p| p.0), mean(|p| p.1));
    let covariance: f64 = logs.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let variance: f64 = logs.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    (variance > 0.0).then(|| covariance / variance)
}

fn print(rows: &[Row]) {
    let ms = |time: Duration| format!("{:.2}", time.as_secs_f64() * 1e3);
    println!(
        "| VMs | threads | files | first scan ms | scan ms | snapshot ms | decide ms | cycle ms | \
         by the clock ms | plain read ms | cycle / plain read |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for row in rows {
        println!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {:.2} |",
            row.vms,
            row.threads,
            row.files,
            ms(row.first),
            ms(row.scan),
            ms(row.snapshot),
            ms(row.decide),
            ms(row.cycle()),
            ms(row.wall),
            ms(row.plain),
            row.cycle().as_secs_f64() / row.plain.as_secs_f64().max(1e-9),
        );
    }
    println!();
    let law = |name: &str, time: fn(&Row) -> Duration| {
        let fitted = rows.iter().filter(|row| row.vms >= FIT_FROM);
        let points: Vec<(f64, f64)> =
            fitted.map(|row| (f64::from(row.vms), time(row).as_secs_f64())).collect();
        if let Some(k) = exponent(&points) {
            println!("* {name}: grows as VMs^{k:.2} from {FIT_FROM} VMs on");
        }
    };
    law("cycle", Row::cycle);
    law("scan", |row| row.scan);
    law("snapshot", |row| row.snapshot);
    law("decide", |row| row.decide);
    law("plain read", |row| row.plain);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponent_of_a_power_law_is_found() {
        let square: Vec<(f64, f64)> = [1.0, 3.0, 10.0, 30.0].map(|x: f64| (x, 7.0 * x * x)).into();
        assert!((exponent(&square).unwrap() - 2.0).abs() < 1e-9);
        assert_eq!(exponent(&square[..1]), None);
    }

    #[test]
    fn a_small_host_is_measured_whole() {
        let row = measure(2).unwrap();
        assert_eq!((row.vms, row.threads), (2, 23));
        assert!(row.files > 60, "{}", row.files);
    }
}
