//! What the policy of an earlier commit reached on the same hosts, from a file: scenarios/placement/before.json (schema
//! `instep.placement.before/1`). It has no code here any more, so its speeds are kept.
//!
//! The file also has what `none` reached there, in one run. Where that is not what `none` reaches in its first run now, the
//! simulator or the host is another one, and the numbers of that host do not count.

use crate::placement::found::{Found, RULES, SCHEDULERS};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;

/// By how much the speed under `none` may differ.
const SAME: f64 = 0.005;

/// Gives each host the speeds that the earlier policy reached on it, and notes for how many that cannot be.
pub(crate) fn add(root: &Path, found: &mut Found) -> Result<()> {
    let path = root.join("scenarios/placement/before.json");
    let text = std::fs::read_to_string(&path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let kept: Value =
        serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))?;
    add_kept(&kept, found);
    Ok(())
}

fn add_kept(kept: &Value, found: &mut Found) {
    let none = RULES.iter().position(|rule| *rule == "none").expect("a rule of that name");
    let entries = kept["hosts"].as_array().map_or(&[][..], Vec::as_slice);
    let speeds = |entry: &Value, rule: &str| -> Option<[f64; 2]> {
        let [first, second] = SCHEDULERS.map(|scheduler| entry[rule][scheduler].as_f64());
        first.zip(second).map(|(first, second)| [first, second])
    };
    let (mut unknown, mut others) = (0, 0);
    for host in &mut found.hosts {
        let entry = entries.iter().find(|entry| entry["name"] == host.name.as_str());
        let both = entry.and_then(|entry| Some((speeds(entry, "before")?, speeds(entry, "none")?)));
        let Some((before, then)) = both else {
            unknown += 1;
            continue;
        };
        let is_same = |at: usize| (then[at] - host.first_run(at, none)).abs() <= SAME;
        if (0..2).all(is_same) {
            host.before = Some(before);
        } else {
            others += 1;
        }
    }
    for (count, why) in [
        (unknown, "are not in before.json"),
        (others, "are simulated otherwise than for before.json"),
    ] {
        if count > 0 {
            let commit = kept["commit"].as_str().unwrap_or("an earlier commit");
            found.notes.push(format!(
                "{count} hosts {why}: they do not count where the policy of {commit} is compared"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::found::tests::host;
    use serde_json::json;

    #[test]
    fn only_hosts_that_are_simulated_as_then_have_earlier_speeds() {
        let mut found = Found {
            hosts: ["same", "changed", "new"].map(|name| host(name, 0.6)).into(),
            ..Found::default()
        };
        let entry = |name: &str, none: f64| {
            json!({ "name": name, "before": { "eevdf": 0.7, "instep": 0.8 },
                    "none": { "eevdf": none, "instep": 0.5 } })
        };
        let hosts = [entry("same", 0.5), entry("changed", 0.6)];
        add_kept(&json!({ "commit": "b4f841e", "hosts": hosts }), &mut found);
        let before: Vec<_> = found.hosts.iter().map(|host| host.before).collect();
        assert_eq!(before, [Some([0.7, 0.8]), None, None]);
        assert_eq!(found.notes.len(), 2, "{:?}", found.notes);
    }

    #[test]
    fn kept_file_has_speeds_of_each_host_that_is_drawn() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/placement/before.json");
        let kept: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let names: Vec<&str> = kept["hosts"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|host| host["name"].as_str())
            .collect();
        let random: Vec<String> = (1..=40).map(|seed| format!("random {seed}")).collect();
        assert!(random.iter().all(|name| names.contains(&name.as_str())), "{names:?}");
        let hosts = names.iter().map(|name| host(name, 0.6)).collect();
        let mut found = Found { hosts, ..Found::default() };
        add_kept(&kept, &mut found);
        assert!(
            found.notes.iter().all(|note| note.contains("simulated otherwise")),
            "{:?}",
            found.notes
        );
    }
}
