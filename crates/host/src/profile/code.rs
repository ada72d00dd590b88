//! Is a thread that was found at this address busy waiting? Looks for the processor's spin hint in
//! the code around it: PAUSE on x86, YIELD or ISB on Arm.
//!
//! Code waits busily in loops of a few instructions with that hint (glibc, libgomp, Rust's
//! `spin_loop`, user-level locks), and PAUSE takes most of such a loop's time, so an address next to
//! one is almost surely in it. What is missed: loops without the hint, longer loops, and polling by
//! system calls. So the answer is a lower bound.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Code looked at before and after an address.
const AROUND: u64 = 24;
/// Answers that are remembered.
const MAX_KNOWN: usize = 1 << 16;
/// Open memory files.
const MAX_FILES: usize = 64;

/// Reads code of processes and remembers what it found.
#[derive(Debug, Default)]
pub struct Code {
    known: BTreeMap<(u32, u64), Option<bool>>,
    files: BTreeMap<u32, Option<File>>,
}

impl Code {
    /// Whether there is a spin hint around `address` of process `pid`; `None` when that cannot be
    /// read.
    pub fn spins(&mut self, pid: u32, address: u64) -> Option<bool> {
        if let Some(known) = self.known.get(&(pid, address)) {
            return *known;
        }
        let answer = self.read(pid, address).map(|code| has_hint(&code));
        if self.known.len() < MAX_KNOWN {
            self.known.insert((pid, address), answer);
        }
        answer
    }

    fn read(&mut self, pid: u32, address: u64) -> Option<Vec<u8>> {
        if self.files.len() >= MAX_FILES {
            self.files.clear();
        }
        let open = || File::open(format!("/proc/{pid}/mem")).ok();
        let file = self.files.entry(pid).or_insert_with(open).as_ref()?;
        let mut code = vec![0; 2 * AROUND as usize];
        let begin = address.saturating_sub(AROUND);
        // The mapping may begin or end within reach of the address.
        for (start, length) in [(begin, 2 * AROUND), (address, AROUND), (begin, AROUND)] {
            code.resize(length as usize, 0);
            if file.read_exact_at(&mut code, start).is_ok() {
                return Some(code);
            }
        }
        None
    }
}

/// Whether the code holds a spin hint.
pub fn has_hint(code: &[u8]) -> bool {
    if cfg!(target_arch = "x86_64") {
        // PAUSE (Intel SDM 2B); REP NOP to processors that do not know it.
        code.windows(2).any(|pair| pair == [0xf3, 0x90])
    } else if cfg!(target_arch = "aarch64") {
        // YIELD and ISB SY (Arm ARM, C6); Rust and libgomp use the second, others the first.
        code.windows(4)
            .any(|word| word == [0x3f, 0x20, 0x03, 0xd5] || word == [0xdf, 0x3f, 0x03, 0xd5])
    } else {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn spin() {
        for _ in 0..3 {
            std::hint::spin_loop();
        }
    }

    #[inline(never)]
    fn plain(x: u64) -> u64 {
        x.rotate_left(3)
    }

    #[test]
    fn spin_loop_is_distinguished_from_plain_code() {
        spin();
        assert_ne!(plain(1), 1);
        let mut code = Code::default();
        let own = std::process::id();
        let spins: Vec<bool> = (0..6)
            .filter_map(|step| code.spins(own, spin as fn() as usize as u64 + 24 * step))
            .collect();
        assert!(spins.contains(&true), "{spins:?}");
        assert_eq!(code.spins(own, 8), None, "nothing is mapped there");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn hints_are_found_at_any_offset() {
        assert!(has_hint(&[0x90, 0xf3, 0x90, 0xeb, 0xf9]));
        assert!(!has_hint(&[0xf3, 0x0f, 0x90, 0x90]));
    }
}
