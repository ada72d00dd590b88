//! Node affinity through libxenlight (`shim.c`), which is loaded at run time.

use crate::error::Error;
use instep_core::idset::NodeSet;
use std::ffi::{CString, c_char, c_int};

const TOOLLOG: &str = "libxentoollog.so.1";
/// Bytes of a map of nodes, more than any Xen reads (MAX_NUMNODES is at most 1024).
const MAP: usize = 128;
/// Room for a reason.
const REASON: usize = 512;

unsafe extern "C" {
    fn instep_xen_probe(
        name: *const c_char,
        toollog: *const c_char,
        why: *mut c_char,
        room: usize,
    ) -> c_int;
    fn instep_xen_set_node_affinity(
        name: *const c_char,
        toollog: *const c_char,
        domid: u32,
        map: *mut u8,
        bytes: u32,
        why: *mut c_char,
        room: usize,
    ) -> c_int;
}

/// The library of a version of Xen, such as `libxenlight.so.4.17`.
#[derive(Clone, Debug)]
pub(super) struct Library {
    name: CString,
    toollog: CString,
}

impl Library {
    /// That of `4.17.3-pre`.
    pub(super) fn of_version(version: &str) -> Self {
        let mut numbers = version.split(|c: char| !c.is_ascii_digit());
        let (major, minor) = (numbers.next().unwrap_or(""), numbers.next().unwrap_or(""));
        Self::named(&format!("libxenlight.so.{major}.{minor}"))
    }

    fn named(name: &str) -> Self {
        let text = |text: &str| CString::new(text).unwrap_or_default();
        Self { name: text(name), toollog: text(TOOLLOG) }
    }

    /// Whether it is there and has the functions.
    ///
    /// # Errors
    /// It is not; `domain` is named in the message.
    pub(super) fn probe(&self, domain: u32) -> Result<(), Error> {
        let mut why = [0u8; REASON];
        // SAFETY: both names end with a zero byte and outlive the call, which writes at most `REASON` bytes to `why`.
        let status = unsafe {
            instep_xen_probe(
                self.name.as_ptr(),
                self.toollog.as_ptr(),
                why.as_mut_ptr().cast(),
                REASON,
            )
        };
        result_of(status, &why, domain)
    }

    /// Sets the node affinity of a domain. `is_all` tells that these are all nodes of the host: then Xen derives the
    /// node affinity from the other affinities again, as it does for domains that no toolstack placed.
    ///
    /// # Errors
    /// The library is not there, or Xen refuses.
    pub(super) fn set(&self, domain: u32, nodes: &NodeSet, is_all: bool) -> Result<(), Error> {
        // A full map is the order to do so (domain_set_node_affinity, xen/common/domain.c, 4.17).
        let mut map = [if is_all { 0xff } else { 0u8 }; MAP];
        for node in nodes.iter().filter(|node| (node.0 as usize) < MAP * 8) {
            map[node.0 as usize / 8] |= 1 << (node.0 % 8);
        }
        let mut why = [0u8; REASON];
        // SAFETY: as in `probe`; `map` holds `MAP` bytes and outlives the call, which reads no more than that of it:
        // Xen's maps of nodes are shorter.
        let status = unsafe {
            instep_xen_set_node_affinity(
                self.name.as_ptr(),
                self.toollog.as_ptr(),
                domain,
                map.as_mut_ptr(),
                MAP as u32,
                why.as_mut_ptr().cast(),
                REASON,
            )
        };
        result_of(status, &why, domain)
    }
}

