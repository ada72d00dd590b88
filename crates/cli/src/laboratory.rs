//! Commands of the laboratory: `instep sim ...` runs `instep-lab sim ...` in the place of this process, so that its
//! exit status, signals and standard streams are its own.

use instep_cli::programs::{LABORATORY, find};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

/// The commands that `instep-lab` has, for users.
pub(crate) const COMMANDS: [&str; 6] = ["sim", "reproduce", "agree", "lab", "bench", "demo"];

/// Runs `instep-lab` in the place of this process when the arguments begin with one of its commands, or ask for the
/// help of one. An exit status is that of the failure to do so.
pub(crate) fn pass_on(arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let arguments: Vec<OsString> = arguments.collect();
    let command = wanted(&arguments)?;
    let why = match find(LABORATORY) {
        Ok(program) => {
            let error = Command::new(&program).args(&arguments).exec();
            format!("cannot run {}: {error}", program.display())
        }
        Err(error) => format!("`{command}` is a command of the laboratory, and {error}"),
    };
    crate::tell(&why);
    Some(ExitCode::from(2))
}

/// The command of the laboratory that is meant, if one is.
fn wanted(arguments: &[OsString]) -> Option<&'static str> {
    let word = match arguments {
        [help, of, ..] if help == "help" => of,
        [first, ..] => first,
        [] => return None,
    };
    COMMANDS.into_iter().find(|command| word == OsStr::new(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_first_word_or_help_of_it_is_passed_on() {
        let of = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            wanted(&words)
        };
        assert_eq!(of(&["sim", "x.toml"]), Some("sim"));
        assert_eq!(of(&["help", "bench"]), Some("bench"));
        for own in [&[][..], &["status"], &["help"], &["profile", "--", "sim"], &["help", "run"]] {
            assert_eq!(of(own), None, "{own:?}");
        }
    }
}
