//! Is KVM usable? Only a guest that boots proves it: a `/dev/kvm` that opens proves nothing
//! (seen: nested virtualisation that runs trivial code and hangs a kernel).
//!
//! The finding is kept in the cache until the machine reboots.

use crate::Assets;
use crate::cache::Cache;
use crate::error::Error;
use crate::guest::Guest;
use crate::spec::{Accel, GuestSpec, Load};
use crate::stop::Stop;
use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

/// How long a guest may take to boot with KVM; a usable one needs a second or two.
const LIMIT: Duration = Duration::from_secs(15);

/// What the probe found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kvm {
    /// A guest booted.
    Works,
    /// It cannot be used, for this reason.
    Unusable(String),
}

/// Boots a guest with KVM, or remembers how that went since this machine booted.
///
/// # Errors
/// [`Error::Interrupted`]; every other failure is a reason in [`Kvm::Unusable`].
pub fn kvm(assets: &Assets, cache: &Cache, stop: &Stop) -> Result<Kvm, Error> {
    if let Err(error) = File::options().read(true).write(true).open("/dev/kvm") {
        return Ok(Kvm::Unusable(format!("/dev/kvm cannot be opened: {error}")));
    }
    let entry = boot_id().map(|id| format!("kvm/{id}"));
    if let Some(known) = entry.as_deref().and_then(|entry| remembered(cache, entry)) {
        return Ok(known);
    }
    let found = boot(assets, stop)?;
    if let Some(entry) = entry {
        let text = match &found {
            Kvm::Works => "works\n".to_owned(),
            Kvm::Unusable(reason) => format!("unusable\n{reason}\n"),
        };
        // A finding that cannot be kept is found again.
        let _ = cache.fill(&entry, |into| {
            let file = into.join("finding");
            fs::write(&file, text).map_err(|error| Error::io("write", file, error))
        });
    }
    Ok(found)
}

fn boot(assets: &Assets, stop: &Stop) -> Result<Kvm, Error> {
    let spec = GuestSpec {
        accel: Accel::Kvm,
        load: Load::Idle,
        boot_limit: LIMIT,
        life_limit: 2 * LIMIT,
        ..GuestSpec::new("kvm-probe", assets)
    };
    match Guest::spawn(spec).and_then(|guest| guest.wait_ready(stop)) {
        Ok(_) => Ok(Kvm::Works),
        Err(Error::Interrupted) => Err(Error::Interrupted),
        Err(Error::Guest { what, .. }) => Ok(Kvm::Unusable(what)),
        Err(Error::Slow { seconds, .. }) => {
            Ok(Kvm::Unusable(format!("a guest did not boot within {seconds}s")))
        }
        Err(error) => Ok(Kvm::Unusable(error.to_string())),
    }
}

fn remembered(cache: &Cache, entry: &str) -> Option<Kvm> {
    parse(&fs::read_to_string(cache.path(entry).join("finding")).ok()?)
}

/// A kept finding; `None` for anything else, which is then found anew.
fn parse(text: &str) -> Option<Kvm> {
    match text.split_once('\n')? {
        ("works", _) => Some(Kvm::Works),
        ("unusable", reason) => Some(Kvm::Unusable(reason.trim().to_owned())),
        _ => None,
    }
}

/// This boot's identity, a UUID.
fn boot_id() -> Option<String> {
    let id = fs::read_to_string(Path::new("/proc/sys/kernel/random/boot_id")).ok()?;
    let id = id.trim();
    id.chars().all(|c| c.is_ascii_hexdigit() || c == '-').then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_finding_is_read_back_and_rubbish_is_not() {
        assert_eq!(parse("works\n"), Some(Kvm::Works));
        assert_eq!(parse("unusable\nno boot\n"), Some(Kvm::Unusable("no boot".into())));
        assert_eq!(parse("maybe\n"), None);
        assert_eq!(parse(""), None);
    }
}
