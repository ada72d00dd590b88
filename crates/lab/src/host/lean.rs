//! Programs and kernels without what an emulated host would only copy, or slowly unpack.
//!
//! Pure: a file's bytes in, those of a smaller or plainer file out; `None`: use the file unchanged. Formats: ELF (gABI 4.1); bzImage (Linux 7.2, Documentation/arch/x86/boot.rst).

use object::Endianness;
use object::elf::{FileHeader64, PN_XNUM, PT_NOTE, ProgramHeader64, SHT_NOBITS};
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};
use std::io::Read as _;

/// The fields of an ELF-64 header that tell where the sections are: `e_shoff`, `e_shnum`, `e_shstrndx`.
const SECTION_FIELDS: [std::ops::Range<usize>; 2] = [0x28..0x30, 0x3c..0x40];

/// The note by which a kernel says where it is entered without a boot loader's help (PVH): its owner's
/// name and its type, `XEN_ELFNOTE_PHYS32_ENTRY` (Linux 7.2, include/xen/interface/elfnote.h).
const PVH_NOTE: (&[u8], u32) = (b"Xen", 18);

/// A bzImage's `setup_sects` (a byte), and `payload_offset` with `payload_length` after it (32 bits each).
const SETUP_SECTS: usize = 0x1f1;
const PAYLOAD: usize = 0x248;
/// How a payload that is compressed by zstd begins.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The largest kernel; Debian's has 62 MB.
const MAX_KERNEL: u64 = 256 << 20;

/// The version of what is made here, of which images are kept.
pub const VERSION: u32 = 1;

/// The sections that no program reads of itself.
const FOR_TOOLS: [&[u8]; 6] =
    [b".debug", b".symtab", b".strtab", b".shstrtab", b".comment", b".gnu_debug"];

/// A program as far as it is loaded: of a release of Instep, which has tables for debuggers, a seventh.
/// `None` when it has more than these at its end, which it may want to read.
pub fn loaded(program: &[u8]) -> Option<Vec<u8>> {
    let elf = Elf::read(program)?;
    elf.has_nothing_behind_but_for_tools()?.then(|| elf.cut()).flatten()
}

/// An ELF file.
struct Elf<'a> {
    data: &'a [u8],
    header: &'a FileHeader64<Endianness>,
    endian: Endianness,
}

impl<'a> Elf<'a> {
    fn read(data: &'a [u8]) -> Option<Self> {
        let header = FileHeader64::<Endianness>::parse(data).ok()?;
        Some(Self { data, header, endian: header.endian().ok()? })
    }

    fn segments(&self) -> Option<&'a [ProgramHeader64<Endianness>]> {
        self.header.program_headers(self.endian, self.data).ok()
    }

    /// The end of what is loaded, and of the headers that tell what is.
    fn loaded_end(&self) -> Option<u64> {
        let (header, endian) = (self.header, self.endian);
        // Their number is then in a section.
        if header.e_phnum(endian) == PN_XNUM {
            return None;
        }
        let headers = u64::from(header.e_phentsize(endian)) * u64::from(header.e_phnum(endian));
        self.segments()?.iter().try_fold(
            header.e_phoff(endian).checked_add(headers)?,
            |end, segment| {
                let own = segment.p_offset(endian).checked_add(segment.p_filesz(endian))?;
                Some(end.max(own))
            },
        )
    }

    /// Whether what lies behind the loaded part is sections for tools, their table, and nothing else.
    fn has_nothing_behind_but_for_tools(&self) -> Option<bool> {
        let (header, endian, loaded) = (self.header, self.endian, self.loaded_end()?);
        let sections = header.sections(endian, self.data).ok()?;
        let table = u64::from(header.e_shentsize(endian)) * sections.len() as u64;
        let mut end = loaded.max(header.e_shoff(endian).checked_add(table)?);
        for section in sections.iter().filter(|section| section.sh_type(endian) != SHT_NOBITS) {
            let from = section.sh_offset(endian);
            end = end.max(from.checked_add(section.sh_size(endian))?);
            let name = sections.section_name(endian, section).unwrap_or_default();
            if from >= loaded && !FOR_TOOLS.iter().any(|tool| name.starts_with(tool)) {
                return Some(false);
            }
        }
        Some(end == self.data.len() as u64)
    }

    /// The file to the end of what is loaded, without sections.
    fn cut(&self) -> Option<Vec<u8>> {
        let mut lean = self.data.get(..usize::try_from(self.loaded_end()?).ok()?)?.to_vec();
        for field in SECTION_FIELDS {
            lean.get_mut(field)?.fill(0);
        }
        Some(lean)
    }

    fn has_pvh_entry(&self) -> bool {
        let is_entry = |segment: &&ProgramHeader64<Endianness>| {
            let mut notes = segment.notes(self.endian, self.data).ok()??;
            while let Some(note) = notes.next().ok()? {
                if (note.name(), note.n_type(self.endian).0) == PVH_NOTE {
                    return Some(());
                }
            }
            None
        };
        let segments = self.segments().unwrap_or_default();
        let mut notes = segments.iter().filter(|segment| segment.p_type(self.endian) == PT_NOTE);
        notes.any(|segment| is_entry(&segment).is_some())
    }
}

