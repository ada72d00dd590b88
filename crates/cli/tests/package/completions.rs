//! What shells offer after `instep`.

use super::{output_text, pages_in, run};
use std::fs;
use std::path::Path;
use std::process::Command;

/// What bash offers for the last of these words.
fn offered(completions: &Path, words: &[&str]) -> Option<Vec<String>> {
    let script =
        "source \"$0/$1.bash\" || exit; program=$1; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1))
        function=$(complete -p \"$program\"); function=${function#*-F }
        \"${function%% *}\" \"$program\" \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"
        printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", script]).arg(completions).args(words);
    let output = run(&mut bash)?;
    assert!(output.status.success(), "{}", output_text(&output));
    let said = String::from_utf8(output.stdout).unwrap();
    Some(said.split_whitespace().map(str::to_owned).collect())
}

#[test]
fn commands_that_instep_passes_on_are_completed() {
    let dir = tempfile::tempdir().unwrap();
    if pages_in(dir.path()).is_none() {
        return;
    }
    let completions = dir.path().join("completions");
    let offered = |words: &[&str]| offered(&completions, words);
    let Some(commands) = offered(&["instep", ""]) else { return };
    for command in ["status", "run", "sim", "reproduce", "agree", "lab", "bench", "demo"] {
        assert!(commands.contains(&command.to_owned()), "{command}: {commands:?}");
    }
    for hidden in ["guard", "bench-cells", "imitate"] {
        assert!(!commands.contains(&hidden.to_owned()), "{hidden}: {commands:?}");
    }
    assert_eq!(offered(&["instep", "repro"]).unwrap(), ["reproduce"]);
    assert_eq!(offered(&["instep", "sim", "--swa"]).unwrap(), ["--swarm"]);
    let passed_on: [&[&str]; 7] = [
        &["sim"],
        &["reproduce", "all"],
        &["agree"],
        &["lab", "run"],
        &["lab", "shell"],
        &["bench"],
        &["demo"],
    ];
    for words in passed_on {
        let options = |program| offered(&[&[program], words, &["--"]].concat()).unwrap();
        let own = options("instep-lab");
        assert!(own.len() > 3 && own.contains(&"--help".to_owned()), "{words:?}: {own:?}");
        assert_eq!(options("instep"), own, "{words:?}");
    }
    for file in ["_instep", "instep.fish"] {
        let text = fs::read_to_string(completions.join(file)).unwrap();
        assert!(text.contains("reproduce") && text.contains("swarm"), "{file}");
    }
    // Pages of these commands are in the package of the laboratory alone.
    let page = |program: &str| dir.path().join(format!("man/{program}/{program}-sim.1"));
    assert!(page("instep-lab").is_file() && !page("instep").exists());
}
