//! What libbpf and the kernel's verifier say while programs are loaded, and which word of it an
//! error needs: the program that was refused, and why.

use std::sync::Mutex;

/// What was said since [`listen`], the last of it.
static SAID: Mutex<String> = Mutex::new(String::new());

/// Most bytes that are kept: the end of a log has the reason.
const KEPT: usize = 64 << 10;

/// Begins to keep what libbpf says; `INSTEP_LOG=debug` prints it, too.
pub(crate) fn listen() {
    with_log(|said| said.clear());
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Info, |_, text| {
        tracing::debug!("{text}");
        with_log(|said| keep(said, &text));
    })));
}

/// Why it refused a program, if it said so since [`listen`].
pub(crate) fn refusal() -> Option<String> {
    let mut why = None;
    with_log(|said| {
        why = reason(said);
        said.clear();
    });
    why
}

fn with_log(with: impl FnOnce(&mut String)) {
    if let Ok(mut said) = SAID.lock() {
        with(&mut said);
    }
}

fn keep(said: &mut String, text: &str) {
    said.push_str(text);
    if said.len() > KEPT {
        let mut from = said.len() - KEPT / 2;
        while !said.is_char_boundary(from) {
            from += 1;
        }
        said.drain(..from);
    }
}

/// The program's name and the line of its log that says what is wrong with it: the last one before the
/// verifier's account of its own work.
fn reason(log: &str) -> Option<String> {
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let end = lines.iter().rposition(|line| *line == "-- END PROG LOAD LOG --")?;
    let refused = lines[end..].iter().find(|line| line.contains("': failed to load"))?;
    let program = refused.split('\'').nth(1).filter(|name| !name.is_empty())?;
    let account = ["processed ", "verification time ", "stack depth "];
    let why = lines[..end]
        .iter()
        .rfind(|line| !account.iter().any(|word| line.starts_with(word)))
        .filter(|line| !line.ends_with("-- BEGIN PROG LOAD LOG --"))?;
    Some(format!("its verifier refuses {program}: {}", short(why)))
}

/// The first of a long line.
fn short(line: &str) -> String {
    line.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux 6.18 says it.
    const LOG: &str = "libbpf: prog 'instep_dispatch': BPF program load failed: -EACCES\n\
        libbpf: prog 'instep_dispatch': -- BEGIN PROG LOAD LOG --\n\
        Func#20 ('call_siblings') is safe for any args that match its prototype\n\
        combined stack size of 6 calls is 528. Too large\n\
        verification time 81234 usec\n\
        stack depth 96+0\n\
        processed 48717 insns (limit 1000000) max_states_per_insn 25 total_states 1813\n\
        -- END PROG LOAD LOG --\n\
        libbpf: prog 'instep_dispatch': failed to load: -EACCES\n";

    #[test]
    fn the_program_and_the_reason_are_found_in_a_log() {
        assert_eq!(
            reason(LOG).as_deref(),
            Some(
                "its verifier refuses instep_dispatch: combined stack size of 6 calls is 528. Too large"
            )
        );
    }

    #[test]
    fn a_log_that_is_cut_or_of_something_else_has_none() {
        let cut = LOG.split("verification").next().unwrap_or_default();
        let unnamed = LOG.replace("instep_dispatch", "");
        let empty = "libbpf: prog 'a': -- BEGIN PROG LOAD LOG --\n-- END PROG LOAD LOG --\n\
                     libbpf: prog 'a': failed to load: -EACCES\n";
        let other = "libbpf: map 'cpus': failed to create";
        for log in ["", other, "-- END PROG LOAD LOG --", cut, &unnamed, empty] {
            assert_eq!(reason(log), None, "{log}");
        }
    }

    #[test]
    fn of_an_endless_log_the_end_is_kept() {
        let mut said = String::new();
        let walk = "; ä line of the walk\n".repeat(9000);
        keep(&mut said, &LOG.replace("Func#20", &format!("{walk}Func#20")));
        keep(&mut said, "libbpf: failed to load object 'bpf_bpf'\n");
        assert!(said.len() <= KEPT, "{}", said.len());
        assert!(reason(&said).is_some_and(|why| why.contains("instep_dispatch: combined stack")));
    }
}
