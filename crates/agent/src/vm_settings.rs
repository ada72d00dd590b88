//! The settings of one VM: what its own definition says, and what the configuration says of it.
//!
//! ```text
//! libvirt metadata --says it?--> Proxmox tag --says it?--> [dispatch.vm.NAME] --says it?--> the default
//! ```
//! The first that says a setting wins, for each setting by itself. A value that is none counts as not said. Whoever
//! may define a VM may weigh and pin it by libvirt's own means, so that this gives nobody new power; an operator
//! who wants the configuration alone to count sets `vm_settings = false` under `[discover]`.

use crate::config::dispatch::{VmConfig, period_of, weight_of};
use crate::sink::Sink;
use instep_core::wording::printable;
use instep_host::discover::definition::Setting;
use instep_host::discover::{Origin, Scan, VmFacts};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

/// Settings, each with what it may be.
const KEYS: [(&str, &str); 5] = [
    ("weight", "a number from 1 to 10000"),
    ("period", "a duration from 1ms to 1s, such as 24ms"),
    ("cosched", "auto, never or relaxed"),
    ("latency", "normal or prompt"),
    ("ignore", "yes or no"),
];

/// The settings of one VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmSettings {
    /// For the kernel scheduler.
    pub values: VmConfig,
    /// All that were said, each with where it was.
    pub chosen: Vec<Chosen>,
    /// What its definition says and cannot be followed, one sentence each.
    pub problems: Vec<String>,
    /// What says that Instep is to leave it alone.
    ignored_by: Option<Source>,
}

/// A setting that is in force.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Chosen {
    /// Which one.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// Where it was said.
    pub source: Source,
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.key, self.value, self.source)
    }
}

/// Where a setting is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The VM's own definition.
    Definition(Origin),
    /// The configuration file.
    Configuration,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Definition(origin) => origin.fmt(f),
            Source::Configuration => f.write_str("configuration file"),
        }
    }
}

impl JsonSchema for Source {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Source".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "enum": ["libvirt_metadata", "proxmox_tag", "configuration"] })
    }
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Source::Definition(Origin::LibvirtMetadata) => "libvirt_metadata",
            Source::Definition(Origin::ProxmoxTag) => "proxmox_tag",
            Source::Configuration => "configuration",
        })
    }
}

impl VmSettings {
    /// Those of this VM, of which the configuration says this.
    #[must_use]
    pub fn of(vm: &VmFacts, configured: Option<&VmConfig>) -> Self {
        let mut settings = Self::default();
        let mut said: Vec<&Setting> = vm.definition.settings.iter().collect();
        said.sort_by_key(|setting| setting.origin);
        settings.problems.clone_from(&vm.definition.problems);
        let file = vm.definition.file.as_path();
        for (key, allowed) in KEYS {
            settings.choose((key, allowed), &said, file);
        }
        let unknown = said.iter().filter(|said| KEYS.iter().all(|(key, _)| *key != said.key));
        settings.problems.extend(unknown.map(|said| {
            let known = KEYS.map(|(key, _)| key).join(", ");
            format!("{} is unknown; known are {known}", written(said, file))
        }));
        if let Some(configured) = configured {
            settings.add(configured);
        }
        settings
    }

    /// Whether Instep is to leave the VM alone.
    #[must_use]
    pub fn is_ignored(&self) -> bool {
        self.ignored_by.is_some()
    }

    /// Why Instep is to leave the VM alone; `None` where it is not to.
    #[must_use]
    pub fn why_ignored(&self) -> Option<String> {
        self.ignored_by.map(|source| format!("its {source} says that Instep is to ignore it"))
    }

    /// Takes the first usable value of one setting.
    fn choose(&mut self, (key, allowed): (&'static str, &str), said: &[&Setting], file: &Path) {
        for said in said.iter().filter(|said| said.key == key) {
            let source = Source::Definition(said.origin);
            if let Some(value) = self.take(key, &said.value, source) {
                self.chosen.push(Chosen { key, value, source });
                return;
            }
            let written = written(said, file);
            self.problems.push(format!("{written} counts for nothing; it may be {allowed}"));
        }
    }

    /// Takes a value. Returns how it is shown, `None` where it is none.
    fn take(&mut self, key: &str, value: &str, source: Source) -> Option<String> {
        match key {
            "weight" => self.values.weight = Some(weight_of(value)?),
            "period" => self.values.period = Some(period_of(value)?),
            "cosched" => self.values.cosched = Some(value.parse().ok()?),
            "latency" => self.values.latency = Some(value.parse().ok()?),
            // A tag need not have a value.
            "ignore" => match (value, source) {
                ("yes", _) | ("", Source::Definition(Origin::ProxmoxTag)) => {
                    self.ignored_by = Some(source);
                    return Some("yes".to_owned());
                }
                ("no", _) => {}
                _ => return None,
            },
            _ => return None,
        }
        Some(value.to_owned())
    }

    /// Adds what the configuration says and the definition does not.
    fn add(&mut self, configured: &VmConfig) {
        let source = Source::Configuration;
        let mut note = |key, value: Option<String>| {
            self.chosen.extend(value.map(|value| Chosen { key, value, source }));
        };
        let VmConfig { weight, period, cosched, latency } = &mut self.values;
        note("weight", fill(weight, configured.weight).map(|weight| weight.to_string()));
        let period = fill(period, configured.period);
        note("period", period.map(|period| humantime::format_duration(period).to_string()));
        note("cosched", fill(cosched, configured.cosched).map(|cosched| cosched.to_string()));
        note("latency", fill(latency, configured.latency).map(|latency| latency.to_string()));
    }
}

/// Fills a place that is empty. Returns what it was filled with.
fn fill<T: Copy>(place: &mut Option<T>, value: Option<T>) -> Option<T> {
    if place.is_some() {
        return None;
    }
    *place = value;
    value
}

/// A setting as its author wrote it, and the file that it was read from.
fn written(said: &Setting, file: &Path) -> String {
    let Setting { key, value, origin } = said;
    let what = match origin {
        Origin::LibvirtMetadata => format!("the attribute {key}=\"{value}\" of its {origin}"),
        Origin::ProxmoxTag if value.is_empty() => format!("its {origin} instep-{key}"),
        Origin::ProxmoxTag => format!("its {origin} instep-{key}-{value}"),
    };
    format!("{what} ({})", file.display())
}

/// What the definitions of these VMs say and cannot be followed, one sentence each.
pub fn problems(scan: &Scan) -> impl Iterator<Item = String> {
    scan.vms.iter().flat_map(|vm| {
        let whose = format!("the VM {} (process {})", vm.name, vm.pid);
        let all = VmSettings::of(vm, None).problems.into_iter();
        all.map(move |problem| printable(&format!("{whose}: {problem}")))
    })
}

/// The problems that a run reported and that stand.
#[derive(Debug, Default)]
pub(crate) struct Reported(BTreeSet<String>);

impl Reported {
    /// Reports problems that are new.
    pub(crate) fn note(&mut self, scan: &Scan, sink: &mut dyn Sink) {
        let now: BTreeSet<String> = problems(scan).collect();
        now.difference(&self.0).for_each(|problem| sink.notice(problem));
        self.0 = now;
    }
}

#[cfg(test)]
mod tests;
