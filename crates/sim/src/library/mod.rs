//! The libraries that scenarios name: machines and profiles of applications, each a TOML file of
//! scenarios/library in which every number stands with its source.
//!
//! ```toml
//! like = "generic"                 # where this file says nothing
//! [costs]
//! context_switch = { is = "1500ns", source = "lmbench lat_ctx" }
//! ```
//! The files are built in and read at first use. Gives plain numbers; knows no model that uses them.

mod applications;
mod machines;

pub use applications::{Application, application, applications};
#[cfg(test)]
pub use machines::assumed;
pub use machines::{Shape, chosen, machine, machine_names, machine_with, shape_of};

use serde::Deserialize;
use toml::Value;

/// A value and where it is from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Given<T> {
    is: T,
    source: String,
}

impl<T> Given<T> {
    fn checked(self, place: &str) -> Result<T, String> {
        match self.source.trim().is_empty() {
            true => Err(format!("{place}: its source is not named")),
            false => Ok(self.is),
        }
    }
}

/// Whether a number of this source was chosen after results had been seen: the library's word for it comes
/// first.
fn after_results(source: &str) -> bool {
    source.starts_with("fitted") || source.starts_with("chosen")
}

/// A time such as `1500ns`, as nanoseconds.
fn nanoseconds(text: &str) -> Result<u64, String> {
    let time = crate::scenario::load::duration(text)?;
    u64::try_from(time.as_nanos()).map_err(|_| format!("{text}: too long"))
}

/// A number as TOML has it.
fn whole(number: u64) -> Result<Value, String> {
    i64::try_from(number).map(Value::Integer).map_err(|_| format!("{number} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{Params, Profile, XenRelease};

    #[test]
    fn every_machine_can_be_read_and_has_every_number() {
        for name in machine_names() {
            let params = machine(name).unwrap();
            assert_eq!(params.machine, name);
        }
        assert_eq!(machine("abacus").unwrap_err(), machine("abacus").unwrap_err());
        assert!(machine("abacus").unwrap_err().contains("known are generic, ideal"));
    }

    #[test]
    fn a_machine_has_its_own_numbers_and_those_of_what_it_is_like() {
        let (generic, opteron) = (Params::generic(), Params::opteron());
        assert_eq!(opteron.costs, generic.costs);
        assert_eq!((opteron.polling.max, opteron.virtualisation), (0, 246));
        assert_eq!(opteron.contention.llc_kib, 6 * 1024);
        let xen = machine("xen-6").unwrap();
        assert_eq!((xen.virtualisation, xen.xen), (31, XenRelease::V4_1_3));
        assert_eq!((opteron.xen, generic.xen), (XenRelease::V4_4_1, XenRelease::V4_4_1));
    }

    #[test]
    fn single_numbers_of_a_machine_can_be_others() {
        let with = |text: &str| machine_with("xen-6", &toml::from_str(text).unwrap());
        let found = with("costs.futex = \"7us\"\nnoise.on = false").unwrap();
        let usual = machine("xen-6").unwrap();
        assert_eq!((found.costs.futex, found.noise.on), (7_000, false));
        assert_eq!((found.costs.tick, found.contention), (usual.costs.tick, usual.contention));
        for (text, said) in [
            ("costs.fotex = \"7us\"", "costs.fotex: a machine has no such number"),
            ("host.cores = 7", "host.cores: a machine has no such number"),
            ("costs = 7", "costs: a machine has no such number"),
            ("costs.futex = 7", "machine xen-6: costs.futex is to be text, such as \""),
            ("noise.on = 1", "machine xen-6: noise.on is to be true or false, such as "),
            ("polling.grow = -1", "polling.grow is to be a whole number that is not negative"),
        ] {
            let error = with(text).unwrap_err();
            assert!(error.contains(said), "{error}");
            let types = ["string", "integer", "boolean", "u64", "u32"];
            assert!(types.iter().all(|name| !error.contains(name)), "{error}");
        }
    }

    #[test]
    fn every_profile_can_be_read_and_its_load_is_understood() {
        let all = applications();
        assert!(all.len() > 20);
        for application in &all {
            let profile = &application.profile;
            let bound = profile.fetch + profile.fpu + profile.l2 + profile.llc + profile.memory;
            assert!(bound <= 1000, "{}", profile.name);
            if let Some(load) = &application.load {
                let mut workload = Default::default();
                crate::scenario::load::add(&mut workload, load, 4, None)
                    .unwrap_or_else(|error| panic!("{}: {error}", profile.name));
            }
        }
        assert_eq!(all[Profile::PLAIN].profile.name, "plain");
        assert_eq!(all[Profile::SPIN].profile.name, "spin");
        assert!(all[..2].iter().all(|one| one.load.is_none()));
    }

    #[test]
    fn value_chosen_after_results_is_named_wherever_it_is_used() {
        let places = |name: &str| -> Vec<String> {
            chosen(name).unwrap().into_iter().map(|(place, _)| place).collect()
        };
        assert_eq!(places("ideal"), Vec::<String>::new());
        assert_eq!(places("kvm-16"), ["noise.on"]);
        let opteron = ["contention.fetch", "guest.virtualisation", "noise.bound", "noise.on"];
        assert_eq!(places("opteron-6376"), opteron);
        assert_eq!(places("xen-6"), Vec::<String>::new(), "it is like no other");
        let of = |name: &str| application(name).unwrap().1.chosen.clone();
        assert!(of("npb/ep")[0].starts_with("fpu: chosen"), "{:?}", of("npb/ep"));
        assert!(of("parsec/type-1")[0].starts_with("load: fitted") && of("npb/sp").is_empty());
    }

    #[test]
    fn a_number_without_a_source_is_refused() {
        let given = Given { is: 1, source: " ".to_owned() };
        assert!(given.checked("costs.tick").unwrap_err().contains("costs.tick: its source"));
    }
}
