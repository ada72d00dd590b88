//! What a run would do with the kernel scheduler, for `instep run --dry-run`.

use super::{decide, places};
use crate::config::Config;
use crate::observe::Observer;
use instep_host::Root;
use instep_host::discover::isolated_cpus;
use instep_kernel::table::LIMITS;
use instep_kernel::{LoadPlan, Mode, VmEntry, VmTable};

/// What a run with this configuration would do with the kernel scheduler, in sentences; nothing is
/// loaded.
#[must_use]
pub fn preview(config: &Config, observer: &Observer) -> Vec<String> {
    let (trust, config) = (config.trust(), &config.dispatch);
    if config.mode == Mode::Off {
        return Vec::new();
    }
    let (vms, plan) = decide((config, &trust), &observer.scanner());
    let why = match (plan, places(observer.topology(), &isolated_cpus(&Root::live()))) {
        (LoadPlan::Stay(why) | LoadPlan::Busy(why), _) | (LoadPlan::Load, Err(why)) => why,
        (LoadPlan::Load, Ok(_)) => {
            let (table, mut warnings) = VmTable::default().renumbered(vms.0, LIMITS);
            let mut said = vec![format!(
                "a run would load Instep's kernel scheduler for the whole host, with {} VMs",
                table.vms.len()
            )];
            said.extend(table.vms.iter().map(|placed| described(&placed.entry)));
            if config.keeps_homes() {
                said.push(
                    "vCPUs of VMs with one home node would not be bound to it: the scheduler \
                     would keep them there"
                        .to_owned(),
                );
            }
            warnings.extend(vms.1);
            said.extend(warnings);
            return said;
        }
    };
    let end = if config.mode == Mode::Kernel { "a run would end here" } else { "it would stay" };
    vec![format!("the kernel's default scheduler is in force, and {end}: {why}")]
}

/// The settings that the scheduler would have for one VM.
fn described(entry: &VmEntry) -> String {
    format!(
        "{}: {} vCPUs, weight {}, period {}, co-scheduling {}, latency {}",
        entry.name,
        entry.vcpus.len(),
        entry.weight,
        humantime::format_duration(entry.period),
        entry.cosched,
        entry.latency
    )
}
