//! How many events a second the engine deals with on one core, by scheduler and size of the host.

#![allow(missing_docs, reason = "criterion's macros make public items")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use instep_scx::instep::limits;
use instep_sim::engine::Engine;
use instep_sim::scenario::Scenario;
use instep_sim::scenario::build::SimulationPlan;

/// `vms` VMs of `vcpus` vCPUs that meet at barriers, on a host of `nodes` nodes.
fn plan(scheduler: &str, nodes: u32, cores: u32, vms: u32, vcpus: u32, ms: u32) -> SimulationPlan {
    let text = format!(
        r#"about = "bench"
        scheduler = "{scheduler}"
        duration = "{ms}ms"
        warmup = "0s"
        [host]
        nodes = {nodes}
        cores = {cores}
        threads = 2
        memory = "4TiB"
        [[guest]]
        name = "vm"
        count = {vms}
        vcpus = {vcpus}
        memory = "128MiB"
        load = "instep-load barrier --kind spin-block --phase 100us --imbalance 20%"
        "#
    );
    let scenario = Scenario::parse(&text).expect("the text above");
    SimulationPlan::new(&scenario, &|_| Err(String::new())).expect("the text above")
}

fn benchmark(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("engine");
    group.sample_size(10);
    let sizes = [(4, 4, 14, 4, 1000), (16, 8, 112, 4, 100), (64, 8, 1250, 8, 20)];
    for (nodes, cores, vms, vcpus, ms) in sizes {
        for scheduler in ["credit", "cfs", "eevdf", "instep"] {
            // Beyond its tables.
            if scheduler == "instep" && (nodes * cores * 2) as usize > limits().cpus {
                continue;
            }
            let plan = plan(scheduler, nodes, cores, vms, vcpus, ms);
            let events = plan.run().events;
            group.throughput(Throughput::Elements(events));
            let name = format!("{scheduler}/{}cpus-{}vcpus", nodes * cores * 2, vms * vcpus);
            group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
                bencher.iter_batched(
                    || Engine::new(plan.setup.clone(), plan.scheduler()),
                    Engine::run,
                    criterion::BatchSize::LargeInput,
                );
            });
        }
    }
    group.finish();
}

criterion_group!(benches, benchmark);
criterion_main!(benches);
