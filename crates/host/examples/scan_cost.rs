//! Scans a root several times and prints what each scan found and cost:
//! `cargo run --release -p instep-host --example scan_cost -- [ROOT] [SCANS]`.

use instep_host::Root;
use instep_host::discover::{ScanOptions, Scanner};

fn main() -> Result<(), instep_host::Error> {
    let mut arguments = std::env::args().skip(1);
    let root = arguments.next().unwrap_or_else(|| "/".to_owned());
    let scans: u32 = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(5);
    let mut scanner = Scanner::new(Root::at(root), ScanOptions::default());
    for _ in 0..scans {
        let scan = scanner.scan()?;
        let ms = |nanos: u64| nanos as f64 / 1e6;
        println!(
            "{} VMs, {} opaque, {} processes, {} threads: {:.1} ms, of it {:.1} ms for {} \
             numa_maps; {} examined, {} QMP tries",
            scan.vms.len(),
            scan.opaque.len(),
            scan.looked.processes,
            scan.cost.threads,
            ms(scan.cost.wall.0),
            ms(scan.cost.numa_maps.0),
            scan.cost.numa_maps_reads,
            scan.cost.examined,
            scan.cost.qmp_tries,
        );
        for warning in &scan.warnings {
            println!("  {warning}");
        }
    }
    Ok(())
}
