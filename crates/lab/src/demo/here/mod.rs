//! The demo's first form: three small guests directly on this machine, placed among its own CPUs.
//!
//! 1. One guest, both of whose busy vCPUs the demo binds to one CPU: `status` finds the conflict,
//!    `plan` and `run --once` mend it, and the guest's own work counter shows what it was worth.
//! 2. Two more guests: now there may be more vCPUs than CPUs, where binding hurts; `plan` says
//!    what is done instead, `run --once` does it.
//! 3. `restore`, and the demo's own proof from /proc that every affinity is as it was found.
//!
//! It runs the `instep` binary as a user would and knows nothing of its policies: what they
//! decide is for `plan` to explain. Other VMs on the machine are never placed (`--vm`).

mod proof;
mod stage;

use super::{DemoOptions, Verdict};
use crate::affinity;
use crate::cache::Cache;
use crate::error::Error;
use crate::guest::Guest;
use crate::host::kernel::is_kernel;
use crate::probe::{self, Kvm};
use crate::spec::{Accel, GuestSpec, Load};
use crate::stop::Stop;
use crate::{Assets, guest, image, kernel};
use proof::{Proof, apart, vcpus};
use stage::Stage;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a guest's work is counted for a rate.
const COUNTED: Duration = Duration::from_secs(4);

/// Runs it with the `instep` binary at this path.
///
/// # Errors
/// When the machine lacks something (the error says what to install), or a guest or a command
/// fails. Guests and temporary files are gone in any case.
pub(super) fn run(instep: &Path, options: &DemoOptions, stop: &Stop) -> anyhow::Result<Verdict> {
    story(instep, options, stop, Instant::now())
}

fn story(
    instep: &Path,
    options: &DemoOptions,
    stop: &Stop,
    started: Instant,
) -> anyhow::Result<Verdict> {
    let mut stage = Stage::open(instep, stop.clone())?;
    stage.say(&format!(
        "Instep's demo, the first form: three small VMs directly on this machine\n\
         ({} CPUs), about a minute. It needs QEMU, a kernel package and busybox (fetched\n\
         once, nothing is installed), and no root. It places no VM but its own, and\n\
         leaves nothing behind, interrupted or not.\n",
        stage.cpus().len()
    ))?;
    let (assets, accel, _used) = prepare(&stage, options)?;
    let mut proof = Proof::default();
    let mended = mend_one(&mut stage, &assets, accel, &mut proof)?;
    overcommit(&mut stage, &assets, accel, &mut proof)?;
    let restored = give_back(&stage, &proof)?;
    drop(stage);
    eprintln!("The guests and all temporary files are gone; {}s.", started.elapsed().as_secs());
    Ok(if mended && restored { Verdict::Shown } else { Verdict::Failed })
}

/// Kernel, image and accelerator, and what keeps `lab clean` off them.
fn prepare(stage: &Stage, options: &DemoOptions) -> anyhow::Result<(Assets, Accel, File)> {
    guest::qemu_present()?;
    let cache = Cache::open()?;
    let used = cache.used(stage.stop())?;
    let mut say = |text: &str| stage.note(text);
    let kernel = match &options.kernel {
        Some(path) => {
            is_kernel(path)?;
            path.canonicalize().map_err(|error| Error::io("read", path, error))?
        }
        None => kernel::obtain(&cache, stage.stop(), &mut say)?,
    };
    let assets = Assets { kernel, initrd: image::obtain(&cache, stage.stop(), &mut say)? };
    let busy = stage.progress("trying whether KVM boots a guest here");
    let found = probe::kvm(&assets, &cache, stage.stop())?;
    drop(busy);
    stage.say(&format!("kernel       {}", assets.kernel.display()))?;
    let accel = match found {
        Kvm::Works => {
            stage.say("accelerator  KVM")?;
            Accel::Kvm
        }
        Kvm::Unusable(why) => {
            stage.say(&format!("accelerator  software emulation (TCG); KVM: {why}"))?;
            Accel::Tcg
        }
    };
    Ok((assets, accel, used))
}

