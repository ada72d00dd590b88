//! The table `[dispatch]` of the configuration: how the kernel scheduler treats the host and single
//! VMs.
//!
//! ```toml
//! [dispatch]
//! mode = "auto"                  # kernel: load it or fail; off
//! host_weight = 100              # of everything that belongs to no VM, together; else by the tree of cgroups
//! without = ["moves"]            # mechanisms that are off
//! slice = "3ms"
//! slot = "6ms"                   # of gangs
//! [dispatch.vm.web]              # a VM by its name; all keys may be missing
//! weight = 200                   # else its cgroup's cpu.weight
//! period = "24ms"
//! cosched = "auto"               # which vCPUs form a gang; never, relaxed
//! latency = "prompt"             # normal
//! [[dispatch.process]]           # a plain process as a VM: its threads are the vCPUs
//! name = "job"
//! pid = 4711
//! ```

use crate::config::duration;
use instep_core::expected;
use instep_kernel::settings::{Latency, PERIODS};
use instep_kernel::{Cosched, Mechanisms, Mode, SchedulerSettings};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

/// Everything of the table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table: [dispatch], and `mode` below it")]
pub struct DispatchConfig {
    /// Whether the kernel scheduler is loaded.
    #[serde(deserialize_with = "mode")]
    pub mode: Mode,
    /// Load it although VMs have core-scheduling cookies.
    pub despite_cookies: bool,
    /// Weight of everything that belongs to no VM, together, in each scheduling domain, 1 to 10000, against VMs' own weights.
    /// When not given all weigh what the tree of cgroups says.
    #[serde(deserialize_with = "some_weight")]
    pub host_weight: Option<u32>,
    /// How long a thread runs when others wait, 500us to 100ms.
    #[serde(deserialize_with = "slice")]
    pub slice: Duration,
    /// Length of a gang slot, 500us to 100ms.
    #[serde(deserialize_with = "slice")]
    pub slot: Duration,
    /// Names of mechanisms that are off.
    #[serde(deserialize_with = "mechanisms")]
    pub without: Vec<String>,
    /// Settings of single VMs.
    pub vm: BTreeMap<String, VmConfig>,
    /// Processes that are treated as VMs.
    pub process: Vec<ProcessVm>,
}

/// Settings of one VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table: [dispatch.vm.NAME], and `weight` below it"
)]
pub struct VmConfig {
    /// 1 to 10000; its cgroup's when not given.
    #[serde(deserialize_with = "some_weight")]
    pub weight: Option<u32>,
    /// Allocation period, 1ms to 1s; 24ms when not given.
    #[serde(deserialize_with = "period")]
    pub period: Option<Duration>,
    /// Which of its vCPUs form a gang; `auto` when not given.
    #[serde(deserialize_with = "cosched")]
    pub cosched: Option<Cosched>,
    /// How promptly it is served at wake-ups; `normal` when not given.
    #[serde(deserialize_with = "latency")]
    pub latency: Option<Latency>,
}

/// A process that is treated as a VM; its threads are the vCPUs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table: [[dispatch.process]], and `name` and `pid` below it"
)]
pub struct ProcessVm {
    /// What it is called.
    pub name: String,
    /// Its process.
    #[serde(deserialize_with = "pid")]
    pub pid: u32,
}

impl Default for DispatchConfig {
    fn default() -> Self {
        let settings = SchedulerSettings::default();
        Self {
            mode: Mode::default(),
            despite_cookies: false,
            host_weight: settings.host_weight,
            slice: settings.slice,
            slot: settings.slot,
            without: Vec::new(),
            vm: BTreeMap::new(),
            process: Vec::new(),
        }
    }
}

impl DispatchConfig {
    /// What holds of the scheduler itself.
    #[must_use]
    pub fn without_vms(&self) -> Self {
        Self { vm: BTreeMap::new(), process: Vec::new(), ..self.clone() }
    }

    /// Whether the scheduler is to keep VMs on their home nodes.
    #[must_use]
    pub fn keeps_homes(&self) -> bool {
        !self.without.iter().any(|name| name == "home")
    }

