//! The command line: `MODE [N] [--option VALUE]...`. Every word must be understood.
//!
//! Written by hand because the program shall stay small and without dependencies in the guest.

use crate::error::LoadError;
use std::time::Duration;

/// Options that stand alone.
const FLAGS: [&str; 1] = ["--float"];

/// The words after the mode, until each is taken.
#[derive(Debug)]
pub struct Args {
    mode: &'static str,
    options: Vec<(String, String)>,
    words: Vec<String>,
}

impl Args {
    /// Splits the words of `mode`.
    ///
    /// # Errors
    /// An option without a value, or given twice.
    pub fn new(mode: &'static str, words: &[String]) -> Result<Self, LoadError> {
        let mut args = Self { mode, options: Vec::new(), words: Vec::new() };
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            if !word.starts_with('-') || word == "-" {
                args.words.push(word.clone());
                continue;
            }
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name.to_owned(), value.to_owned()),
                None if FLAGS.contains(&word.as_str()) => (word.clone(), String::new()),
                None => {
                    let value =
                        rest.next().ok_or_else(|| args.fault(format!("{word} has no value")))?;
                    (word.clone(), value.clone())
                }
            };
            if args.options.iter().any(|(known, _)| *known == name) {
                return Err(args.fault(format!("{name} is given twice")));
            }
            args.options.push((name, value));
        }
        Ok(args)
    }

    /// An error about this mode's command line that says where to read on.
    pub fn fault(&self, text: impl AsRef<str>) -> LoadError {
        LoadError::Usage(format!("{}; see instep-load {} --help", text.as_ref(), self.mode))
    }

    /// Takes the value of an option, if it was given.
    pub fn take(&mut self, name: &str) -> Option<String> {
        let at = self.options.iter().position(|(known, _)| known == name)?;
        Some(self.options.remove(at).1)
    }

    /// Takes a flag; whether it was given.
    ///
    /// # Errors
    /// `--flag=value`.
    pub fn flag(&mut self, name: &str) -> Result<bool, LoadError> {
        match self.take(name) {
            Some(value) if !value.is_empty() => Err(self.fault(format!("{name} takes no value"))),
            found => Ok(found.is_some()),
        }
    }

    /// Takes an option through `parse`, which says what the value should have been.
    ///
    /// # Errors
    /// A value that `parse` refuses.
    pub fn parsed<T>(
        &mut self,
        name: &str,
        default: T,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, LoadError> {
        match self.take(name) {
            None => Ok(default),
            Some(value) => parse(&value)
                .map_err(|expected| self.fault(format!("{name} {value}: expected {expected}"))),
        }
    }

    /// Takes a duration of at least `least`.
    ///
    /// # Errors
    /// No duration, or a shorter one.
    pub fn duration(
        &mut self,
        name: &str,
        default: Duration,
        least: Duration,
    ) -> Result<Duration, LoadError> {
        self.parsed(name, default, |value| match duration(value) {
            Some(found) if found >= least => Ok(found),
            Some(_) => Err(format!("at least {least:?}")),
            None => Err("a duration such as 100us, 1ms or 10s".to_owned()),
        })
    }

    /// Takes a whole number within `range`.
    ///
    /// # Errors
    /// No number, or one outside.
    pub fn number(
        &mut self,
        name: &str,
        default: u64,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<u64, LoadError> {
        self.parsed(name, default, |value| number(value, &range))
    }

    /// Takes a percentage, 0 to 100; the sign may be left out.
    ///
    /// # Errors
    /// No percentage.
    pub fn percent(&mut self, name: &str, default: u32) -> Result<u32, LoadError> {
        self.parsed(name, default, |value| {
            let digits = value.strip_suffix('%').unwrap_or(value);
            let found = digits.parse().ok().filter(|percent| *percent <= 100);
            found.ok_or_else(|| "a percentage from 0% to 100%".to_owned())
        })
    }

    /// Takes a size of at least `least` bytes.
    ///
    /// # Errors
    /// No size, or a smaller one.
    pub fn size(&mut self, name: &str, default: usize, least: usize) -> Result<usize, LoadError> {
        self.parsed(name, default, |value| match size(value) {
            Some(found) if found >= least => Ok(found),
            Some(_) => Err(format!("at least {least} bytes")),
            None => Err("a size such as 64KiB, 16MiB or 1GiB".to_owned()),
        })
    }

    /// Takes one of several words.
    ///
    /// # Errors
    /// Any other word.
    pub fn choice<T: Copy>(&mut self, name: &str, choices: &[(&str, T)]) -> Result<T, LoadError> {
        let default = choices.first().map(|(_, value)| *value);
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        let expected = format!("one of {}", words.join(", "));
        let found = self.parsed(name, default, |value| {
            let found = choices.iter().find(|(word, _)| *word == value);
            found.map(|(_, value)| Some(*value)).ok_or_else(|| expected.clone())
        })?;
        found.ok_or_else(|| self.fault(format!("{name} has no choices")))
    }

    /// Takes the number that stands without an option.
    ///
    /// # Errors
    /// None, or one outside `range`.
    pub fn operand(
        &mut self,
        what: &str,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<u64, LoadError> {
        if self.words.is_empty() {
            return Err(self.fault(format!("{} needs {what}", self.mode)));
        }
        let word = self.words.remove(0);
        number(&word, &range)
            .map_err(|expected| self.fault(format!("{what} {word}: expected {expected}")))
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// A word or option that nobody took.
    pub fn finish(self) -> Result<(), LoadError> {
        let (mode, option) = (self.mode, self.options.first());
        if let Some((name, _)) = option {
            return Err(self.fault(format!("{mode} has no {name}")));
        }
        match self.words.first() {
            Some(word) => Err(self.fault(format!("{mode} does not understand `{word}`"))),
            None => Ok(()),
        }
    }
}

fn number(text: &str, range: &std::ops::RangeInclusive<u64>) -> Result<u64, String> {
    let found = text.parse().ok().filter(|number| range.contains(number));
    found.ok_or_else(|| match *range.end() {
        u64::MAX => format!("a whole number from {}", range.start()),
        end => format!("a whole number from {} to {end}", range.start()),
    })
}

/// Reads `100us`, `1.5ms`, `10s`, `2m`; a plain `0` needs no unit.
pub fn duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, f64); 6] =
        [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 6e10), ("h", 3.6e12)];
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (value, nanos) = split(text, &UNITS)?;
    let nanos = (value * nanos).round();
    // Ten years: more is a mistake, and sums of times must fit.
    (nanos < 3.2e17).then(|| Duration::from_nanos(nanos as u64))
}

