//! Kernel, emulator and programs of emulated hosts, found or fetched, and the boot of one.

use super::report::Seconds;
use super::{Scenario, Step, guests};
use crate::cache::Cache;
use crate::error::{Error, kept_or_tail};
use crate::host::accel::{self, Accel, AccelChoice};
use crate::host::emulator::{self, Emulator};
use crate::host::kernel::{self, HostKernel, Series};
use crate::host::machine::Hypervisor;
use crate::host::{EmulatedHost, image, programs, xen};
use crate::image::{busybox, check_load};
use crate::stop::Stop;
use crate::workdir;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How often a host is started that dies before it is up: of kernels that change their own code at boot
/// two in six died on a machine of two busy CPUs (QEMU 7.2), in seconds.
pub(super) const HOST_STARTS: usize = 4;

/// How a host is called among those that were started again.
const THE_HOST: &str = "the host";

/// What a user may choose for every run.
#[derive(Clone, Debug, Default)]
pub struct LabOptions {
    /// A kernel image of the user's own, or a series of Debian's such as `6.18`.
    pub kernel: Option<PathBuf>,
    /// The directory below which its modules lie; KVM is built in without one.
    pub modules: Option<PathBuf>,
    /// The `instep` binary that is put into the host.
    pub instep: PathBuf,
    /// The `instep-lab` binary that is put into the host: it holds the anchor and runs cells of a bench.
    pub laboratory: PathBuf,
    /// The guest workload `instep-load`, when there is one.
    pub load: Option<PathBuf>,
    /// Where consoles and files that are brought back are kept, also after success. Without it, files
    /// that are brought back go into `./instep-lab`, and consoles of failures into the cache.
    pub keep: Option<PathBuf>,
    /// The accelerator that was asked for.
    pub accel: AccelChoice,
}

/// Kernel, emulator and programs of each host.
#[derive(Debug)]
pub struct Kit {
    cache: Cache,
    emulator: Emulator,
    kernel: HostKernel,
    busybox: PathBuf,
    extra: image::Extra,
    accel: AccelChoice,
    /// Why this machine's KVM cannot run hosts, if so.
    kvm: Result<(), String>,
    /// Keeps `lab clean` off: a host that dies may have to boot again from the same files.
    _used: fs::File,
    /// Holds the unpacked modules of a kernel of the user's own.
    _unpacked: Option<TempDir>,
}

impl Kit {
    /// Finds or fetches it; `say` hears what takes long.
    ///
    /// # Errors
    /// When something can neither be found nor fetched: with the next command.
    pub fn obtain(
        options: &LabOptions,
        stop: &Stop,
        say: &mut dyn FnMut(&str),
    ) -> Result<Self, Error> {
        Self::obtain_for(Hypervisor::Kvm, options, stop, say)
    }

    /// The same for hosts of which another hypervisor runs the guests.
    ///
    /// # Errors
    /// As [`Kit::obtain`], and when it needs another kernel than that of the user's own.
    pub fn obtain_for(
        hypervisor: Hypervisor,
        options: &LabOptions,
        stop: &Stop,
        say: &mut dyn FnMut(&str),
    ) -> Result<Self, Error> {
        options.load.as_deref().map_or(Ok(()), check_load)?;
        let cache = Cache::open()?;
        let used = cache.used(stop)?;
        let emulator = emulator::obtain(&cache, stop, say)?;
        let busybox = busybox(&cache, stop, say)?;
        let mut unpacked = None;
        let kernel = match &options.kernel {
            Some(_) if hypervisor == Hypervisor::Xen => {
                let what = "a Xen host boots dom0 and its domains from Debian's kernel".to_owned();
                return Err(Error::Refused { what, next: "leave out --kernel".to_owned() });
            }
            None if hypervisor == Hypervisor::Xen => xen::obtain(&cache, stop, say)?,
            Some(image) if let Some(series) = Series::named(image) => {
                if options.modules.is_some() {
                    let what =
                        format!("Debian's kernel {} has modules of its own", image.display());
                    return Err(Error::Refused { what, next: "leave out --modules".to_owned() });
                }
                kernel::obtain(&cache, Some(&series), stop, say)?
            }
            Some(image) => {
                let dir = workdir::create("modules")?;
                let own =
                    kernel::own(image, options.modules.as_deref(), dir.path(), &busybox, stop)?;
                unpacked = Some(dir);
                own
            }
            None => kernel::obtain(&cache, None, stop, say)?,
        };
        let extra = image::Extra {
            programs: vec![
                (options.instep.clone(), "instep".to_owned()),
                (options.laboratory.clone(), "instep-lab".to_owned()),
            ],
            load: options.load.clone(),
            ..image::Extra::default()
        };
        let accel = options.accel;
        let kvm = match (accel, hypervisor) {
            (AccelChoice::Tcg, _) | (_, Hypervisor::Xen) => Err("it was not tried".to_owned()),
            _ => accel::probe(&emulator, &kernel, stop)?,
        };
        let (_used, _unpacked) = (used, unpacked);
        Ok(Self { cache, emulator, kernel, busybox, extra, accel, kvm, _used, _unpacked })
    }

