//! Results as Parquet: a row for each VM of each run, for notebooks and databases. Columns have the
//! names and units of the JSON (schema `instep.sim/1`), of what lies deeper joined by underscores
//! (`wait_p50_ns`, `waits_sibling_ns`, `lag_latest_ns`, `host_switches_per_s`); what is null there is null
//! here. Lists are left out, but that `late_ns` is `late_mean_ns` and `late_max_ns`, and of
//! `host.utilisation` the sum is `host_busy_cpus`.

mod format;

use format::Column;
pub(super) use format::Values;
use instep_sim::report::{SimulatedVm, SimulationReport};
use std::io::{self, Write};

/// Writes the VMs of these runs.
pub(super) fn write(out: impl Write, reports: &[SimulationReport]) -> io::Result<()> {
    format::write(out, "instep_sim", &columns(reports))
}

/// The columns of these runs.
pub(super) fn columns(reports: &[SimulationReport]) -> Vec<Column> {
    let rows = || reports.iter().flat_map(|run| run.vms.iter().map(move |vm| (run, vm)));
    let text = |of: &dyn Fn(&SimulationReport, &SimulatedVm) -> String| {
        Values::Text(rows().map(|(run, vm)| of(run, vm)).collect())
    };
    let count = |of: &dyn Fn(&SimulationReport, &SimulatedVm) -> Option<u64>| {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        Values::Count(rows().map(|(run, vm)| of(run, vm).map(number)).collect())
    };
    let real = |of: &dyn Fn(&SimulationReport, &SimulatedVm) -> Option<f64>| {
        Values::Real(rows().map(|(run, vm)| of(run, vm)).collect())
    };
    vec![
        // Seeds are 64 bits wide; beyond 63 they would not fit a signed number.
        ("seed", text(&|run, _| run.seed.to_string())),
        ("scheduler", text(&|run, _| run.scheduler.clone())),
        ("machine", text(&|run, _| run.machine.clone())),
        ("events", count(&|run, _| Some(run.events))),
        ("duration_ns", count(&|run, _| Some(run.duration_ns))),
        ("host_cpus", count(&|run, _| Some(run.host.cpus as u64))),
        ("host_busy_cpus", real(&|run, _| Some(run.host.utilisation.iter().sum()))),
        ("host_switches_per_s", real(&|run, _| Some(run.host.switches_per_s))),
        ("host_preemptions_per_s", real(&|run, _| Some(run.host.preemptions_per_s))),
        ("host_yields_per_s", real(&|run, _| Some(run.host.yields_per_s))),
        ("host_boosts_per_s", real(&|run, _| run.host.boosts_per_s)),
        ("competing_modules", real(&|run, _| Some(run.host.competing_modules))),
        ("name", text(&|_, vm| vm.name.clone())),
        ("type", count(&|_, vm| vm.kind.map(u64::from))),
        ("unit", text(&|_, vm| vm.unit.to_owned())),
        ("lived_ns", count(&|_, vm| Some(vm.lived_ns))),
        ("took_ns", count(&|_, vm| vm.took_ns)),
        ("throughput", real(&|_, vm| Some(vm.throughput))),
        ("alone", real(&|_, vm| vm.alone)),
        ("fair_share", real(&|_, vm| vm.fair_share)),
        ("fair_share_speed", real(&|_, vm| vm.fair_share_speed)),
        ("potential", real(&|_, vm| vm.potential)),
        ("efficiency", real(&|_, vm| vm.efficiency)),
        ("lag_lag", real(&|_, vm| vm.lag.as_ref().map(|lag| lag.lag))),
        ("lag_quantum_ns", count(&|_, vm| vm.lag.as_ref().map(|lag| lag.quantum_ns))),
        ("lag_rate", real(&|_, vm| vm.lag.as_ref().map(|lag| lag.rate))),
        ("lag_e_t", real(&|_, vm| vm.lag.as_ref().map(|lag| lag.e_t))),
        ("lag_latest_ns", count(&|_, vm| vm.lag.as_ref().map(|lag| lag.latest_ns))),
        ("lag_ideal_ns", count(&|_, vm| vm.lag.as_ref().map(|lag| lag.ideal_ns))),
        ("stacking", real(&|_, vm| Some(vm.stacking))),
        ("co_run", real(&|_, vm| Some(vm.co_run))),
        ("max_skew_ns", count(&|_, vm| Some(vm.max_skew_ns))),
        ("cpus", real(&|_, vm| Some(vm.cpus))),
        ("parallelism", real(&|_, vm| Some(vm.parallelism))),
        ("spinning", real(&|_, vm| Some(vm.spinning))),
        ("steal", real(&|_, vm| Some(vm.steal))),
        ("locality", real(&|_, vm| Some(vm.locality))),
        ("local_access", real(&|_, vm| Some(vm.local_access))),
        ("blocks_per_s", real(&|_, vm| Some(vm.blocks_per_s))),
        ("migrations_per_s", real(&|_, vm| Some(vm.migrations_per_s))),
        ("wait_count", count(&|_, vm| Some(vm.wait.count))),
        ("wait_mean_ns", count(&|_, vm| Some(vm.wait.mean_ns))),
        ("wait_p50_ns", count(&|_, vm| Some(vm.wait.p50_ns))),
        ("wait_p90_ns", count(&|_, vm| Some(vm.wait.p90_ns))),
        ("wait_p99_ns", count(&|_, vm| Some(vm.wait.p99_ns))),
        ("wait_max_ns", count(&|_, vm| Some(vm.wait.max_ns))),
        ("waits_sibling_ns", count(&|_, vm| Some(vm.waits.sibling_ns))),
        ("waits_timer_ns", count(&|_, vm| Some(vm.waits.timer_ns))),
        ("waits_io_ns", count(&|_, vm| Some(vm.waits.io_ns))),
        ("late_mean_ns", count(&|_, vm| vm.late_ns.map(|late| late[0]))),
        ("late_max_ns", count(&|_, vm| vm.late_ns.map(|late| late[1]))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_sim::scenario::Scenario;
    use instep_sim::scenario::build::SimulationPlan;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;

    #[test]
    fn what_is_written_is_read_back_row_by_row_with_its_nulls() {
        let text = r#"about = "x"
            scheduler = "cfs"
            duration = "50ms"
            warmup = "0s"
            host = { cores = 2, memory = "4GiB" }
            guest = [{ name = "a", vcpus = 2, memory = "1GiB", load = "spin" },
                     { name = "b", vcpus = 1, memory = "1GiB", load = "idle" }]"#;
        let plan =
            SimulationPlan::new(&Scenario::parse(text).unwrap(), &|_| Err(String::new())).unwrap();
        let reports = plan.reports(2, &mut (), &|_| (), &|| false);
        let mut bytes = Vec::new();
        write(&mut bytes, &reports).unwrap();
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 4);
        let at = |row: usize, name: &str| -> Field {
            rows[row].get_column_iter().find(|column| column.0 == name).unwrap().1.clone()
        };
        // Every column is in the JSON by the rule of the module, but what it names.
        let json = serde_json::to_value(&reports[0]).unwrap();
        for (name, _) in rows[0].get_column_iter() {
            let own = ["late_mean_ns", "late_max_ns", "host_busy_cpus"].contains(&name.as_str());
            let deep = name.split_once('_').is_some_and(|(outer, inner)| {
                json[outer].get(inner).is_some() || json["vms"][0][outer].get(inner).is_some()
            });
            let plain = json.get(name).is_some() || json["vms"][0].get(name).is_some();
            assert!(own || deep || plain, "{name}");
        }
        let scalars = json["vms"][0].as_object().unwrap().iter();
        for (name, _) in scalars.filter(|(_, value)| value.is_number() || value.is_string()) {
            assert!(rows[0].get_column_iter().any(|column| column.0 == name), "{name}");
        }
        assert_eq!(at(0, "type"), Field::Long(json["vms"][0]["type"].as_i64().unwrap()));
        assert_eq!(at(0, "name"), Field::Str("a".to_owned()));
        assert_eq!(at(0, "throughput"), Field::Double(reports[0].vms[0].throughput));
        assert_eq!(
            (at(1, "name"), at(1, "late_mean_ns")),
            (Field::Str("b".to_owned()), Field::Null)
        );
        assert_eq!(
            (at(0, "seed"), at(2, "seed")),
            (Field::Str("1".into()), Field::Str("2".into()))
        );
    }
}
