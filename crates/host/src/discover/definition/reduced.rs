//! What a copy of a host keeps of definitions: what this module's parsers find in them, and nothing else. They hold
//! passwords of consoles, keys, data for guests, and names of disks.

use super::{MAX_FILE, MAX_TEXT, libvirt, proxmox};
use quick_xml::escape::escape;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// In place of a file that cannot be understood.
const LEFT_OUT: &str =
    "<!-- instep collect left this out: it is not what libvirt writes of a domain -->\n";

/// Which of the files that are read here one is.
enum DefinitionFile {
    Status,
    Pid,
    Config,
}

fn kind(place: &Path) -> Option<DefinitionFile> {
    let is = |ending: &str| place.extension().is_some_and(|extension| extension == ending);
    match place.parent()?.to_str()? {
        "run/libvirt/qemu" if is("xml") => Some(DefinitionFile::Status),
        "run/qemu-server" if is("pid") => Some(DefinitionFile::Pid),
        "etc/pve/qemu-server" if is("conf") => Some(DefinitionFile::Config),
        _ => None,
    }
}

/// What a copy keeps of the file at this place below the root; `None` where it is no definition.
pub(crate) fn reduced(place: &Path, bytes: &[u8]) -> Option<Vec<u8>> {
    let is_too_large = bytes.len() as u64 > MAX_FILE;
    let text = match kind(place)? {
        // Readers of the copy refuse it, too.
        _ if is_too_large => return Some(vec![b' '; bytes.len()]),
        DefinitionFile::Status => status(bytes).unwrap_or_else(|| LEFT_OUT.to_owned()),
        DefinitionFile::Pid => {
            proxmox::pid(bytes).map(|pid| format!("{pid}\n")).unwrap_or_default()
        }
        DefinitionFile::Config => tags(bytes),
    };
    Some(text.into_bytes())
}

/// The process that a definition is of, among these files; `None` where that is not known, and for other files.
pub(crate) fn process_of(place: &Path, files: &BTreeMap<PathBuf, Vec<u8>>) -> Option<u32> {
    let bytes = |place: &Path| files.get(place).map(Vec::as_slice).unwrap_or_default();
    let found = match kind(place)? {
        // One that was left out tells its reader that something is wrong with it.
        DefinitionFile::Status => Some(libvirt::parse(bytes(place)).ok()?.pid),
        DefinitionFile::Pid => proxmox::pid(bytes(place)),
        DefinitionFile::Config => {
            let name = place.file_stem()?.to_str()?;
            proxmox::pid(bytes(Path::new(&format!("run/qemu-server/{name}.pid"))))
        }
    };
    // No process has this number.
    Some(found.unwrap_or_default())
}

/// The state of a domain with its process, its UUID and Instep's elements alone; `None` where it would not read as
/// the whole file does.
fn status(bytes: &[u8]) -> Option<String> {
    let mut domain = libvirt::parse(bytes).ok()?;
    let cut = |text: &mut String| *text = text.chars().take(MAX_TEXT).collect();
    for (key, value) in &mut domain.settings {
        cut(key);
        cut(value);
    }
    let mut text = format!("<domstatus pid='{}'><domain>", domain.pid);
    let _ = write!(text, "<uuid>{}</uuid><metadata>", domain.uuid);
    for unknown in &domain.unknown {
        // The parser gives namespaces as they are written.
        let quote = if unknown.namespace.contains('"') { '\'' } else { '"' };
        let _ = write!(text, "<{} xmlns={quote}{}{quote}/>", unknown.name, unknown.namespace);
    }
    if !domain.settings.is_empty() {
        let _ = write!(text, "<vm xmlns=\"{}\"", libvirt::NAMESPACE);
        for (key, value) in &domain.settings {
            let _ = write!(text, " {key}=\"{}\"", written(value));
        }
        text.push_str("/>");
    }
    text.push_str("</metadata></domain></domstatus>\n");
    let is_same = libvirt::parse(text.as_bytes()).is_ok_and(|reduced| reduced == domain);
    is_same.then_some(text)
}

/// A value as an attribute has it; white space other than blanks would become blanks.
fn written(value: &str) -> String {
    let whites = [('\n', "&#10;"), ('\r', "&#13;"), ('\t', "&#9;")];
    whites
        .iter()
        .fold(escape(value).into_owned(), |text, (white, written)| text.replace(*white, written))
}

