//! Where the policy of an earlier commit placed the guests of the same hosts, from a file: scenarios/placement/before.json
//! (schema `instep.placement.before/2`). It has no code here any more, so its placements are kept and simulated with all others.

use crate::placement::jobs::Job;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;

/// Gives each job whose guests are simulated the placements that the earlier policy chose. Returns what cannot be compared.
pub(crate) fn add(root: &Path, jobs: &mut [Job]) -> Result<Option<String>> {
    let path = root.join("scenarios/placement/before.json");
    let text = std::fs::read_to_string(&path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let kept: Value =
        serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))?;
    Ok(add_kept(&kept, jobs))
}

fn add_kept(kept: &Value, jobs: &mut [Job]) -> Option<String> {
    let mut unknown = 0;
    for job in jobs.iter_mut().filter(|job| job.kind() == "speeds") {
        match kept["hosts"].get(&job.host) {
            Some(placements) => job.text["before"] = placements.clone(),
            None => unknown += 1,
        }
    }
    let commit = kept["commit"].as_str().unwrap_or("an earlier commit");
    let why = "are not in before.json: they do not count where the policy of";
    (unknown > 0).then(|| format!("{unknown} hosts {why} {commit} is compared"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_options;
    use crate::placement::jobs::list_jobs;
    use crate::placement::options::Options;
    use serde_json::json;

    #[test]
    fn hosts_of_the_file_get_its_placements() {
        let options = Options { hosts: 2, gaps: 1, ..parse_options(&[]).unwrap() };
        let mut jobs = list_jobs(&options, &[]);
        let placements = json!({ "eevdf": [], "instep": [] });
        let kept = json!({ "commit": "b4f841e", "hosts": { "random 2": placements } });
        let note = add_kept(&kept, &mut jobs).unwrap();
        assert!(note.starts_with("1 hosts are not in before.json"), "{note}");
        let of = |host: &str, kind: &str| {
            jobs.iter().find(|job| job.host == host && job.kind() == kind).unwrap()
        };
        assert_eq!(of("random 2", "speeds").text["before"], placements);
        assert!(of("random 1", "speeds").text["before"].is_null());
        assert!(of("random 1", "gap").text["before"].is_null());
    }

    #[test]
    fn kept_file_has_placements_on_each_host_that_is_drawn() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut jobs = list_jobs(&parse_options(&[]).unwrap(), &[]);
        assert_eq!(add(&root, &mut jobs).unwrap(), None);
        for job in jobs.iter().filter(|job| job.kind() == "speeds") {
            for scheduler in crate::placement::found::SCHEDULERS {
                let vms = job.text["before"][scheduler].as_array().unwrap();
                assert!(vms.len() >= 3, "{}: {} VMs", job.host, vms.len());
            }
        }
    }
}
