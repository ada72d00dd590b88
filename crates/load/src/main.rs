//! The `instep-load` program: hands the command line to the library and sets the exit status.

use std::process::ExitCode;

fn main() -> ExitCode {
    match instep_load::execute(std::env::args_os(), &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instep-load: {error}");
            ExitCode::from(2)
        }
    }
}