/// A configuration with Instep's tags alone.
fn tags(bytes: &[u8]) -> String {
    let tags = proxmox::settings(bytes).into_iter().map(|(key, value)| match value.as_str() {
        "" => format!("{}{key}", proxmox::PREFIX),
        value => format!("{}{key}-{value}", proxmox::PREFIX),
    });
    let tags: Vec<String> = tags.collect();
    if tags.is_empty() { String::new() } else { format!("tags: {}\n", tags.join(";")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: &str = include_str!("fixtures/libvirt-web.xml");
    const DB: &str = include_str!("fixtures/proxmox-104.conf");

    fn kept(place: &str, text: &str) -> String {
        String::from_utf8(reduced(Path::new(place), text.as_bytes()).unwrap()).unwrap()
    }

    fn kept_of_domain(text: &str) -> String {
        kept("run/libvirt/qemu/web.xml", text)
    }

    #[test]
    fn domain_keeps_process_uuid_and_instep_s_elements() {
        let wanted = "<domstatus pid='4711'><domain><uuid>5b2f8c1e-7a44-4d0b-9a53-0f6f3f1c2e77</uuid><metadata>\
                      <vm xmlns=\"urn:instep:vm:1\" cosched=\"relaxed\" weight=\"200\"/></metadata></domain></domstatus>\n";
        assert_eq!(kept_of_domain(WEB), wanted);
        assert_eq!(kept_of_domain(wanted), wanted, "a copy of a copy is the same");
    }

    #[test]
    fn no_password_of_a_definition_is_kept() {
        let console =
            "<graphics type='vnc' passwd='geheim-1' passwdValidTo='2030-01-01T00:00:00'/>";
        let more = "<sysinfo><entry name='x'>geheim-2</entry></sysinfo><description>geheim-3</description>\
                    <qemu:commandline><qemu:arg value='geheim-4'/></qemu:commandline>";
        let web = WEB.replace("</devices>", &format!("{console}</devices>{more}"));
        let of_another =
            "<metadata><app:key xmlns:app='urn:app' secret='geheim-5'>geheim-5</app:key>";
        let web = web.replace("<metadata>", of_another);
        let web = web.replacen("<domstatus ", "<domstatus secret='geheim-6' ", 1);
        (1..=6).for_each(|at| assert!(web.contains(&format!("geheim-{at}")), "{at}"));
        assert!(!kept_of_domain(&web).contains("geheim"));
        let db = "description: geheim\ncipassword: geheim\nsshkeys: geheim\ntags: geheim;instep-ignore\n[old]\nargs: geheim\n";
        assert_eq!(kept("etc/pve/qemu-server/104.conf", db), "tags: instep-ignore\n");
    }

    #[test]
    fn what_cannot_be_understood_is_left_out_whole() {
        for cut in [1, 100, WEB.len() / 2] {
            let text = kept_of_domain(&WEB[..cut]);
            assert_eq!(text, LEFT_OUT);
        }
        assert!(libvirt::parse(LEFT_OUT.as_bytes()).is_err());
        let large = "geheim".repeat(1 << 18);
        let kept = kept_of_domain(&large);
        assert!(kept.len() as u64 > MAX_FILE && !kept.contains("geheim"));
        assert_eq!(self::kept("run/qemu-server/1.pid", "geheim"), "");
    }

    #[test]
    fn mistakes_are_kept_as_they_are_reported() {
        let ours =
            "<instep:vm xmlns:instep=\"urn:instep:vm:1\" cosched=\"relaxed\" weight=\"200\"/>";
        let wrong = "<i:x xmlns:i=\"urn:instep:vm:1\"/><i:vm xmlns:i=\"urn:instep:&quot;vm:2\" a=\"1\"/>\
                     <i:vm xmlns:i=\"urn:instep:vm:1\" weight=\"&lt;&#10;&quot;'&amp;2\" wieght=\"1\"/>";
        assert!(WEB.contains(ours));
        let web = WEB.replace(ours, wrong);
        let (whole, reduced) = (libvirt::parse(web.as_bytes()), kept_of_domain(&web));
        assert_ne!(reduced, LEFT_OUT);
        assert_eq!(libvirt::parse(reduced.as_bytes()), whole);
    }

    #[test]
    fn tags_of_instep_and_the_process_are_kept() {
        let kept_db = kept("etc/pve/qemu-server/104.conf", DB);
        assert_eq!(kept_db, "tags: instep-cosched-relaxed;instep-weight-200;instep-period-4.5ms\n");
        assert_eq!(proxmox::settings(kept_db.as_bytes()), proxmox::settings(DB.as_bytes()));
        assert_eq!(kept("run/qemu-server/104.pid", " 4711\n"), "4711\n");
        assert_eq!(kept("etc/pve/qemu-server/104.conf", "tags: a\n"), "");
        for other in ["proc/1/stat", "run/libvirt/qemu/log/web.xml", "etc/pve/qemu-server/104.pid"]
        {
            assert_eq!(reduced(Path::new(other), b"x"), None, "{other}");
        }
    }

    #[test]
    fn definitions_are_of_the_process_that_they_name() {
        let place = |text: &str| PathBuf::from(text);
        let files: BTreeMap<_, _> = [
            (place("run/libvirt/qemu/web.xml"), WEB.as_bytes().to_vec()),
            (place("run/libvirt/qemu/cut.xml"), b"<".to_vec()),
            (place("run/qemu-server/104.pid"), b"4712\n".to_vec()),
        ]
        .into();
        for (name, process) in [
            ("run/libvirt/qemu/web.xml", Some(4711)),
            ("run/libvirt/qemu/cut.xml", None),
            ("run/qemu-server/104.pid", Some(4712)),
            ("etc/pve/qemu-server/104.conf", Some(4712)),
            ("etc/pve/qemu-server/105.conf", Some(0)),
            ("proc/4711/stat", None),
        ] {
            assert_eq!(process_of(Path::new(name), &files), process, "{name}");
        }
    }
}
