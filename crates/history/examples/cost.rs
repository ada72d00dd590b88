//! What a history costs: moments of a made host, each with other loads, written as a run writes them.
//!
//! `cargo run --release -p instep-history --example cost -- VMS VCPUS MOMENTS`

use instep_history::{Cursor, Writer, opening};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use std::env::args;
use std::error::Error;
use std::fmt::Write as _;
use std::time::Instant;

struct Random(SplitMix64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0.next_u64() % most
    }
}

/// A moment of the shape that a run publishes: half of the vCPUs are busy and run elsewhere each time.
fn moment(at_ms: u64, (vms, vcpus): (u64, u64), random: &mut Random) -> String {
    let mut text =
        opening(at_ms) + "\"changes\":[],\"host\":{\"schema\":\"instep.host/1\",\"nodes\":[";
    for node in 0..2 {
        let first = node * 64;
        let cores: Vec<String> =
            (first..first + 64).map(|cpu| format!("[{cpu},{}]", cpu + 128)).collect();
        let comma = if node == 0 { "," } else { "" };
        let _ = write!(
            text,
            "{{\"id\":{node},\"memory_bytes\":540000000000,\"llcs\":[[{}]]}}{comma}",
            cores.join(",")
        );
    }
    text.push_str("],\"vms\":[");
    for vm in 0..vms {
        let (node, used) = (vm % 2, random.below(vcpus * 1000));
        let memory = 17_179_869_184 + random.below(1 << 20) * 4096;
        let comma = if vm == 0 { "" } else { "," };
        let _ = write!(
            text,
            "{comma}{{\"name\":\"tenant-{vm:04}\",\"uuid\":\"{:08x}-5aef-4d1c-9a51-{vm:012x}\",\"pid\":{},\
             \"used_milli\":{used},\"steal_milli\":{},\"throttled_milli\":0,\"quota_milli\":null,\
             \"co_run_milli\":{},\"locality_milli\":{},\"memory_bytes_by_node\":{{\"{node}\":{memory}}},\
             \"selected\":true,\"home_nodes\":[{node}],\"why\":\"stays on node {node}: moving it would save \
             {}.{} CPUs, less than the 0.5 that a move must save\",\"vcpus\":[",
            vm * 7919,
            4000 + vm * 40,
            random.below(300),
            700 + random.below(300),
            950 + random.below(50),
            random.below(1),
            random.below(10)
        );
        for vcpu in 0..vcpus {
            let is_busy = vcpu < vcpus / 2;
            let load = random.below(if is_busy { 1000 } else { 20 });
            let cpu = node * 64 + if is_busy { random.below(64) } else { vcpu };
            let delay = if is_busy { random.below(100) } else { 0 };
            let (from, to) = (node * 64, node * 64 + 63);
            let comma = if vcpu == 0 { "" } else { "," };
            let _ = write!(
                text,
                "{comma}{{\"index\":{vcpu},\"tid\":{},\"cpu\":{cpu},\"used_milli\":{load},\"steal_milli\":{delay},\
                 \"cpus\":\"{from}-{to},{}-{}\",\"was\":\"0-255\",\"planned\":null}}",
                4000 + vm * 40 + vcpu + 5,
                from + 128,
                to + 128
            );
        }
        text.push_str("]}");
    }
    text + "]}}"
}

fn main() -> Result<(), Box<dyn Error>> {
    let numbers: Vec<u64> = args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    let [vms, vcpus, moments] = numbers[..] else {
        return Err("usage: cost VMS VCPUS MOMENTS, such as 100 8 1000".into());
    };
    let dir = std::env::temp_dir().join(format!("instep-history-cost-{}", std::process::id()));
    let mut random = Random(SplitMix64::seed_from_u64(1));
    let (mut spent, mut plain) = (0.0, 0);
    let mut writer = Writer::open(&dir, 1 << 30)?;
    for number in 0..moments {
        let line = moment(1_764_000_000_000 + number * 60_000, (vms, vcpus), &mut random);
        let began = Instant::now();
        writer.append(1_764_000_000_000 + number * 60_000, line.as_bytes())?;
        spent += began.elapsed().as_secs_f64();
        plain = line.len();
    }
    writer.end()?;
    let packed = writer.bytes() / moments.max(1);
    println!("{vms} VMs of {vcpus} vCPUs: a record has {plain} bytes, {packed} on disk");
    println!("{:.2} ms to write one", spent * 1000.0 / moments.max(1) as f64);
    let day = |seconds: u64| packed * 86_400 / seconds;
    for seconds in [60, 10] {
        let (all, each) = (day(seconds), day(seconds) / vms.max(1));
        println!(
            "each {seconds} s: {:.1} MiB a day, {} KiB a VM and day",
            all as f64 / 1048576.0,
            each / 1024
        );
    }
    let began = Instant::now();
    let mut cursor = Cursor::open(&dir)?;
    cursor.seek(1_764_000_000_000 + moments / 2 * 60_000)?;
    println!("{:.1} ms to find a moment", began.elapsed().as_secs_f64() * 500.0);
    drop(cursor);
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
