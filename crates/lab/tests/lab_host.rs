//! An emulated host on this machine: it boots, has KVM, answers, and leaves nothing behind.

use instep_lab::Stop;
use instep_lab::cache::Cache;
use instep_lab::host::accel::AccelKind;
use instep_lab::host::machine::HostMachine;
use instep_lab::host::{EmulatedHost, emulator, image, kernel};
use instep_lab::scenario::run::again;
use instep_madehost::skip;
use std::path::Path;
use std::time::Duration;

#[test]
fn emulated_host_has_nodes_and_kvm_and_leaves_nothing_behind() {
    if !skip::may_boot() {
        return;
    }
    let stop = Stop::never();
    let mut say = |said: &str| eprintln!("{said}");
    let ready = Cache::open().and_then(|cache| {
        let emulator = emulator::obtain(&cache, &stop, &mut say)?;
        let kernel = kernel::obtain(&cache, None, &stop, &mut say)?;
        let busybox = instep_lab::image::busybox(&cache, &stop, &mut say)?;
        Ok((cache, emulator, kernel, busybox))
    });
    let (cache, emulator, kernel, busybox) = match ready {
        Ok(ready) => ready,
        Err(error) if error.is_lacking() => return skip::note(&error.to_string()),
        Err(error) => panic!("{error}"),
    };
    let machine: HostMachine =
        toml::from_str("nodes = 2\ncores = 1\nthreads = 2\nmemory = '1GiB'").unwrap();
    let extra = image::Extra::default();
    let (mut host, ready) = again(&stop, &mut say, |_, _| {
        let life = Duration::from_secs(900);
        let mut host = EmulatedHost::spawn(
            (&machine, AccelKind::Tcg),
            &emulator,
            &kernel,
            life,
            &stop,
            |target| image::write(target, &cache, &emulator, &kernel, &busybox, &extra, &stop),
        )?;
        let ready = host.wait_ready(Duration::from_secs(300), &stop)?;
        Ok((host, ready))
    })
    .unwrap();
    let (pid, dir) = (host.pid(), host.dir().to_owned());
    assert!(ready.kvm, "{}", host.console());
    let script = "cat /sys/devices/system/node/node*/cpulist\n\
                  cat /sys/devices/system/cpu/cpu3/topology/thread_siblings_list\nexit 7";
    let answer = host.run(script, Duration::from_secs(20), &stop).unwrap();
    assert_eq!((answer.status, answer.text().as_str()), (7, "0-1\n2-3\n2-3\n"));
    let answer = host.run("sleep 100", Duration::from_secs(1), &stop).unwrap();
    assert_eq!(answer.status, 143, "a command that runs too long is killed");
    eprintln!("up after {:?}", host.age());
    drop(host);
    assert!(!Path::new(&format!("/proc/{pid}")).exists() && !dir.exists());
}
