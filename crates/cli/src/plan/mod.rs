//! `instep plan`: what `run` would change and why.

mod elsewhere;
mod script;
mod text;
mod xl;

use crate::analyze::topology_file;
use crate::args::{PlanArgs, PlanFormat};
use crate::observe::{Observed, observe};
use crate::{Outcome, print, print_json};
use instep_agent::config::Config;
use instep_agent::view::{self, ActionView, ConflictView, VerdictView};
use instep_core::policy::PolicyName;
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Duration;

/// `instep.plan/1`.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Plan")]
pub(crate) struct PlanJson<'a> {
    #[schemars(extend("const" = "instep.plan/1"))]
    schema: &'static str,
    policy: PolicyName,
    window_ns: u64,
    vms: Vec<VerdictView<'a>>,
    actions: Vec<ActionView<'a>>,
    conflicts: Vec<ConflictView<'a>>,
    left_alone: &'a [instep_core::snapshot::OpaqueVm],
    warnings: &'a [String],
}

pub(crate) fn command(args: &PlanArgs) -> anyhow::Result<Outcome> {
    // The interval is no matter here, but a window may not be longer.
    let interval = args.host.window.map(|window| window.max(Duration::from_secs(60)));
    let config = crate::run::config(&args.policy, interval, args.host.window)?;
    let format = if args.json { PlanFormat::Json } else { args.format };
    let is_text = matches!(format, PlanFormat::Text | PlanFormat::Json);
    anyhow::ensure!(
        is_text || args.elsewhere.is_none(),
        "--for plans for VMs that are not there yet, so that a script would name others; leave --format out"
    );
    let mut observed = observe(&args.host, &config, Some(&config.trust()))?;
    if let Some(file) = &args.elsewhere {
        let (there, lost) = elsewhere::arrived(&observed.snapshot, topology_file::read(file)?);
        observed.snapshot = there;
        observed.warnings.extend(lost);
    }
    let is_xen = observed.xen.is_some();
    let decision = match is_xen {
        true => instep_agent::xen::decide(&observed.snapshot, &config.settings()),
        false => instep_agent::decide(&observed.snapshot, &config, 1),
    };
    let decision = match args.elsewhere {
        Some(_) => elsewhere::without_moves(decision),
        None => decision,
    };
    let snapshot = &observed.snapshot;
    check_format(format, is_xen)?;
    match format {
        PlanFormat::Json => print_json(&json(&observed, &config, &decision))?,
        PlanFormat::Virsh => {
            let uuid = |vm| observed.libvirt_uuid(vm);
            print(&script::virsh(snapshot, &decision, uuid))?;
        }
        PlanFormat::Xl => print(&xl::script(snapshot, &decision))?,
        PlanFormat::Taskset => print(&script::taskset(snapshot, &decision))?,
        PlanFormat::Text => {
            let (policy, width) = (config.policy, crate::text::width());
            let scan = &observed.scan;
            let plan =
                text::PlanText { snapshot, scan, decision: &decision, policy, width, is_xen };
            print(&plan.to_string())?;
            print(&observed.left_alone(crate::text::width()))?;
        }
    }
    observed.report_warnings(format == PlanFormat::Json);
    Ok(Outcome::Fine)
}

/// Refuses a script for another hypervisor.
fn check_format(format: PlanFormat, is_xen: bool) -> anyhow::Result<()> {
    let wrong = match format {
        PlanFormat::Virsh | PlanFormat::Taskset => is_xen,
        PlanFormat::Xl => !is_xen,
        PlanFormat::Text | PlanFormat::Json => false,
    };
    let (is, right) =
        if is_xen { ("a Xen host", "xl") } else { ("no Xen host", "virsh or taskset") };
    anyhow::ensure!(!wrong, "this is {is}, so that script would do nothing; use --format {right}");
    Ok(())
}

fn json<'a>(
    observed: &'a Observed,
    config: &Config,
    decision: &'a instep_core::decision::Decision,
) -> PlanJson<'a> {
    let snapshot = &observed.snapshot;
    PlanJson {
        schema: "instep.plan/1",
        policy: config.policy,
        window_ns: snapshot.window.0,
        vms: view::verdicts(snapshot, decision),
        actions: decision.actions.iter().map(|a| view::action(snapshot, a)).collect(),
        conflicts: view::conflicts(snapshot, &decision.conflicts),
        left_alone: &snapshot.opaque,
        warnings: &observed.warnings,
    }
}
