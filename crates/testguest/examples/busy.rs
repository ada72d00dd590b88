//! Boots guests with two busy vCPUs each on this machine and holds them until its input ends:
//! `busy [GUESTS]`, two without a number. Says `ready` when all are up. For scripts/record-cost.sh.

use instep_lab::{Error, Stop};
use instep_testguest::{Assets, Guest, GuestSpec};
use std::io::Read as _;

fn main() -> Result<(), Error> {
    let count = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(2);
    let assets = Assets::obtain(&mut |said| eprintln!("{said}"))?;
    let spec = |number: usize| GuestSpec::new(format!("busy-{number}"), &assets);
    let guests: Vec<Guest> =
        (0..count).map(|number| Guest::spawn(spec(number))).collect::<Result<_, _>>()?;
    for guest in &guests {
        guest.wait_ready(&Stop::never())?;
    }
    println!("ready");
    // Whoever started it closes its input, or ends.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    Ok(())
}
