//! The cases that come with Instep, and those that fit a user's patterns.

use crate::case::{self, Case};
use crate::error::Error;
use std::path::{Path, PathBuf};
use wildmatch::WildMatch;

/// The files of `scenarios/bench`, by name.
const FILES: [(&str, &str); 7] = [
    ("barriers.toml", include_str!("../../../scenarios/bench/barriers.toml")),
    ("programs.toml", include_str!("../../../scenarios/bench/programs.toml")),
    ("shares.toml", include_str!("../../../scenarios/bench/shares.toml")),
    ("latency.toml", include_str!("../../../scenarios/bench/latency.toml")),
    ("guests.toml", include_str!("../../../scenarios/bench/guests.toml")),
    ("cgroups.toml", include_str!("../../../scenarios/bench/cgroups.toml")),
    ("cores.toml", include_str!("../../../scenarios/bench/cores.toml")),
];

/// All of them.
///
/// # Errors
/// Those of a file that is none, which a test excludes.
pub fn cases() -> Result<Vec<Case>, Error> {
    let parsed = FILES.iter().map(|(name, text)| case::parse(text, Path::new(name)));
    Ok(parsed.collect::<Result<Vec<_>, _>>()?.concat())
}

/// The built-in cases and those of further files.
///
/// # Errors
/// A file that cannot be read or is none; a name that is there twice.
pub fn with_files(files: &[PathBuf]) -> Result<Vec<Case>, Error> {
    let mut all = cases()?;
    for path in files {
        let text = std::fs::read_to_string(path).map_err(|error| Error::io("read", path, error))?;
        all.extend(case::parse(&text, path)?);
        case::unique(&all).map_err(|name| Error::Cases {
            path: path.clone(),
            what: format!("case {name} exists already; give it another name"),
        })?;
    }
    Ok(all)
}

/// The cases whose names, or whose group's (file's), fit one of the patterns; all without any. With `quick` only quick ones, as
/// long as no pattern says what is wanted.
///
/// # Errors
/// A pattern that fits none.
pub fn chosen(cases: Vec<Case>, patterns: &[String], quick: bool) -> Result<Vec<Case>, Error> {
    for pattern in patterns {
        if !cases.iter().any(|case| case_fits(pattern, case)) {
            let what = format!("no case fits `{pattern}`");
            return Err(Error::Unknown { what, next: "see instep bench --list".to_owned() });
        }
    }
    let wanted = |case: &Case| match patterns {
        [] => !quick || case.quick,
        _ => patterns.iter().any(|pattern| case_fits(pattern, case)),
    };
    Ok(cases.into_iter().filter(wanted).collect())
}

/// Whether a pattern fits the name of a case, or is that of its file.
fn case_fits(pattern: &str, case: &Case) -> bool {
    let named = format!("name = \"{}\"", case.name);
    let is_group = |file: &str| file.strip_suffix(".toml") == Some(pattern);
    fits(pattern, &case.name)
        || FILES.iter().any(|(file, text)| is_group(file) && text.contains(&named))
}

/// Whether all of `name` fits a pattern with `*` (anything) and `?` (one character).
fn fits(pattern: &str, name: &str) -> bool {
    WildMatch::new(pattern).matches(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::GuestKind;

    #[test]
    fn the_built_in_cases_are_cases_with_names_of_their_own() {
        let all = cases().unwrap();
        assert_eq!(case::unique(&all), Ok(()));
        let cut = all.iter().find(|case| case.name.len() > crate::table::NAME);
        assert_eq!(cut.map(|case| &case.name), None, "cut in the table");
        let quick = chosen(all.clone(), &[], true).unwrap();
        assert!(quick.len() >= 6 && quick.len() < all.len() / 2, "{}", quick.len());
        assert!(quick.iter().any(|case| case.work.kind == GuestKind::Kvm));
    }

    #[test]
    fn every_file_of_the_directory_is_built_in() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/bench");
        let mut there: Vec<String> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        there.sort();
        let mut known = FILES.map(|(name, _)| name.to_owned());
        known.sort();
        assert_eq!(there, known);
    }

    #[test]
    fn example_has_only_words_of_a_case() {
        let example = Path::new("../../scenarios/example/bench.toml");
        let own = with_files(&[Path::new(env!("CARGO_MANIFEST_DIR")).join(example)]).unwrap();
        assert_eq!(chosen(own, &["my-solver".to_owned()], false).unwrap().len(), 1);
    }

    #[test]
    fn case_of_users_file_joins_and_name_that_is_taken_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("own.toml");
        let case = |name: &str| {
            format!("[[case]]\nname = '{name}'\nabout = 'x'\nwork = {{ load = 'x', vcpus = 1 }}\n")
        };
        std::fs::write(&file, case("my-own")).unwrap();
        let all = with_files(std::slice::from_ref(&file)).unwrap();
        assert_eq!(chosen(all, &["my-*".to_owned()], true).unwrap().len(), 1);
        std::fs::write(&file, case("compute-50")).unwrap();
        let error = with_files(std::slice::from_ref(&file)).unwrap_err().to_string();
        assert!(error.contains("own.toml: case compute-50 exists already"), "{error}");
    }

    #[test]
    fn pattern_fits_a_whole_name() {
        assert!(fits("*-50", "spin-1ms-50") && fits("a?c", "abc") && fits("*", ""));
        assert!(!fits("spin", "spin-1ms") && !fits("a?c", "ac") && !fits("*-50", "spin-500"));
    }

    #[test]
    fn group_of_cases_is_chosen_by_its_name() {
        let named = chosen(cases().unwrap(), &["cgroups".to_owned()], true).unwrap();
        let names: Vec<&str> = named.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(
            names,
            ["limit-20", "limit-50-host", "limit-150", "limit-slice-40", "slices-1-3"]
        );
    }

    #[test]
    fn a_pattern_that_fits_nothing_is_refused() {
        let error = chosen(cases().unwrap(), &["x*".to_owned()], false).unwrap_err();
        assert!(error.to_string().contains("no case fits `x*`; see instep bench --list"));
    }
}
