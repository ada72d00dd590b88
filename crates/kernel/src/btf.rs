//! Whether the kernel's own description of its types (BTF) lets a scheduler be loaded: which
//! functions of sched_ext it names, and which of these it describes wrongly.
//!
//! Kernels whose BTF was made by pahole before 1.26 show the argument `aux`, which the verifier
//! adds, in the public prototypes of sched_ext's functions (Linux 7.0 on, KF_IMPLICIT_ARGS; commit
//! 9edd04c4189e raises the version asked for); libbpf then refuses each program that calls one.
//! The format is that of include/uapi/linux/btf.h (Linux 7.2). It decides nothing and knows nothing
//! of what Instep calls.

use std::collections::BTreeSet;
use std::fmt;

/// The most that is read of a kernel's BTF; today's kernels have 5 to 8 MiB.
pub const MAX_BTF: u64 = 64 << 20;

const MAGIC: u16 = 0xeb9f;
const KIND_FUNC: u32 = 12;
const KIND_FUNC_PROTO: u32 = 13;
/// The argument that only functions named `..._impl` may show.
const IMPLICIT: &[u8] = b"aux";

/// What was found of sched_ext's functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Functions {
    /// Names of all functions that begin with `scx_bpf_` or `__scx_bpf_`.
    pub named: BTreeSet<String>,
    /// Those of them whose public prototype has the implicit argument.
    pub malformed: BTreeSet<String>,
}

/// Why bytes are no BTF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BtfError {
    /// Not the magic number in this machine's byte order.
    Magic,
    /// A section or a type ends beyond the end; where.
    Short(usize),
    /// A kind of type that is not known, whose size is therefore not either; which.
    Kind(u32),
}

impl fmt::Display for BtfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic => f.write_str("no BTF of this machine's byte order"),
            Self::Short(at) => write!(f, "cut at byte {at}"),
            Self::Kind(kind) => write!(f, "type kind {kind} is not known"),
        }
    }
}

/// One type as it lies in the section.
#[derive(Clone, Copy)]
struct Type<'a> {
    name: u32,
    kind: u32,
    /// Number of members, parameters or values.
    count: usize,
    /// The type that this one refers to, or its size.
    refers: u32,
    /// What follows the twelve common bytes.
    more: &'a [u8],
}

/// Reads what a BTF says of sched_ext's functions.
///
/// # Errors
/// The bytes are no BTF that is known.
pub fn functions(bytes: &[u8]) -> Result<Functions, BtfError> {
    if bytes.get(0..2) != Some(&MAGIC.to_ne_bytes()) {
        return Err(BtfError::Magic);
    }
    let head = word(bytes, 4)? as usize;
    let section = |at: usize| -> Result<&[u8], BtfError> {
        let start = head.saturating_add(word(bytes, at)? as usize);
        let end = start.saturating_add(word(bytes, at + 4)? as usize);
        bytes.get(start..end).ok_or(BtfError::Short(bytes.len()))
    };
    let (types, strings) = (types(section(8)?)?, section(16)?);
    let mut found = Functions::default();
    for function in types.iter().filter(|t| t.kind == KIND_FUNC) {
        let name = string(strings, function.name);
        let Ok(name) = std::str::from_utf8(name) else { continue };
        if !name.trim_start_matches("__").starts_with("scx_bpf_") {
            continue;
        }
        found.named.insert(name.to_owned());
        // Type 0 is void and not in the section.
        let proto = (function.refers as usize).checked_sub(1).and_then(|index| types.get(index));
        let implicit = proto.is_some_and(|proto| {
            proto.kind == KIND_FUNC_PROTO && parameters(proto, strings).any(|p| p == IMPLICIT)
        });
        if implicit && !name.ends_with("_impl") {
            found.malformed.insert(name.to_owned());
        }
    }
    Ok(found)
}

fn types(section: &[u8]) -> Result<Vec<Type<'_>>, BtfError> {
    let mut all = Vec::new();
    let mut at = 0;
    while at < section.len() {
        let info = word(section, at + 4)?;
        let (count, kind) = ((info & 0xffff) as usize, info >> 24 & 0x1f);
        let more = match kind {
            // pointer, forward, typedef, volatile, const, restrict, function, float, type tag
            2 | 7..=12 | 16 | 18 => 0,
            // integer, variable, declaration tag
            1 | 14 | 17 => 4,
            // array
            3 => 12,
            // struct, union, data section, 64-bit enumeration
            4 | 5 | 15 | 19 => 12 * count,
            // enumeration, prototype
            6 | KIND_FUNC_PROTO => 8 * count,
            _ => return Err(BtfError::Kind(kind)),
        };
        let end = at + 12 + more;
        let more = section.get(at + 12..end).ok_or(BtfError::Short(at))?;
        all.push(Type {
            name: word(section, at)?,
            kind,
            count,
            refers: word(section, at + 8)?,
            more,
        });
        at = end;
    }
    Ok(all)
}

