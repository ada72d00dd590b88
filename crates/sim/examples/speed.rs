//! CPU time that simulations take, for `cargo xtask bench sim`: a line for each of the engine's sizes
//! (`speed engine SCHEDULER`), or one for periodic tasks without a hypervisor (`speed periodic CPUS
//! TASKS MS`); sizes for which the scheduler has no room are left out. Columns: CPUs, vCPUs, events, jobs,
//! CPU seconds of this thread.

#![allow(missing_docs, reason = "an example")]

use instep_scx::instep::limits;
use instep_sim::engine::Engine;
use instep_sim::scenario::Scenario;
use instep_sim::scenario::build::SimulationPlan;
use std::fs;
use std::process::ExitCode;

/// Nodes, cores a node, VMs, vCPUs a VM, milliseconds.
const SIZES: [[u32; 5]; 4] =
    [[4, 4, 14, 4, 2000], [16, 8, 112, 4, 200], [32, 8, 160, 16, 60], [64, 8, 1250, 8, 40]];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["engine", scheduler] => engine(scheduler),
        ["periodic", numbers @ ..] => periodic(numbers),
        _ => Err("usage: speed engine SCHEDULER | speed periodic CPUS TASKS MS".to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("{what}");
            ExitCode::from(2)
        }
    }
}

fn engine(scheduler: &str) -> Result<(), String> {
    // Instep's scheduler has tables of fixed size: larger hosts are left out.
    let room = limits();
    let fits = |[nodes, cores, vms, vcpus, _]: &[u32; 5]| {
        scheduler != "instep"
            || (nodes * cores * 2) as usize <= room.cpus
                && *vms as usize <= room.vms
                && (vms * vcpus) as usize <= room.vcpus
    };
    for [nodes, cores, vms, vcpus, ms] in SIZES.into_iter().filter(fits) {
        let host = format!("nodes = {nodes}\ncores = {cores}\nthreads = 2\nmemory = \"4TiB\"");
        let load = "instep-load barrier --kind spin-block --phase 100us --imbalance 20%";
        let guests = format!(
            "[[guest]]\nname = \"vm\"\ncount = {vms}\nvcpus = {vcpus}\nmemory = \"128MiB\"\n\
             load = \"{load}\""
        );
        one(scheduler, &host, &guests, [nodes * cores * 2, vms * vcpus, ms])?;
    }
    Ok(())
}

/// Tasks that want half of each period of 10 ms, straight on CPUs.
fn periodic(numbers: &[&str]) -> Result<(), String> {
    let numbers: Result<Vec<u32>, _> = numbers.iter().map(|number| number.parse()).collect();
    let Ok([cpus, tasks, ms]) = numbers.as_deref() else { return Err("three numbers".to_owned()) };
    let host = format!("cores = {cpus}\nmemory = \"64GiB\"\nmachine = \"ideal\"");
    let guests = format!(
        "[[guest]]\nname = \"vm\"\nvcpus = {tasks}\nmemory = \"1GiB\"\n\
         load = \"instep-load ping --period 10ms --burst 5ms\""
    );
    one("pm", &host, &guests, [*cpus, *tasks, *ms])
}

fn one(
    scheduler: &str,
    host: &str,
    guests: &str,
    [cpus, tasks, ms]: [u32; 3],
) -> Result<(), String> {
    let text = format!(
        "about = \"speed\"\nscheduler = \"{scheduler}\"\nduration = \"{ms}ms\"\nwarmup = \"0s\"\n\
         [host]\n{host}\n{guests}\n"
    );
    let plan = Scenario::parse(&text)
        .and_then(|scenario| SimulationPlan::new(&scenario, &|_| Err(String::new())))
        .map_err(|fault| fault.what)?;
    let engine = Engine::new(plan.setup.clone(), plan.scheduler());
    let before = cpu_time()?;
    let outcome = engine.run();
    let seconds = (cpu_time()? - before) as f64 / 1e9;
    let jobs: u64 = outcome.vms.iter().map(|vm| vm.2.units).sum();
    println!("{cpus} {tasks} {} {jobs} {seconds:.6}", outcome.events);
    Ok(())
}

/// CPU time of this thread, nanoseconds: the first number of its schedstat.
fn cpu_time() -> Result<u64, String> {
    let path = "/proc/thread-self/schedstat";
    let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let first = text.split_whitespace().next().and_then(|word| word.parse().ok());
    first.ok_or_else(|| format!("{path}: no number"))
}
