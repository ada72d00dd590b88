//! Boots guests of several kinds and says how long each took: for choosing the machine type.

use instep_lab::{Assets, Guest, GuestSpec, Load, Stop};
use std::time::Duration;

fn main() -> Result<(), instep_lab::Error> {
    let assets = Assets::obtain(&mut |said| eprintln!("{said}"))?;
    for machine in ["q35", "pc"] {
        for vcpus in [1, 2, 4] {
            let spec = GuestSpec {
                vcpus,
                load: Load::Idle,
                machine: machine.to_owned(),
                ..GuestSpec::new("boot", &assets)
            };
            let guest = Guest::spawn(spec)?;
            let took = guest.wait_ready(&Stop::never())?;
            println!("{machine} {vcpus} vCPUs: {} ms", took.as_millis());
        }
    }
    let three: Vec<Guest> = (0..3)
        .map(|n| Guest::spawn(GuestSpec::new(format!("boot-{n}"), &assets)))
        .collect::<Result<_, _>>()?;
    for guest in &three {
        let took = guest.wait_ready(&Stop::never())?;
        println!("one of three at once: {} ms", took.as_millis());
    }
    drop(three);
    for percent in [0, 20, 50, 80, 100] {
        let spec = GuestSpec { load: Load::Duty(percent), ..GuestSpec::new("duty", &assets) };
        let guest = Guest::start(spec)?;
        std::thread::sleep(Duration::from_secs(1));
        let before = cpu_ticks(guest.pid());
        std::thread::sleep(Duration::from_secs(5));
        let ticks = cpu_ticks(guest.pid()) - before;
        println!(
            "duty:{percent} uses {} % of each of 2 vCPUs; {:?}",
            ticks / 10,
            guest.beats().last()
        );
    }
    Ok(())
}

/// User and system time of a process, in hundredths of a second.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<u64>().ok()).sum()
}
