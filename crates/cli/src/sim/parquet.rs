//! Results as Parquet: a row for each VM of each run, for notebooks and databases. Columns have the
//! names and units of the JSON (schema `instep.sim/1`); what is null there is null here.

use instep_sim::report::{Report, VmReport};
use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use std::io::Write;
use std::sync::Arc;

/// A column's values.
enum Values {
    Text(Vec<String>),
    Count(Vec<Option<i64>>),
    Real(Vec<Option<f64>>),
}

/// Writes the VMs of these runs.
pub(super) fn write(out: impl Write + Send, reports: &[Report]) -> anyhow::Result<()> {
    let columns = columns(reports);
    let fields = columns.iter().map(|(name, values)| field(name, values).map(Arc::new));
    let fields = fields.collect::<Result<Vec<_>>>()?;
    let schema = Type::group_type_builder("instep_sim").with_fields(fields).build()?;
    let settings = WriterProperties::builder().set_compression(Compression::UNCOMPRESSED).build();
    let mut file = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(settings))?;
    let mut rows = file.next_row_group()?;
    for (name, values) in &columns {
        let missing = || ParquetError::General(format!("column {name} is not in the schema"));
        let mut column = rows.next_column()?.ok_or_else(missing)?;
        fill(column.untyped(), values)?;
        column.close()?;
    }
    rows.close()?;
    file.close()?;
    Ok(())
}

fn field(name: &str, values: &Values) -> Result<Type> {
    let builder = |physical| Type::primitive_type_builder(name, physical);
    match values {
        Values::Text(_) => builder(Physical::BYTE_ARRAY)
            .with_logical_type(Some(LogicalType::String))
            .with_repetition(Repetition::REQUIRED)
            .build(),
        Values::Count(_) => builder(Physical::INT64).with_repetition(Repetition::OPTIONAL).build(),
        Values::Real(_) => builder(Physical::DOUBLE).with_repetition(Repetition::OPTIONAL).build(),
    }
}

fn fill(column: &mut ColumnWriter<'_>, values: &Values) -> Result<()> {
    fn present<T: Copy>(values: &[Option<T>]) -> (Vec<T>, Vec<i16>) {
        let levels = values.iter().map(|value| i16::from(value.is_some())).collect();
        (values.iter().copied().flatten().collect(), levels)
    }
    match (column, values) {
        (ColumnWriter::ByteArrayColumnWriter(column), Values::Text(values)) => {
            let values: Vec<ByteArray> =
                values.iter().map(|text| ByteArray::from(text.as_str())).collect();
            column.write_batch(&values, None, None)?;
        }
        (ColumnWriter::Int64ColumnWriter(column), Values::Count(values)) => {
            let (values, levels) = present(values);
            column.write_batch(&values, Some(&levels), None)?;
        }
        (ColumnWriter::DoubleColumnWriter(column), Values::Real(values)) => {
            let (values, levels) = present(values);
            column.write_batch(&values, Some(&levels), None)?;
        }
        _ => return Err(ParquetError::General("a column has another type than its values".into())),
    }
    Ok(())
}

fn columns(reports: &[Report]) -> Vec<(&'static str, Values)> {
    let rows = || reports.iter().flat_map(|run| run.vms.iter().map(move |vm| (run, vm)));
    let text = |of: &dyn Fn(&Report, &VmReport) -> String| {
        Values::Text(rows().map(|(run, vm)| of(run, vm)).collect())
    };
    let count = |of: &dyn Fn(&Report, &VmReport) -> Option<u64>| {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        Values::Count(rows().map(|(run, vm)| of(run, vm).map(number)).collect())
    };
    let real = |of: &dyn Fn(&Report, &VmReport) -> Option<f64>| {
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
        ("competing_modules", real(&|run, _| Some(run.host.competing_modules))),
        ("name", text(&|_, vm| vm.name.clone())),
        ("type", count(&|_, vm| vm.kind.map(u64::from))),
        ("unit", text(&|_, vm| vm.unit.to_owned())),
        ("throughput", real(&|_, vm| Some(vm.throughput))),
        ("alone", real(&|_, vm| vm.alone)),
        ("fair_share", real(&|_, vm| vm.fair_share)),
        ("fair_share_speed", real(&|_, vm| vm.fair_share_speed)),
        ("potential", real(&|_, vm| vm.potential)),
        ("efficiency", real(&|_, vm| vm.efficiency)),
        ("lag_quanta", real(&|_, vm| vm.lag.as_ref().map(|lag| lag.lag))),
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
        ("blocks_per_s", real(&|_, vm| Some(vm.blocks_per_s))),
        ("migrations_per_s", real(&|_, vm| Some(vm.migrations_per_s))),
        ("wait_count", count(&|_, vm| Some(vm.wait.count))),
        ("wait_mean_ns", count(&|_, vm| Some(vm.wait.mean_ns))),
        ("wait_p50_ns", count(&|_, vm| Some(vm.wait.p50_ns))),
        ("wait_p90_ns", count(&|_, vm| Some(vm.wait.p90_ns))),
        ("wait_p99_ns", count(&|_, vm| Some(vm.wait.p99_ns))),
        ("wait_max_ns", count(&|_, vm| Some(vm.wait.max_ns))),
        ("blocked_sibling_ns", count(&|_, vm| Some(vm.waits.sibling_ns))),
        ("blocked_timer_ns", count(&|_, vm| Some(vm.waits.timer_ns))),
        ("blocked_io_ns", count(&|_, vm| Some(vm.waits.io_ns))),
        ("late_mean_ns", count(&|_, vm| vm.late_ns.map(|late| late[0]))),
        ("late_max_ns", count(&|_, vm| vm.late_ns.map(|late| late[1]))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_sim::scenario::Scenario;
    use instep_sim::scenario::build::Plan;
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
        let plan = Plan::new(&Scenario::parse(text).unwrap(), &|_| Err(String::new())).unwrap();
        let reports = plan.reports(2, &mut (), &|_| (), &|| false);
        let mut bytes = Vec::new();
        write(&mut bytes, &reports).unwrap();
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 4);
        let at = |row: usize, name: &str| -> Field {
            rows[row].get_column_iter().find(|column| column.0 == name).unwrap().1.clone()
        };
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