    /// Boots a scenario's host, without its guests; it may live for `life`, and coming up has half of the
    /// scenario's limit. One that dies before it is up is booted again, which `say` hears.
    ///
    /// # Errors
    /// When it does not come up; its console is then in `kept`, or in `failures` of the cache.
    pub fn boot_for(
        &self,
        scenario: &Scenario,
        life: Duration,
        kept: Option<&Path>,
        stop: &Stop,
        say: &mut dyn FnMut(&str),
    ) -> Result<Running, Error> {
        let mut extra = self.extra.clone();
        if extra.load.is_none() {
            refuse_without_load(scenario)?;
        }
        for name in &scenario.programs {
            extra.programs.push(programs::find(name)?);
        }
        for guest in scenario.guest.iter().filter(|guest| !guest.programs.is_empty()) {
            let found: Result<Vec<_>, _> =
                guest.programs.iter().map(|name| programs::find(name)).collect();
            extra.guests.push((guest.name.clone(), found?));
        }
        extra.begin = guests::sealed(&scenario.guest, &scenario.host);
        let started = Instant::now();
        let (running, died) =
            until_up(stop, say, || self.booted(scenario, &extra, life, kept, stop))?;
        let restarted = vec![THE_HOST.to_owned(); died];
        let seconds = Seconds { host_up: started.elapsed().as_secs_f64(), ..Seconds::default() };
        Ok(Running { started, seconds, restarted, ..running })
    }

    fn booted(
        &self,
        scenario: &Scenario,
        extra: &image::Extra,
        life: Duration,
        kept: Option<&Path>,
        stop: &Stop,
    ) -> Result<Running, Error> {
        let started = Instant::now();
        let (emulator, kernel) = (&self.emulator, &self.kernel);
        let accel = accel::choose(self.accel, &scenario.host, &self.kvm)?;
        let machine = (&scenario.host, accel.kind);
        let mut host = EmulatedHost::spawn(machine, emulator, kernel, life, stop, |target| {
            image::write(target, &self.cache, emulator, kernel, &self.busybox, extra, stop)
        })?;
        let ready = host.wait_ready(scenario.limit / 2, stop).map_err(|error| {
            let place = self.place(scenario, kept);
            if !matches!(error, Error::Interrupted)
                && fs::create_dir_all(&place).is_ok()
                && let Ok(console) = host.keep_console(&place)
            {
                if matches!(error, Error::Slow { .. }) {
                    let _ = host.keep_registers(&place);
                }
                tracing::warn!("its console is kept as {}", console.display());
                return error.kept_in(&console);
            }
            error
        })?;
        Ok(Running {
            host,
            kernel: ready.release,
            kvm: ready.kvm,
            accel,
            started,
            seconds: Seconds::default(),
            restarted: Vec::new(),
        })
    }

