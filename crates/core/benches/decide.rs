//! How long `decide` takes by number of VMs, nodes and policy. The target of the default policy
//! is 15 ms for 1,000 VMs of 8 vCPUs on 8 nodes of 8 last-level caches; growth should stay near n log n.

#![allow(missing_docs, reason = "criterion's macros make public items")]

#[path = "../tests/policies/made.rs"]
mod made;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use instep_core::decision::{Action, Decision};
use instep_core::policy::{PolicyName, PolicySettings, decide};
use instep_core::snapshot::Snapshot;
use instep_core::units::Nanos;
use made::{GIB, Random};
use std::hint::black_box;

/// `count` VMs of 8 vCPUs, loads and footprints at random, on `nodes` nodes of `caches` last-level
/// caches of 8 cores and 16 CPUs.
fn host(nodes: u32, caches: u32, count: u32) -> Snapshot {
    let mut random = Random(u64::from(nodes * count));
    let mut host = made::host(made::topology_of_caches(nodes, caches, 8, 2, 512 * GIB));
    for id in 1..=count {
        let mut mib: Vec<u64> = (0..nodes).map(|_| random.within(0, 200)).collect();
        mib[random.within(0, u64::from(nodes) - 1) as usize] += 2000;
        let mut vm = made::vm(&host, id, 8, 0, &mib);
        let level = random.within(1, 64_000 / u64::from(count).max(64));
        for vcpu in &mut vm.vcpus {
            vcpu.busy = Nanos(made::WINDOW.0 / 1000 * random.within(0, level));
        }
        host.vms.push(vm);
    }
    host
}

/// The host after the agent did what was decided.
fn settled(mut host: Snapshot, decision: &Decision) -> Snapshot {
    for (vm, verdict) in host.vms.iter_mut().zip(&decision.vms) {
        vm.placed = verdict.home.clone();
    }
    for action in &decision.actions {
        if let Action::SetVcpuAffinity { vm, vcpu, cpus, .. } = action
            && let Ok(at) = host.vms.binary_search_by_key(vm, |vm| vm.id)
        {
            host.vms[at].vcpus[*vcpu as usize].allowed = cpus.clone();
        }
    }
    host
}

fn benchmark(criterion: &mut Criterion) {
    for (nodes, caches) in [(4, 1), (8, 1), (8, 8)] {
        let name = format!("decide/{nodes}-nodes-of-{caches}-caches");
        let mut group = criterion.benchmark_group(name);
        for count in [10, 100, 1000, 10_000] {
            let host = host(nodes, caches, count);
            group.throughput(Throughput::Elements(u64::from(count)));
            if count >= 1000 {
                group.sample_size(10);
            }
            for policy in PolicyName::ALL {
                let settings = PolicySettings { policy, ..PolicySettings::default() };
                group.bench_with_input(
                    BenchmarkId::new(policy.as_str(), count),
                    &host,
                    |b, host| {
                        b.iter(|| decide(black_box(host), &settings));
                    },
                );
            }
            let settings = PolicySettings::default();
            let settled = settled(host.clone(), &decide(&host, &settings));
            let id = BenchmarkId::new("instep-settled", count);
            group.bench_with_input(id, &settled, |b, host| {
                b.iter(|| decide(black_box(host), &settings));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, benchmark);
criterion_main!(benches);
