//! Whether the kernel scheduler is loaded: a pure function of what was asked and what was found.

use crate::cookies;
use crate::probe::{Probe, State};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Load it where that is possible and safe.
    Auto,
    /// Load it, or fail.
    Kernel,
    /// Leave the kernel's scheduler alone.
    #[default]
    Off,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "kernel" => Ok(Self::Kernel),
            "off" => Ok(Self::Off),
            _ => Err(format!("unknown dispatch `{text}`: known are auto, kernel, off")),
        }
    }
}

/// What to do, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadPlan {
    /// Load it.
    Load,
    /// Leave it; the sentence says why.
    Stay(String),
    /// Leave it for now: somebody else's scheduler is loaded, one is just coming or going, or VMs have core-scheduling
    /// cookies.
    Busy(String),
}

/// Whether this build can load a scheduler at all.
pub const BUILT: bool = cfg!(feature = "kernel");

pub use instep_abi::{MAX_CPUS, MAX_DOMAINS};

/// Decides. `despite_cookies`: the operator accepts that core scheduling and sched_ext meet.
#[must_use]
pub fn plan(mode: Mode, probe: &Probe, built: bool, despite_cookies: bool) -> LoadPlan {
    let stay = |why: &str| LoadPlan::Stay(why.to_owned());
    if mode == Mode::Off {
        return stay("Instep's was not asked for (--dispatch auto)");
    }
    if !built {
        return stay(
            "this build of instep has no kernel scheduler (feature `kernel`): `cargo xtask bpf-clang` \
             says what building it lacks",
        );
    }
    match &probe.state {
        None => {
            return LoadPlan::Stay(format!(
                "Linux {} has no sched_ext (CONFIG_SCHED_CLASS_EXT, 6.12 or later)",
                probe.release
            ));
        }
        Some(State::Enabled) => {
            return LoadPlan::Busy(format!("{} is loaded; end it first", probe.in_force()));
        }
        Some(State::Other(state)) => {
            return LoadPlan::Busy(format!("sched_ext is in the state `{state}`; try again"));
        }
        Some(State::Disabled) => {}
    }
    if !probe.may_load {
        return stay("to load it takes root, or CAP_BPF and CAP_PERFMON");
    }
    if probe.possible_cpus > MAX_CPUS {
        return LoadPlan::Stay(format!(
            "{} CPUs are possible on this host, and Instep's scheduler has room for {MAX_CPUS} \
             (those that may be plugged in count: where there are no more, `nr_cpus={MAX_CPUS}` on the \
             kernel's command line tells it so)",
            probe.possible_cpus
        ));
    }
    if !probe.btf {
        return stay("the kernel does not describe its types (/sys/kernel/btf/vmlinux)");
    }
    if let Some(why) = &probe.btf_error {
        return LoadPlan::Stay(format!(
            "the kernel's description of its types (/sys/kernel/btf/vmlinux) cannot be read: {why}"
        ));
    }
    if !probe.malformed.is_empty() {
        return LoadPlan::Stay(format!(
            "this kernel describes functions of sched_ext wrongly ({}), so that no scheduler can be \
             loaded: it was built with pahole before 1.26; boot another build of Linux",
            few(&probe.malformed)
        ));
    }
    if !probe.missing.is_empty() {
        return LoadPlan::Stay(format!(
            "Linux {} lacks functions of sched_ext that Instep's scheduler calls ({})",
            probe.release,
            few(&probe.missing)
        ));
    }
    if !probe.config {
        return LoadPlan::Stay(format!(
            "the kernel's configuration is not at /boot/config-{} or /proc/config.gz",
            probe.release
        ));
    }
    // A VM with cookies ends some day, or its VMM is started without.
    if let Some(why) = cookies::forbid(probe.smt, &probe.cookies, despite_cookies) {
        return LoadPlan::Busy(why);
    }
    LoadPlan::Load
}

/// The first three, and how many more.
fn few(names: &[String]) -> String {
    let more = names.len().saturating_sub(3);
    let shown = names[..names.len() - more].join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fine() -> Probe {
        Probe {
            release: "7.2.13".into(),
            state: Some(State::Disabled),
            btf: true,
            config: true,
            may_load: true,
            possible_cpus: 8,
            ..Probe::default()
        }
    }

    fn names(each: &str) -> Vec<String> {
        each.chars().map(String::from).collect()
    }

    fn why(mode: Mode, probe: &Probe) -> String {
        match plan(mode, probe, true, false) {
            LoadPlan::Load => "load".to_owned(),
            LoadPlan::Stay(why) | LoadPlan::Busy(why) => why,
        }
    }

    #[test]
    fn it_is_loaded_where_nothing_speaks_against_it() {
        assert_eq!(why(Mode::Auto, &fine()), "load");
        assert_eq!(why(Mode::Kernel, &fine()), "load");
        assert!(why(Mode::Off, &fine()).contains("not asked for"));
    }

    #[test]
    fn each_danger_keeps_it_out_with_its_reason() {
        let cookies = Probe { smt: true, cookies: names("x"), ..fine() };
        let other = Probe { state: Some(State::Enabled), ops: Some("lavd".into()), ..fine() };
        for (probe, said) in [
            (Probe { state: None, ..fine() }, "has no sched_ext"),
            (other, "lavd is loaded"),
            (Probe { state: Some(State::Other("enabling".into())), ..fine() }, "`enabling`"),
            (Probe { may_load: false, ..fine() }, "takes root, or CAP_BPF"),
            (Probe { possible_cpus: 1025, ..fine() }, "1025 CPUs are possible on this host"),
            (Probe { btf: false, ..fine() }, "btf"),
            (Probe { btf_error: Some("cut at byte 9".into()), ..fine() }, "cut at byte 9"),
            (Probe { malformed: names("abcd"), ..fine() }, "wrongly (a, b, c and 1 more)"),
            (Probe { missing: names("x"), ..fine() }, "Instep's scheduler calls (x)"),
            (Probe { config: false, ..fine() }, "/boot/config-7.2.13"),
            (cookies.clone(), "3715"),
        ] {
            assert!(why(Mode::Auto, &probe).contains(said), "{said}");
        }
        assert_eq!(plan(Mode::Auto, &cookies, true, true), LoadPlan::Load);
        assert_eq!(plan(Mode::Auto, &Probe { smt: false, ..cookies }, true, false), LoadPlan::Load);
    }

    #[test]
    fn passing_obstacles_are_distinguished_from_lasting_ones() {
        let state = |state| plan(Mode::Auto, &Probe { state, ..fine() }, true, false);
        assert!(matches!(state(Some(State::Enabled)), LoadPlan::Busy(_)));
        assert!(matches!(state(Some(State::Other("disabling".into()))), LoadPlan::Busy(_)));
        assert!(matches!(state(None), LoadPlan::Stay(_)));
        let cpus =
            |possible_cpus| plan(Mode::Auto, &Probe { possible_cpus, ..fine() }, true, false);
        assert!(matches!(cpus(MAX_CPUS + 1), LoadPlan::Stay(_)), "no CPU goes by waiting");
        assert_eq!(cpus(MAX_CPUS), LoadPlan::Load);
        let cookies = Probe { smt: true, cookies: names("x"), ..fine() };
        assert!(matches!(plan(Mode::Auto, &cookies, true, false), LoadPlan::Busy(_)));
    }

    #[test]
    fn a_build_without_it_says_so() {
        assert!(
            matches!(plan(Mode::Auto, &fine(), false, false), LoadPlan::Stay(why) if why.contains("feature"))
        );
    }
}