    /// Where consoles are kept: where it was asked for, or of a failed run in the cache.
    pub(super) fn place(&self, scenario: &Scenario, kept: Option<&Path>) -> PathBuf {
        let own = || format!("failures/{}-{}", scenario.name, std::process::id());
        kept.map_or_else(|| self.cache.path(&own()), Path::to_owned)
    }
}

/// A host that is up.
#[derive(Debug)]
pub struct Running {
    /// The host.
    pub host: EmulatedHost,
    /// Its kernel's release.
    pub kernel: String,
    /// Whether it has a /dev/kvm.
    pub kvm: bool,
    /// Its accelerator.
    pub accel: Accel,
    pub(super) started: Instant,
    pub(super) seconds: Seconds,
    /// The guests that hung at boot and were started again, and the host that died there, once for each time.
    pub(super) restarted: Vec<String>,
}

impl Running {
    /// Hosts and guests that hung or died at boot and were started again, once for each time.
    pub fn restarted(&self) -> &[String] {
        &self.restarted
    }

    /// How long host and guests took until they were up, in seconds of this machine.
    pub fn up_after(&self) -> f64 {
        self.seconds.host_up + self.seconds.guests_up
    }
}

/// Boots until a host is up; how many died before. One that dies each time is no chance, which [`again`] would
/// try once more.
pub(super) fn until_up<T>(
    stop: &Stop,
    say: &mut dyn FnMut(&str),
    mut boot: impl FnMut() -> Result<T, Error>,
) -> Result<(T, usize), Error> {
    let mut died = 0;
    loop {
        match boot() {
            Err(error @ Error::Died { .. }) if died + 1 < HOST_STARTS => {
                stop.check()?;
                died += 1;
                say(&format!("{error}\nbooting it once more"));
            }
            Err(Error::Died { name, how, kept, console }) => {
                let next = "give another kernel, --kernel FILE, or install a newer QEMU";
                let last = kept_or_tail(kept.as_deref(), &console);
                let what = format!("{how} at each of {HOST_STARTS} boots; {next}{last}");
                return Err(Error::Guest { name, what, console: String::new() });
            }
            done => return done.map(|up| (up, died)),
        }
    }
}

/// Refuses a scenario of which a guest or a step runs `instep-load`: there is none, or one that asks for libraries, which
/// an emulated host does not have.
fn refuse_without_load(scenario: &Scenario) -> Result<(), Error> {
    const LOAD: &str = "instep-load";
    let guest = scenario.guest.iter().find(|guest| guest.load.contains(LOAD));
    let runs = |step: &Step| step.run.as_ref().is_some_and(|run| run.contains(LOAD));
    let step = scenario.step.iter().position(runs);
    let which = match (guest, step) {
        (Some(guest), _) => format!("guest {}", guest.name),
        (None, Some(at)) => format!("step {}", at + 1),
        (None, None) => return Ok(()),
    };
    let what = format!("{which} runs {LOAD}, of which there is no static build");
    Err(Error::missing(what, "run `cargo xtask load`, or give --load FILE"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenario_whose_guest_or_step_needs_the_load_is_refused() {
        let refused = |text: &str| {
            let scenario = Scenario::parse(
                &format!("about = 'it'\n[host]\ncores = 1\nmemory = '1GiB'\n{text}"),
                "made",
            )
            .unwrap();
            refuse_without_load(&scenario).err().map(|error| error.to_string())
        };
        let step =
            "[[step]]\nwait = '1s'\n[[step]]\nrun = 'instep-load compute >/dev/null 2>&1 &'\n";
        let said = refused(step).unwrap();
        assert!(said.contains("step 2 runs instep-load, of which there is no static"), "{said}");
        let guest =
            "[[guest]]\nname = 'web'\nvcpus = 1\nmemory = '96MiB'\nload = 'instep-load spin'\n";
        assert!(refused(&format!("{guest}{step}")).unwrap().contains("guest web runs"));
        assert_eq!(refused("[[step]]\nrun = 'true'\n"), None);
    }
}
