//! `numad -w VCPUS:MIB`, as libvirt asks for `<vcpu placement='auto'>`: a list of nodes on standard output.
//! A link to `instep` by the name of `numad` answers so. Nothing else that numad does is done.

use super::{Request, give};
use crate::args::HostArgs;
use instep_core::idset::NodeSet;
use instep_core::units::Bytes;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// How long loads are measured: a start waits for it.
const WINDOW: Duration = Duration::from_millis(200);

/// Whether the program was called by this name.
pub(crate) fn is_called(name: Option<&OsStr>) -> bool {
    name.is_some_and(|name| Path::new(name).file_name() == Some(OsStr::new("numad")))
}

/// Answers, with the arguments after the name.
pub(crate) fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<String> =
        arguments.map(|argument| argument.to_string_lossy().into_owned()).collect();
    match answer(&arguments) {
        Ok(nodes) => {
            println!("{nodes}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            crate::tell(&crate::error_text(&error));
            ExitCode::from(2)
        }
    }
}

fn answer(arguments: &[String]) -> anyhow::Result<NodeSet> {
    let (vcpus, memory) = request(arguments)?;
    let host = HostArgs { window: Some(WINDOW), ..HostArgs::default() };
    let given = give(&host, &Request { vcpus, memory, devices: &[] })?;
    given.warnings.iter().for_each(|warning| crate::tell(&format!("warning: {warning}")));
    Ok(given.advice.nodes)
}

/// vCPUs and memory of `-w VCPUS[:MIB]`.
fn request(arguments: &[String]) -> anyhow::Result<(u32, Bytes)> {
    let text = match arguments {
        [option, text] if option == "-w" => Some(text.as_str()),
        [option] => option.strip_prefix("-w"),
        _ => None,
    };
    let wrong = "as numad Instep only answers `numad -w VCPUS[:MIB]`, such as `numad -w 4:8192`";
    let parts = text.map(|text| text.split_once(':').unwrap_or((text, "0")));
    let parsed = parts.and_then(|(vcpus, mib)| {
        let (vcpus, mib): (u32, u64) = (vcpus.parse().ok()?, mib.parse().ok()?);
        let fits = (1..=super::super::args::MOST_VCPUS).contains(&i64::from(vcpus));
        fits.then_some((vcpus, Bytes(mib.checked_mul(1 << 20)?)))
    });
    parsed.ok_or_else(|| anyhow::anyhow!(wrong))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_questions_that_libvirt_asks_are_answered() {
        let of = |words: &str| {
            let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
            request(&words).ok()
        };
        assert_eq!(of("-w 4:8192"), Some((4, Bytes(8 << 30))));
        assert_eq!(of("-w4:8192"), Some((4, Bytes(8 << 30))));
        assert_eq!(of("-w 4"), Some((4, Bytes(0))));
        for bad in [
            "",
            "-w",
            "-w 0:1",
            "-w 4:x",
            "-w 4:-1",
            "-w 99999:1",
            "-i 0",
            "-w 4 5",
            "-w 4:18446744073709551615",
        ] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}
