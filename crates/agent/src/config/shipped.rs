//! The configuration file of the package (`packaging/instep.toml`): it parses, as it is and with every setting
//! switched on, shows the defaults, and knows every key.

use super::Config;
use instep_kernel::Cosched;
use instep_kernel::settings::{DEFAULT_PERIOD, HOST_WEIGHT, Latency};
use std::collections::BTreeSet;
use std::path::Path;

const SHIPPED: &str = include_str!("../../../../packaging/instep.toml");

/// A setting that is switched off begins with `#` and no space after it.
fn switched_on(line: &str) -> &str {
    match line.strip_prefix('#') {
        Some(setting) if !setting.is_empty() && !setting.starts_with(' ') => setting,
        _ => line,
    }
}

fn all_on() -> String {
    SHIPPED.lines().map(|line| switched_on(line).to_owned() + "\n").collect()
}

fn parse(text: &str) -> Config {
    Config::parse(text, Path::new("packaging/instep.toml")).unwrap_or_else(|why| panic!("{why}"))
}

/// The keys that the parser knows where this text ends, which it tells of an unknown one.
fn known(before: &str) -> BTreeSet<String> {
    let text = format!("{before}\nno_such_key = 1\n");
    let error = Config::parse(&text, Path::new("x")).unwrap_err().to_string();
    let expected = error.split_once(", expected ").unwrap_or_else(|| panic!("{error}")).1;
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn shipped_configuration_changes_nothing() {
    assert_eq!(parse(SHIPPED), Config::default());
}

#[test]
fn shipped_configuration_shows_the_defaults() {
    let mut config = parse(&all_on());
    let web = config.dispatch.vm.remove("web").expect("an example of a VM");
    assert_eq!((web.period, web.cosched), (Some(DEFAULT_PERIOD), Some(Cosched::default())));
    assert_eq!((web.weight, web.latency), (Some(100), Some(Latency::default())));
    assert_eq!(config.dispatch.process.drain(..).count(), 1);
    assert_eq!(config.dispatch.host_weight.take(), Some(HOST_WEIGHT), "an example of a weight");
    assert_eq!(config, Config::default());
}

#[test]
fn shipped_configuration_explains_every_key() {
    let text = all_on();
    let tables = [
        "",
        "[discover]",
        "[memory]",
        "[metrics]",
        "[history]",
        "[dispatch]",
        "[dispatch.vm.web]",
        "[[dispatch.process]]",
    ];
    for table in tables {
        let after = text.split_once(table).unwrap_or_else(|| panic!("no {table}")).1;
        let body = after.split("\n[").next().unwrap_or_default();
        let lines: Vec<&str> = body.lines().collect();
        for key in known(table) {
            let at = lines.iter().position(|line| line.starts_with(&format!("{key} = ")));
            let is_table = tables.iter().any(|table| {
                let path = table.trim_matches(['[', ']']).to_owned() + ".";
                path.starts_with(&format!("{key}."))
                    || path.starts_with(&format!("dispatch.{key}."))
            });
            assert!(at.is_some() || is_table, "{table}: `{key}` is missing");
            let explained = |at: usize| at > 0 && lines[at - 1].starts_with("# ");
            let is_explained = at.is_none_or(|at| explained(at) || table == "[[dispatch.process]]");
            assert!(is_explained, "{table}: nothing above `{key}` explains it");
        }
    }
    assert!(known("").len() >= 9 && known("[dispatch]").contains("slot"), "keys are named");
}