/// The names of a prototype's parameters.
fn parameters<'a>(proto: &Type<'a>, strings: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let more = proto.more;
    (0..proto.count).filter_map(move |index| Some(string(strings, word(more, 8 * index).ok()?)))
}

/// The string at an offset, without its end; empty when there is none.
fn string(strings: &[u8], at: u32) -> &[u8] {
    let rest = strings.get(at as usize..).unwrap_or_default();
    &rest[..rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len())]
}

fn word(bytes: &[u8], at: usize) -> Result<u32, BtfError> {
    let four = bytes.get(at..at.saturating_add(4)).and_then(|four| four.try_into().ok());
    four.map(u32::from_ne_bytes).ok_or(BtfError::Short(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A BTF of functions by name and the names of their parameters.
    fn made(functions: &[(&str, &[&str])]) -> Vec<u8> {
        let (mut types, mut strings, mut next) = (Vec::new(), vec![0u8], 0u32);
        let mut named = |name: &str| {
            let at = strings.len() as u32;
            strings.extend(name.bytes().chain([0]));
            at
        };
        let mut push = |words: &[u32]| words.iter().for_each(|w| types.extend(w.to_ne_bytes()));
        for (name, parameters) in functions {
            push(&[0, KIND_FUNC_PROTO << 24 | parameters.len() as u32, 0]);
            parameters.iter().for_each(|parameter| push(&[named(parameter), 0]));
            push(&[named(name), KIND_FUNC << 24, next + 1]);
            next += 2;
        }
        // An integer, which is longer than the common part.
        push(&[named("int"), 1 << 24, 4, 32]);
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        let length = types.len() as u32;
        for word in [24, 0, length, length, strings.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(types);
        bytes.extend(strings);
        bytes
    }

    fn names(set: &BTreeSet<String>) -> Vec<&str> {
        set.iter().map(String::as_str).collect()
    }

    #[test]
    fn a_public_prototype_with_the_implicit_argument_is_malformed() {
        let bytes = made(&[
            ("scx_bpf_create_dsq", &["dsq_id", "node", "aux"]),
            ("scx_bpf_kick_cpu", &["cpu", "flags"]),
            ("scx_bpf_kick_cpu_impl", &["cpu", "flags", "aux"]),
            ("schedule", &["aux"]),
        ]);
        let found = functions(&bytes).unwrap();
        assert_eq!(names(&found.malformed), ["scx_bpf_create_dsq"]);
        assert_eq!(
            names(&found.named),
            ["scx_bpf_create_dsq", "scx_bpf_kick_cpu", "scx_bpf_kick_cpu_impl"]
        );
    }

    #[test]
    fn what_is_no_btf_is_reported_and_where_it_ends() {
        assert_eq!(functions(b""), Err(BtfError::Magic));
        assert_eq!(functions(&[0; 64]), Err(BtfError::Magic));
        let whole = made(&[("scx_bpf_kick_cpu", &["cpu"])]);
        assert!(matches!(functions(&whole[..whole.len() - 1]), Err(BtfError::Short(_))));
        let mut strange = whole;
        // The kind of the first type, in the high byte of its second word.
        let info = 24 + 4;
        strange[info..info + 4].copy_from_slice(&(31u32 << 24).to_ne_bytes());
        assert_eq!(functions(&strange), Err(BtfError::Kind(31)));
    }

    #[test]
    fn this_machines_kernel_is_read() {
        let Ok(bytes) = std::fs::read("/sys/kernel/btf/vmlinux") else {
            return instep_madehost::skip::note("no /sys/kernel/btf/vmlinux");
        };
        let found = functions(&bytes).unwrap();
        let scx = std::path::Path::new("/sys/kernel/sched_ext").exists();
        assert_eq!(found.named.contains("scx_bpf_kick_cpu"), scx);
    }

    proptest! {
        #[test]
        fn damaged_bytes_never_panic(at in 0usize..200, value: u8, cut in 0usize..200) {
            let mut bytes = made(&[("scx_bpf_a", &["x", "aux"]), ("scx_bpf_b", &[])]);
            let length = bytes.len();
            bytes[at % length] = value;
            let _ = functions(&bytes[..length - cut % length]);
        }
    }
}
