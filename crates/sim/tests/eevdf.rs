//! EEVDF as newer kernels have it: slices end by a timer of their own.

#![cfg(test)]
#![allow(missing_docs, reason = "a test")]

use instep_sim::report::SimulationReport;
use instep_sim::scenario::Scenario;
use instep_sim::scenario::build::SimulationPlan;

fn report(tuning: &str) -> SimulationReport {
    let guest = |name: &str| {
        format!(
            "[[guest]]\nname = \"{name}\"\nvcpus = 2\nmemory = \"128MiB\"\n\
             load = \"instep-load compute\"\n"
        )
    };
    let text = format!(
        "about = \"x\"\nscheduler = \"eevdf\"\nduration = \"3s\"\n{tuning}\n\
         [host]\ncores = 2\nmemory = \"2GiB\"\nmachine = \"ideal\"\n{}{}",
        guest("a"),
        guest("b")
    );
    let scenario = Scenario::parse(&text).unwrap();
    SimulationPlan::new(&scenario, &|_| Err(String::new())).unwrap().report().unwrap()
}

#[test]
fn a_timer_ends_slices_of_eevdf_where_ticks_do_not() {
    let of = |tuning: &str| report(tuning).host.switches_per_s;
    // Slices of 1.4 or 1.5 ms on two CPUs, by ticks of 4 ms each.
    let (ticks, timer) = (of(""), of("tuning = { slice = \"700us\", hrtick = \"10us\" }"));
    assert!((450.0..510.0).contains(&ticks), "{ticks}");
    assert!((1350.0..1450.0).contains(&timer), "{timer}");
}
