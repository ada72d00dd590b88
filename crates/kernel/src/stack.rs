//! How deep the stack of the BPF programs grows, read from the compiled object: kernels before 7.0
//! refuse more than 512 bytes over all functions that call each other, and the lab's newest does not
//! tell (kernel/bpf/verifier.c, `check_max_stack_depth_subprog`, Linux 6.12 to 6.18).

use object::read::elf::ElfFile64;
use object::{LittleEndian, Object as _, ObjectSection as _, ObjectSymbol as _};
use object::{RelocationTarget, SectionIndex, SymbolKind};
use std::collections::HashMap;

/// `MAX_BPF_STACK`.
const MOST: u32 = 512;
/// Frames are rounded up to this where programs are compiled to machine code (`round_up_stack_depth`).
const ROUNDED: u32 = 16;
/// `MAX_CALL_FRAMES`.
const FRAMES: usize = 8;

/// A function: its own bytes of stack, and whom it calls.
#[derive(Debug, Default)]
struct Function {
    name: String,
    own: u32,
    calls: Vec<usize>,
}

/// A place in the object: section and offset.
type Place = (SectionIndex, u64);

fn functions(object: &[u8]) -> Vec<Function> {
    let file: ElfFile64<'_, LittleEndian> = ElfFile64::parse(object).expect("an ELF object");
    let mut found = Vec::new();
    let mut places: HashMap<Place, (u64, usize)> = HashMap::new();
    for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text) {
        let Some(section) = symbol.section_index() else { continue };
        let end = symbol.address() + symbol.size();
        places.insert((section, symbol.address()), (end, found.len()));
        let name = symbol.name().expect("a name").to_owned();
        found.push(Function { name, ..Function::default() });
    }
    // Where a call is told of by a relocation: none is a function of the kernel.
    let mut told: HashMap<Place, Option<Place>> = HashMap::new();
    for section in file.sections() {
        for (at, relocation) in section.relocations() {
            let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
            let symbol = file.symbol_by_index(symbol).expect("a symbol");
            let target = symbol.section_index().map(|section| (section, symbol.address()));
            told.insert((section.index(), at), target);
        }
    }
    for (&(section, begin), &(end, index)) in &places {
        let code = file.section_by_index(section).and_then(|it| it.data()).expect("its code");
        let called = |at: u64, imm: i32| {
            let ahead = 8 * (i64::from(imm) + 1);
            let (section, address) = match told.get(&(section, at)) {
                Some(target) => {
                    target.map(|(other, from)| (other, from.wrapping_add_signed(ahead)))?
                }
                None => (section, at.wrapping_add_signed(ahead)),
            };
            places.get(&(section, address)).map(|(_, index)| *index)
        };
        let (own, calls) = read_code(&code[begin as usize..end as usize], begin, called);
        (found[index].own, found[index].calls) = (own, calls);
    }
    found
}

/// The deepest byte of its frame that a function names, and whom it calls.
fn read_code(
    code: &[u8],
    begin: u64,
    called: impl Fn(u64, i32) -> Option<usize>,
) -> (u32, Vec<usize>) {
    const FRAME: u8 = 10;
    let (mut own, mut calls, mut copy) = (0, Vec::new(), FRAME);
    for (n, word) in code.chunks_exact(8).enumerate() {
        let (to, from) = (word[1] & 15, word[1] >> 4);
        let offset = i32::from(i16::from_le_bytes([word[2], word[3]]));
        let imm = i32::from_le_bytes([word[4], word[5], word[6], word[7]]);
        let depth = match word[0] {
            0x85 if from == 1 => {
                calls.extend(called(begin + 8 * n as u64, imm));
                0
            }
            0xbf if from == FRAME => {
                copy = to;
                0
            }
            0x07 if to == copy && copy != FRAME => imm,
            code if code & 7 == 1 && from == FRAME => offset,
            code if matches!(code & 7, 2 | 3) && to == FRAME => offset,
            // The register holds something else from here on.
            code if matches!(code & 7, 0 | 1 | 4 | 7) && to == copy => {
                copy = FRAME;
                0
            }
            _ => 0,
        };
        own = own.max(0.max(-depth).unsigned_abs());
    }
    (own, calls)
}

/// The deepest chain of calls from a function on, in bytes.
fn deepest(functions: &[Function], from: usize) -> (u32, Vec<&str>) {
    let function = &functions[from];
    let below = function.calls.iter().filter(|call| **call != from);
    let (below, mut names) =
        below.map(|call| deepest(functions, *call)).max_by_key(|it| it.0).unwrap_or_default();
    names.insert(0, &function.name);
    (function.own.max(1).next_multiple_of(ROUNDED) + below, names)
}

#[test]
fn no_chain_of_calls_needs_more_stack_than_any_kernel_gives() {
    let object = include_bytes!(concat!(env!("OUT_DIR"), "/bpf.bpf.o"));
    let functions = functions(object);
    let named = |name: &str| functions.iter().position(|it| it.name == name).expect("is there");
    let (depth, chain) = deepest(&functions, named("slot_starts"));
    // The planner calls through several functions; were calls not found, nothing could fail.
    assert!(depth > 192 && chain.contains(&"plan_slot"), "{depth} of {chain:?}");
    for index in 0..functions.len() {
        let (depth, chain) = deepest(&functions, index);
        assert!(depth <= MOST && chain.len() <= FRAMES, "{depth} bytes of stack: {chain:?}");
    }
}