/// Act 1: one guest, stacked on one CPU by hand, and set right; whether it was.
fn mend_one(
    stage: &mut Stage,
    assets: &Assets,
    accel: Accel,
    proof: &mut Proof,
) -> anyhow::Result<bool> {
    stage.title("1. A VM that somebody bound badly")?;
    let name = stage.name('a');
    let spec = GuestSpec { accel, load: Load::Spin(2), ..GuestSpec::new(&name, assets) };
    stage.boot(vec![spec])?;
    let Some(&cpu) = stage.cpus().first() else { anyhow::bail!("this process may use no CPU") };
    let guest = stage.guest(0);
    for (_, tid) in vcpus(&affinity::of_process(guest.pid())?) {
        affinity::bind(tid, cpu)?;
    }
    stage.say(&format!(
        "The demo now binds both vCPUs of {name} to CPU {cpu}, as a script that counted wrong would."
    ))?;
    proof.note(stage.guest(0))?;
    let before = rate(stage, "counting the work it does so")?;
    stage.say(&format!("So bound, it does {before:.0} units of work a second."))?;

    let filter = ["--vm", name.as_str()];
    stage.instep(&[&["status"], &[][..]], &[0, 1])?;
    stage.instep(&[&["plan", "--mend-conflicts"], &filter[..]], &[0, 1])?;
    stage.instep(&[&["run", "--once", "--mend-conflicts"], &filter[..]], &[0])?;
    stage.instep(&[&["status"], &[][..]], &[0, 1])?;

    let after = rate(stage, "counting the work it does now")?;
    let ratio = if before > 0.0 { after / before } else { 0.0 };
    stage.say(&format!(
        "\nNow it does {after:.0} units of work a second, {ratio:.1} times as many as before."
    ))?;
    if stage.cpus().len() < 2 {
        stage.say("This machine gives the demo one CPU only: there was nothing to win.")?;
        return Ok(true);
    }
    let mended = apart(&affinity::of_process(stage.guest(0).pid())?);
    if !mended {
        stage.say("/proc still shows both vCPUs on one CPU: they were NOT put apart.")?;
    }
    Ok(mended)
}

/// Act 2: two more guests.
fn overcommit(
    stage: &mut Stage,
    assets: &Assets,
    accel: Accel,
    proof: &mut Proof,
) -> anyhow::Result<()> {
    stage.title("2. Two more VMs arrive")?;
    let wide = GuestSpec {
        accel,
        vcpus: 4,
        load: Load::Spin(4),
        ..GuestSpec::new(stage.name('b'), assets)
    };
    let part = GuestSpec { accel, load: Load::Duty(50), ..GuestSpec::new(stage.name('c'), assets) };
    stage.boot(vec![wide, part])?;
    for index in 1..=2 {
        proof.note(stage.guest(index))?;
    }
    let (vcpus, cpus) = (stage.vcpus(), stage.cpus().len());
    stage.say(&if vcpus as usize > cpus {
        format!(
            "{vcpus} vCPUs now share {cpus} CPUs. Binding one to one would make a VM wait for its \
             own\nCPU while another is free, so Instep must not do it."
        )
    } else {
        format!("{vcpus} vCPUs have {cpus} CPUs: there is room for all of them.")
    })?;
    let names: Vec<String> = ['a', 'b', 'c'].iter().map(|letter| stage.name(*letter)).collect();
    let filter: Vec<&str> = names.iter().flat_map(|name| ["--vm", name.as_str()]).collect();
    stage.instep(&[&["plan", "--mend-conflicts"], &filter], &[0, 1])?;
    stage.instep(&[&["run", "--once", "--mend-conflicts"], &filter], &[0])?;
    stage.instep(&[&["status"], &[][..]], &[0, 1])?;
    Ok(())
}

/// Act 3: everything as it was found, proven from /proc.
fn give_back(stage: &Stage, proof: &Proof) -> anyhow::Result<bool> {
    stage.title("3. Everything back")?;
    stage.instep(&[&["restore"], &[][..]], &[0])?;
    let (report, proven) = proof.check(stage.guests())?;
    stage.say(&report)?;
    stage.say(if proven {
        "Every affinity is as it was found, the bad one included: what an operator set by hand\n\
         is the operator's. This was read from /proc by the demo, not told by Instep."
    } else {
        "Some affinity is NOT as it was found: this is a fault of Instep; please report it."
    })?;
    Ok(proven)
}

/// Units of work per second of the first guest, by this machine's clock.
fn rate(stage: &Stage, what: &str) -> Result<f64, Error> {
    let _busy = stage.progress(what);
    let guest = stage.guest(0);
    let first = next_beat(stage, guest)?;
    stage.stop().sleep(COUNTED)?;
    let last = next_beat(stage, guest)?;
    let work = last.1.saturating_sub(first.1) as f64;
    Ok(work / last.0.duration_since(first.0).as_secs_f64())
}

/// Waits for a fresh heartbeat: when it came, and the work done by then.
fn next_beat(stage: &Stage, guest: &Guest) -> Result<(Instant, u64), Error> {
    let seen = guest.beats().len();
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(beat) = guest.beats().get(seen) {
            return Ok((Instant::now(), beat.work));
        }
        if Instant::now() >= end {
            let (name, what) = (guest.named(), "no heartbeat for 30s".to_owned());
            return Err(Error::Guest { name, what, console: String::new() });
        }
        stage.stop().sleep(Duration::from_millis(20))?;
    }
}