    /// What is to be said where VMs have settings and nobody is there to follow them.
    #[must_use]
    pub fn idle(&self) -> Option<&'static str> {
        let is_idle = self.mode == Mode::Off && !(self.vm.is_empty() && self.process.is_empty());
        is_idle.then_some(
            "[dispatch.vm] and [[dispatch.process]] are for the kernel scheduler, which is off: add \
             --dispatch auto, or mode = \"auto\" in [dispatch]",
        )
    }

    /// What the kernel side is told.
    ///
    /// # Errors
    /// A mechanism that is none.
    pub fn settings(&self) -> Result<SchedulerSettings, String> {
        Ok(SchedulerSettings {
            host_weight: self.host_weight,
            slice: self.slice,
            slot: self.slot,
            mechanisms: Mechanisms::without(&self.without)?,
            ..SchedulerSettings::default()
        })
    }
}

/// A slice and a slot are between these: below, switching costs more than it brings; above, users notice
/// the wait.
const SLICES: [Duration; 2] = [Duration::from_micros(500), Duration::from_millis(100)];
/// As cgroups have it (`cpu.weight`).
const WEIGHTS: [u32; 2] = [1, 10_000];

// Bounds are checked where a value is read, so that the error knows the line.

fn weight<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let weight = expected::whole(deserializer, "a weight from 1 to 10000")?;
    let known = u32::try_from(weight).ok().filter(is_weight);
    let [least, most] = WEIGHTS;
    known.ok_or_else(|| Error::custom(format!("weight {weight} is not between {least} and {most}")))
}

fn is_weight(weight: &u32) -> bool {
    let [least, most] = WEIGHTS;
    (least..=most).contains(weight)
}

/// A weight as text.
pub(crate) fn weight_of(text: &str) -> Option<u32> {
    text.parse().ok().filter(is_weight)
}

/// An allocation period as text.
pub(crate) fn period_of(text: &str) -> Option<Duration> {
    let [least, most] = PERIODS;
    humantime::parse_duration(text).ok().filter(|period| (least..=most).contains(period))
}

fn some_weight<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    weight(deserializer).map(Some)
}

fn pid<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let pid = expected::whole(deserializer, "the number of a process, such as 4711")?;
    let known = u32::try_from(pid).ok().filter(|pid| *pid > 0);
    known.ok_or_else(|| Error::custom(format!("{pid} is no number of a process")))
}

/// One of a few words.
fn word<'de, D, T>(deserializer: D, what: &'static str) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err = String>,
{
    expected::text(deserializer, what)?.parse().map_err(Error::custom)
}

fn mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mode, D::Error> {
    word(deserializer, "\"auto\", \"kernel\" or \"off\"")
}

fn cosched<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Cosched>, D::Error> {
    word(deserializer, "\"auto\", \"never\" or \"relaxed\"").map(Some)
}

fn latency<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Latency>, D::Error> {
    word(deserializer, "\"normal\" or \"prompt\"").map(Some)
}

fn slice<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    duration(deserializer).and_then(|time| bounded(time, SLICES))
}

fn period<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    duration(deserializer).and_then(|time| bounded(time, PERIODS)).map(Some)
}

fn bounded<E: Error>(time: Duration, [least, most]: [Duration; 2]) -> Result<Duration, E> {
    if (least..=most).contains(&time) {
        return Ok(time);
    }
    let shown = |time| humantime::format_duration(time).to_string();
    let (time, least, most) = (shown(time), shown(least), shown(most));
    Err(E::custom(format!("{time} is not between {least} and {most}")))
}

