//! What schedutil is asked for.

use super::*;

/// A vCPU that runs for the first of these milliseconds of each ten, for half a second, and one that may run on CPU 1 and never
/// does; what is asked for both CPUs.
fn asked(busy_ms: u64) -> [u32; 2] {
    let mut instep = loaded(&[(1, 100), (1, 100)], &[&[0], &[1]], 0);
    for at in 0..500 {
        let now = START + at * MS;
        match at % 10 {
            0 if instep.current(0).is_none() => instep.kernel().wake(0, Waker::Other(0), now),
            at if at == busy_ms => instep.kernel().block(0, now),
            _ => {}
        }
        run_due_work(&mut instep, now);
        (at % 4 == 0).then(|| tick(&mut instep, 2, now));
        run_due_work(&mut instep, now);
    }
    assert_eq!(instep.ejected(), None);
    [0, 1].map(|cpu| instep.kernel().performance(cpu))
}

#[test]
fn a_cpu_is_asked_for_the_part_of_the_time_in_which_it_is_busy() {
    let near = |busy_ms: u64, from: u32, to: u32| {
        let [cpu, other] = asked(busy_ms);
        assert!((from..=to).contains(&cpu), "busy for {busy_ms} of 10 ms: {cpu} of 1024");
        assert_eq!(other, 1024, "it never ran, and nobody was told");
    };
    near(10, 960, 1024);
    near(5, 360, 664);
    near(1, 0, 230);
}
