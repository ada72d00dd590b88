//! Files of one host, with what was wrong about them gathered as warnings. Never leaves a copy
//! through a symbolic link.

use crate::error::Error;
use crate::root::{Inside, Root, text};

/// Warnings kept; a broken copy of a large host could yield one a file.
const MAX_WARNINGS: usize = 100;
/// Directory entries looked at; cpu and node directories hold far fewer.
const MAX_ENTRIES: usize = 100_000;

/// A host's files and the warnings about them.
pub(super) struct Source<'a> {
    root: &'a Root,
    inside: Inside,
    warnings: Vec<String>,
    left_out: usize,
}

impl<'a> Source<'a> {
    pub(super) fn new(root: &'a Root) -> Self {
        Self { root, inside: Inside::new(root), warnings: Vec::new(), left_out: 0 }
    }

    /// The warnings so far.
    pub(super) fn into_warnings(mut self) -> Vec<String> {
        if self.left_out > 0 {
            self.warnings.push(format!("{} more warnings of this sort left out", self.left_out));
        }
        self.warnings
    }

    pub(super) fn warn(&mut self, warning: String) {
        if self.warnings.len() < MAX_WARNINGS {
            self.warnings.push(warning);
        } else {
            self.left_out += 1;
        }
    }

    /// `what` makes this root unusable.
    pub(super) fn unusable(&self, what: String) -> Error {
        let what = format!("{}: {what}", self.root.join("sys/devices/system/cpu").display());
        let next = if self.root.is_live() {
            "mount sysfs on /sys, or give a copy of a host's /proc and /sys with --root DIR"
        } else {
            "a copy (--root DIR) is a directory with `proc` and `sys` in it"
        };
        Error::Unusable { what, next: next.to_owned() }
    }

    /// What a file says, as `parse` understands it; `None` when it is absent, or with a warning
    /// when it cannot be read or understood.
    pub(super) fn value<T>(
        &mut self,
        path: &str,
        parse: impl Fn(&str) -> Result<T, &'static str>,
    ) -> Option<T> {
        let file = self.root.join(path);
        let opened = self.inside.open(&file);
        if opened.as_ref().is_err_and(Inside::is_outside) {
            self.warn(format!("{path}: is a link that leaves the copy; not read"));
            return None;
        }
        let said = match text(opened, &file) {
            Ok(said) => said,
            Err(error) if error.is_gone() => return None,
            Err(error) => {
                self.warn(error.to_string());
                return None;
            }
        };
        match parse(&said) {
            Ok(value) => Some(value),
            Err(expected) => {
                let error = Error::parse(&file, 0, said.trim(), expected);
                self.warn(format!("{error}; ignored"));
                None
            }
        }
    }

    /// Names in a directory, sorted; `None` when it cannot be listed.
    pub(super) fn names(&mut self, dir: &str) -> Option<Vec<String>> {
        // That of a file in it: so the directory itself is followed, too.
        if !self.inside.holds(&self.root.join(dir).join("x")) {
            self.warn(format!("{dir}: is a link that leaves the copy; not read"));
            return None;
        }
        let entries = std::fs::read_dir(self.root.join(dir)).ok()?.take(MAX_ENTRIES);
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        Some(names)
    }

    /// The numbers N of entries `prefixN` of a directory, ascending.
    pub(super) fn numbered(&mut self, dir: &str, prefix: &str) -> Option<Vec<u32>> {
        let number = |name: String| {
            let digits = name.strip_prefix(prefix)?;
            let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
            if plain { digits.parse().ok() } else { None }
        };
        let mut numbers: Vec<u32> = self.names(dir)?.into_iter().filter_map(number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        if let Some(copies) = self.inside.copies() {
            let paths = numbers.iter().map(|number| format!("{dir}/{prefix}{number}"));
            paths.for_each(|path| copies.dir(&self.root.join(path)));
        }
        Some(numbers)
    }
}
