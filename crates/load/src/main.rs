//! The `instep-load` program: hands the command line to the library and sets the exit status.

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    match instep_load::execute(&words, &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instep-load: {error}");
            ExitCode::from(2)
        }
    }
}