/// Reads `4096`, `64KiB`, `16MiB`, `1GiB`.
pub fn size(text: &str) -> Option<usize> {
    const UNITS: [(&str, f64); 4] =
        [("KiB", 1024.0), ("MiB", 1_048_576.0), ("GiB", 1_073_741_824.0), ("B", 1.0)];
    if let Ok(bytes) = text.parse::<usize>() {
        return (bytes < 1 << 46).then_some(bytes);
    }
    let (value, factor) = split(text, &UNITS)?;
    let bytes = (value * factor).round();
    (bytes < 7e13).then_some(bytes as usize)
}

/// A number that is not negative, and the factor of its unit.
fn split(text: &str, units: &[(&str, f64)]) -> Option<(f64, f64)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (digits, unit) = text.split_at(end);
    let factor = units.iter().find(|(name, _)| *name == unit)?.1;
    Some((digits.parse().ok()?, factor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn args(words: &[&str]) -> Result<Args, LoadError> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Args::new("barrier", &words)
    }

    #[test]
    fn durations_and_sizes_carry_units() {
        assert_eq!(duration("100us"), Some(Duration::from_micros(100)));
        assert_eq!(duration("1.5ms"), Some(Duration::from_micros(1500)));
        assert_eq!(duration("2m"), Some(Duration::from_secs(120)));
        assert_eq!(duration("0"), Some(Duration::ZERO));
        for bad in ["", "10", "s", "-1s", "1 s", "1e3s", "1..5s", "1d", "99999999h"] {
            assert_eq!(duration(bad), None, "{bad}");
        }
        assert_eq!(size("64KiB"), Some(65536));
        assert_eq!(size("4096"), Some(4096));
        for bad in ["", "MiB", "1MB", "-4096", "99999999GiB", "18446744073709551615"] {
            assert_eq!(size(bad), None, "{bad}");
        }
    }

    #[test]
    fn options_take_values_either_way() {
        let mut args = args(&["--phase=1ms", "--imbalance", "20%", "--float", "7"]).unwrap();
        let ms = Duration::from_millis(1);
        assert_eq!(args.duration("--phase", Duration::ZERO, Duration::ZERO).unwrap(), ms);
        assert_eq!(args.percent("--imbalance", 0).unwrap(), 20);
        assert!(args.flag("--float").unwrap());
        assert_eq!(args.operand("N", 1..=9).unwrap(), 7);
        args.finish().unwrap();
    }

    #[test]
    fn each_mistake_names_the_word_and_where_to_read_on() {
        let zero = Duration::ZERO;
        let errors = [
            (args(&["--phase"]).unwrap_err(), "--phase has no value"),
            (args(&["--seed", "1", "--seed=2"]).unwrap_err(), "--seed is given twice"),
            (args(&["--what", "1"]).unwrap().finish().unwrap_err(), "has no --what"),
            (args(&["word"]).unwrap().finish().unwrap_err(), "does not understand `word`"),
            (
                args(&["--phase", "100"]).unwrap().duration("--phase", zero, zero).unwrap_err(),
                "--phase 100: expected a duration",
            ),
            (
                args(&["--imbalance", "101%"]).unwrap().percent("--imbalance", 0).unwrap_err(),
                "--imbalance 101%: expected a percentage",
            ),
            (
                args(&["--threads", "0"]).unwrap().number("--threads", 1, 1..=4).unwrap_err(),
                "--threads 0: expected a whole number from 1 to 4",
            ),
            (
                args(&["--kind", "c"])
                    .unwrap()
                    .choice("--kind", &[("a", 1), ("b", 2)])
                    .unwrap_err(),
                "--kind c: expected one of a, b",
            ),
            (args(&["--float=1"]).unwrap().flag("--float").unwrap_err(), "--float takes no value"),
            (args(&[]).unwrap().operand("N", 1..=9).unwrap_err(), "needs N"),
        ];
        for (error, expected) in errors {
            let text = error.to_string();
            assert!(text.contains(expected), "{text}");
            assert!(text.ends_with("see instep-load barrier --help"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_words_are_read_or_refused_without_panic(words: Vec<String>) {
            if let Ok(mut args) = Args::new("compute", &words) {
                let _ = args.operand("N", 0..=u64::MAX);
                let _ = args.finish();
            }
            for word in &words {
                let _ = (duration(word), size(word));
            }
        }
    }
}