/// The compressed kernel inside a bzImage, with the size behind it that the kernel's build appends.
pub(super) fn payload(image: &[u8]) -> Option<&[u8]> {
    let number = |at: usize| {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    let setup = (usize::from(*image.get(SETUP_SECTS)?) + 1) * 512;
    let from = setup.checked_add(number(PAYLOAD)?)?;
    image.get(from..from.checked_add(number(PAYLOAD + 4)?)?)
}

/// The kernel inside a bzImage, if it is compressed by zstd and QEMU can enter it as it is: to unpack
/// itself takes a guest three seconds.
pub fn kernel(image: &[u8]) -> Option<Vec<u8>> {
    let payload = payload(image)?;
    if !payload.starts_with(&ZSTD) {
        return None;
    }
    let mut plain = Vec::new();
    // The size, which the kernel's build appends, is no part of the frame.
    let decoder = zstd::Decoder::with_buffer(payload).ok()?.single_frame();
    decoder.take(MAX_KERNEL).read_to_end(&mut plain).ok()?;
    let elf = Elf::read(&plain).filter(Elf::has_pvh_entry)?;
    // What follows it serves to move it elsewhere, which its command line forbids (`nokaslr`).
    elf.cut()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    fn this_program() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn a_lean_program_runs() {
        let whole = this_program();
        let lean = loaded(&whole).unwrap();
        assert!(lean.len() < whole.len() && lean[0x28..0x30] == [0; 8]);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lean");
        instep_madehost::program(&file, &lean);
        let ran = Command::new(&file).arg("--list").output().unwrap();
        assert!(String::from_utf8_lossy(&ran.stdout).contains("a_lean_program_runs"), "{ran:?}");
    }

    #[test]
    fn a_program_with_something_appended_is_left_alone() {
        let mut program = this_program();
        program.extend(b"an archive of its own");
        assert_eq!(loaded(&program), None);
        assert_eq!(loaded(b"#!/bin/sh\n"), None);
    }

    /// A bzImage as far as it is read, around this payload.
    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 1024];
        image[SETUP_SECTS] = 1;
        image[PAYLOAD + 4..PAYLOAD + 8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        image.extend(payload);
        image
    }

    /// The same with a table of one section, and what a kernel's build puts behind that.
    fn with_sections(mut elf: Vec<u8>) -> Vec<u8> {
        elf[0x28] = 144; // e_shoff
        elf[0x3a] = 64; // e_shentsize
        elf[0x3c] = 1; // e_shnum
        elf.extend([0; 64]);
        elf.extend(b"where it can be moved");
        elf
    }

    /// An ELF file of a note alone.
    fn noted(kind: u32) -> Vec<u8> {
        let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
        elf.resize(64, 0);
        elf[0x20] = 64; // e_phoff
        elf[0x36] = 56; // e_phentsize
        elf[0x38] = 1; // e_phnum
        let mut segment = vec![4, 0, 0, 0, 4, 0, 0, 0]; // PT_NOTE, readable
        for value in [120u64, 0, 0, 24, 24, 4] {
            segment.extend(value.to_le_bytes());
        }
        elf.extend(segment);
        for value in [4u32, 8, kind] {
            elf.extend(value.to_le_bytes());
        }
        elf.extend(b"Xen\0");
        elf.extend([0; 8]);
        elf
    }

    fn packed(plain: &[u8]) -> Vec<u8> {
        let mut payload = zstd::encode_all(plain, 1).unwrap();
        payload.extend((plain.len() as u32).to_le_bytes());
        payload
    }

    #[test]
    fn a_kernel_that_qemu_can_enter_is_unpacked() {
        assert_eq!(kernel(&image(&packed(&noted(18)))), Some(noted(18)));
        let mut bare = noted(18);
        bare[0x3a] = 64;
        assert_eq!(kernel(&image(&packed(&with_sections(noted(18))))), Some(bare));
        assert_eq!(kernel(&image(&packed(&noted(17)))), None, "no PVH entry");
        assert_eq!(kernel(&image(&packed(b"no ELF file"))), None);
        assert_eq!(kernel(&image(b"\xfd7zXZ\0 another way")), None);
        let cut = image(&packed(&noted(18)));
        assert_eq!(kernel(&cut[..cut.len() - 6]), None);
    }

    proptest! {
        #[test]
        fn nothing_makes_it_fail(
            which in 0..4usize,
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            random in proptest::collection::vec(any::<u8>(), 1..2048),
        ) {
            let mut bytes = match which {
                0 => noted(18),
                1 => with_sections(noted(18)),
                2 => image(&packed(&with_sections(noted(18)))),
                _ => random,
            };
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            let _ = (loaded(&bytes), kernel(&bytes));
            let _ = Elf::read(&bytes).map(|elf| (elf.cut(), elf.has_pvh_entry()));
        }
    }
}
