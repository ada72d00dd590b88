//! Loads the kernel scheduler for processes named on the command line, and prints what it counts.
//!
//! `dispatch SECONDS [--off MECHANISM] [--set KEY=VALUE] NAME=PID[:WEIGHT[:COSCHED]] ...`; every thread of PID
//! but none of its children is a vCPU. Ends after SECONDS (0: never) with one JSON line.

fn main() -> anyhow::Result<()> {
    live::main()
}

mod live {
    use anyhow::{Context as _, Result};
    use instep_core::topology::LANES;
    use instep_core::units::Tid;
    use instep_kernel::loaded::Loaded;
    use instep_kernel::table::{ThreadId, VmEntry};
    use instep_kernel::{CpuPlace, Mechanisms, SchedulerSettings};
    use std::time::{Duration, Instant};

    fn threads(pid: u32) -> Result<Vec<ThreadId>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let tid: u32 = entry?.file_name().to_string_lossy().parse()?;
            let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat"))?;
            let after = stat.rsplit_once(')').context("stat")?.1;
            let start = after.split_whitespace().nth(19).context("stat")?.parse()?;
            all.push(ThreadId { tid: Tid(tid), start_ticks: start });
        }
        all.sort();
        // The first thread of instep-load waits for the others.
        if all.len() > 1 {
            all.remove(0);
        }
        Ok(all)
    }

    fn vms(named: &[String]) -> Result<Vec<VmEntry>> {
        let vm = |text: &String| -> Result<VmEntry> {
            let (name, rest) = text.split_once('=').context("NAME=PID")?;
            let mut parts = rest.split(':');
            let pid: u32 = parts.next().context("PID")?.parse()?;
            let mut vm = VmEntry::new(name, threads(pid)?);
            if let Some(weight) = parts.next() {
                vm.weight = weight.parse()?;
            }
            if let Some(cosched) = parts.next() {
                vm.cosched = cosched.parse().map_err(anyhow::Error::msg)?;
            }
            Ok(vm)
        };
        let mut all = Vec::new();
        for name in named {
            match name.strip_prefix('@') {
                Some(file) => {
                    let text = std::fs::read_to_string(file).unwrap_or_default();
                    all.extend(text.split_whitespace().map(str::to_owned));
                }
                None => all.push(name.clone()),
            }
        }
        all.iter().map(vm).collect()
    }

    pub(crate) fn main() -> Result<()> {
        let mut args = std::env::args().skip(1);
        let seconds: u64 = args.next().context("SECONDS")?.parse()?;
        let (mut off, mut named, mut settings) =
            (Vec::new(), Vec::new(), SchedulerSettings::default());
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--off" => off.push(args.next().context("MECHANISM")?),
                "--set" => {
                    let text = args.next().context("KEY=VALUE")?;
                    let (key, value) = text.split_once('=').context("KEY=VALUE")?;
                    let time = Duration::from_micros(value.parse()?);
                    match key {
                        "slice" => settings.slice = time,
                        "slot" => settings.slot = time,
                        "wake_slack" => settings.wake_slack = time,
                        "lag" => settings.lag = time,
                        _ => anyhow::bail!("no setting {key}"),
                    }
                }
                _ => named.push(arg),
            }
        }
        settings.mechanisms = Mechanisms::without(&off).map_err(anyhow::Error::msg)?;
        // One node, cores of one CPU, a cache in each domain.
        let lanes = LANES as u32;
        let place = |cpu: u32| CpuPlace {
            node: 0,
            domain: cpu / lanes,
            lane: cpu % lanes,
            core: 1 << (cpu % lanes),
            first_of_cache: cpu.is_multiple_of(lanes),
            isolated: false,
        };
        let possible = std::thread::available_parallelism()?.get() as u32;
        let mut loaded = Loaded::load(&settings, &(0..possible).map(place).collect::<Vec<_>>(), 0)?;
        let began = Instant::now();
        let stop = std::path::Path::new("/tmp/dispatch.stop");
        let _ = std::fs::remove_file(stop);
        while !stop.exists() && (seconds == 0 || began.elapsed() < Duration::from_secs(seconds)) {
            for warning in loaded.feed(vms(&named).unwrap_or_default())? {
                eprintln!("{warning}");
            }
            for event in loaded.drain() {
                eprintln!("{event:?}");
            }
            if std::path::Path::new("/tmp/dispatch.show").exists() {
                let _ = std::fs::remove_file("/tmp/dispatch.show");
                println!("{:?}", loaded.vms());
                println!("{:?}", loaded.counters());
                for cost in loaded.costs() {
                    let mean = cost.ns / cost.runs.max(1);
                    println!(
                        "{:<18} runs {:>8} mean {mean:>6} ns, {} instructions verified",
                        cost.name, cost.runs, cost.instructions
                    );
                }
            }
            if let Some(exit) = loaded.exited() {
                anyhow::bail!("fell out: {}\n{}", exit.why(), exit.dump);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        println!("{:?}\n{:?}", loaded.counters(), loaded.vms());
        Ok(())
    }
}