fn result_of(status: c_int, why: &[u8], domain: u32) -> Result<(), Error> {
    if status == 0 {
        return Ok(());
    }
    let why = String::from_utf8_lossy(why.split(|byte| *byte == 0).next().unwrap_or_default());
    let why: Vec<&str> = why.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let why = instep_core::wording::printable(&why.join("; "));
    let next = if why.starts_with("libxenlight cannot be loaded") {
        "install the library of this Xen (Debian: libxenmisc4.17 for 4.17)"
    } else {
        "see `xl dmesg`, and whether this is root in the control domain"
    };
    Err(Error::NodeAffinity { domain, why, next })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_that_is_missing_is_reported_with_what_to_install() {
        let library = Library::named("libxenlight.so.0.0");
        for error in [library.probe(3), library.set(3, &NodeSet::new(), false)] {
            let error = error.unwrap_err().to_string();
            assert!(
                error.starts_with(
                    "cannot set the node affinity of domain 3: libxenlight cannot be loaded"
                ),
                "{error}"
            );
            assert!(error.contains("libxenlight.so.0.0") && error.contains("install"), "{error}");
        }
    }

    #[test]
    fn library_without_the_functions_is_refused() {
        // A library that every program has.
        let mut library = Library::named("libc.so.6");
        library.toollog = library.name.clone();
        let error = library.set(3, &NodeSet::new(), false).unwrap_err().to_string();
        assert!(error.contains("libxenlight lacks a function"), "{error}");
    }

    /// A library with the functions of libxenlight and libxentoollog that records its calls.
    const MADE: &str = r#"
        #include <stdint.h>
        #include <stdio.h>
        struct bitmap { uint32_t size; uint8_t *map; };
        static FILE *log;
        void *xtl_createlogger_stdiostream(FILE *to, int level, unsigned flags)
        { log = to; return level == 8 && !flags ? &log : 0; }
        void xtl_logger_destroy(void *logger) { (void)logger; }
        int libxl_ctx_alloc(void **ctx, int version, unsigned flags, void *logger)
        { *ctx = &log; return version || flags || logger != &log; }
        int libxl_ctx_free(void *ctx) { return ctx != &log; }
        int libxl_domain_set_nodeaffinity(void *ctx, uint32_t domid, struct bitmap *nodes)
        {
            FILE *out = fopen(OUT, "w");
            if (ctx != &log || domid == 999) {
                fprintf(log, "libxl: error: Domain %u:Setting node affinity: No such process\n", domid);
                return -3;
            }
            fprintf(out, "%u:", domid);
            for (uint32_t at = 0; at < nodes->size; at++) fprintf(out, " %02x", nodes->map[at]);
            return fclose(out);
        }"#;

    #[test]
    fn library_gets_the_domain_and_the_map() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let (source, library, out) = (place("made.c"), place("made.so"), place("out"));
        std::fs::write(&source, MADE).unwrap();
        let built = std::process::Command::new("cc")
            .args(["-shared", "-fPIC", "-o", &library, &source])
            .arg(format!("-DOUT=\"{out}\""))
            .status();
        assert!(built.unwrap().success());
        let mut made = Library::named(&library);
        made.toollog = made.name.clone();
        made.probe(7).unwrap();
        let nodes = |list| NodeSet::parse_list(list).unwrap();
        made.set(7, &nodes("1,9"), false).unwrap();
        let told = std::fs::read_to_string(&out).unwrap();
        assert!(told.starts_with("7: 02 02 00") && told.split(' ').count() == 1 + MAP, "{told}");
        made.set(7, &nodes("0-1"), true).unwrap();
        let told = std::fs::read_to_string(&out).unwrap();
        assert!(told.split(' ').skip(1).all(|byte| byte == "ff"), "{told}");
        let error = made.set(999, &nodes("0"), false).unwrap_err();
        assert!(error.is_gone(), "{error}");
        assert!(
            error.to_string().contains("libxenlight refused: libxl: error: Domain 999"),
            "{error}"
        );
    }

    #[test]
    fn name_of_the_library_has_the_version_of_xen() {
        for (version, name) in [
            ("4.17.3-pre", "libxenlight.so.4.17"),
            ("4.20.0", "libxenlight.so.4.20"),
            ("4.13", "libxenlight.so.4.13"),
        ] {
            assert_eq!(Library::of_version(version).name.to_str(), Ok(name));
        }
    }
}