fn mechanisms<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let names = expected::words(deserializer, "a list of mechanisms, such as [\"moves\"]")?;
    Mechanisms::without(&names).map_err(Error::custom)?;
    Ok(names)
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use instep_kernel::{Cosched, Mode};
    use std::path::Path;
    use std::time::Duration;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("i.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_of_vms_and_of_the_whole_are_read() {
        let config = parse(
            "[dispatch]\nmode = 'auto'\nslice = '2ms'\nwithout = ['gang']\n\
             [dispatch.vm.web]\nweight = 200\nperiod = '96ms'\ncosched = 'never'\n\
             [[dispatch.process]]\nname = 'job'\npid = 12\n",
        )
        .unwrap()
        .dispatch;
        assert_eq!((config.mode, config.slice), (Mode::Auto, Duration::from_millis(2)));
        let web = &config.vm["web"];
        assert_eq!((web.weight, web.cosched), (Some(200), Some(Cosched::Never)));
        assert_eq!((config.process[0].pid, config.settings().unwrap().mechanisms.0 & 1), (12, 0));
    }

    #[test]
    fn settings_without_effect_are_reported() {
        let idle = |text: &str| parse(text).unwrap().dispatch.idle().is_some();
        assert!(idle("[dispatch.vm.web]\nweight = 200\n"));
        assert!(idle("[[dispatch.process]]\nname = 'job'\npid = 12\n"));
        assert!(!idle("[dispatch]\nmode = 'auto'\n[dispatch.vm.web]\nweight = 200\n"));
        assert!(!idle("[dispatch]\nslice = '2ms'\n"));
    }

    #[test]
    fn values_out_of_bounds_are_named_with_the_bound() {
        for (text, said) in [
            ("mode = 'on'", "i.toml:2: unknown dispatch `on`: known are auto, kernel, off"),
            (
                "mode = true",
                "i.toml:2: invalid type: boolean `true`, expected \"auto\", \"kernel\"",
            ),
            ("slice = '1us'", "i.toml:2: 1us is not between 500us and 100ms"),
            ("slice = 3", "i.toml:2: invalid type: integer `3`"),
            ("slot = '1s'", "i.toml:2: 1s is not between 500us and 100ms"),
            ("episode = '6ms'", "i.toml:2: unknown field `episode`, expected one of"),
            ("host_weight = 0", "i.toml:2: weight 0 is not between 1 and 10000"),
            ("without = ['gangs']", "i.toml:2: unknown mechanism `gangs`"),
            (
                "without = 'gang'",
                "i.toml:2: invalid type: string \"gang\", expected a list of mech",
            ),
            ("[dispatch.vm.a]\nweight = 20000", "i.toml:3: weight 20000 is not between"),
            ("[dispatch.vm.a]\nweight = 10001", "i.toml:3: weight 10001 is not between"),
            ("[dispatch.vm.a]\nweight = -1", "i.toml:3: weight -1 is not between"),
            (
                "[dispatch.vm.a]\nweight = 1.5",
                "i.toml:3: invalid type: floating point `1.5`, expected a weight",
            ),
            ("\n[dispatch.vm.a]\nperiod = '2s'", "i.toml:4: 2s is not between 1ms and 1s"),
            ("[dispatch.vm.a]\nperiod = '96'", "i.toml:3: `96` is no duration such as 60s or 4ms"),
            ("[dispatch.vm.a]\nperiod = '96m", "i.toml:3: invalid"),
            (
                "[dispatch.vm.a]\ncosched = 'gang'",
                "i.toml:3: `gang` is none of auto, never, relaxed",
            ),
            (
                "[dispatch.vm.a]\ncosched = 'strict'",
                "i.toml:3: `strict` no longer exists, as other threads always fill",
            ),
            (
                "[dispatch.vm.a]\ncosched = true",
                "i.toml:3: invalid type: boolean `true`, expected \"auto\"",
            ),
            ("[dispatch.vm.a]\nlatency = '5ms'", "i.toml:3: `5ms` is none of normal, prompt"),
            (
                "[dispatch.vm.a]\nlatency = 5",
                "i.toml:3: invalid type: integer `5`, expected \"normal\" or",
            ),
            ("[dispatch.vm.a]\nwight = 1", "i.toml:3: unknown field `wight`"),
            (
                "[dispatch.vm]\na = 200",
                "i.toml:3: invalid type: integer `200`, expected a table: [dispatch.vm.N",
            ),
            (
                "[[dispatch.process]]\nname = 'a'\npid = -7",
                "i.toml:4: -7 is no number of a process",
            ),
            (
                "[[dispatch.process]]\nname = 'a'\npid = '7'",
                "i.toml:4: invalid type: string \"7\", expected the number",
            ),
            ("[[dispatch.process]]\nname = 'a'", "i.toml:2: missing field `pid`"),
        ] {
            let error = parse(&format!("[dispatch]\n{text}\n")).unwrap_err();
            assert!(error.starts_with(said), "{text}: {error}");
        }
    }
}
