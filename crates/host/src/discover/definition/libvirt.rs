//! The file that libvirt keeps of a running domain, `/run/libvirt/qemu/NAME.xml`.
//!
//! ```xml
//! <domstatus state='running' reason='booted' pid='4711'>
//!   <domain type='kvm' id='1'>
//!     <uuid>...</uuid>
//!     <metadata>
//!       <instep:vm xmlns:instep="urn:instep:vm:1" cosched="relaxed" weight="200"/>
//! ```
//! Whoever may define domains chooses all of `<domain>`. So elements nest to a bounded depth, entities and document types are
//! not expanded, and a file that does not end as it must is no answer. It knows nothing of which settings there are.

use quick_xml::XmlVersion;
use quick_xml::events::attributes::Attribute;
use quick_xml::events::{BytesStart, Event};
use quick_xml::name::{Namespace, ResolveResult};
use quick_xml::reader::NsReader;

/// The namespace of Instep's element in the metadata of a domain.
pub const NAMESPACE: &str = "urn:instep:vm:1";
/// What namespaces of all versions begin with.
const ALL_VERSIONS: &str = "urn:instep:";
/// The deepest nesting that is read; libvirt's own parser stops at 256.
const MAX_DEPTH: usize = 256;
/// The most attributes of an element that are looked at.
const MAX_ATTRIBUTES: usize = 64;
/// The most settings and the most problems that are kept.
const MAX_FOUND: usize = 64;
/// More than a UUID has.
const MAX_UUID: usize = 64;

/// What the file of a running domain says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domain {
    /// The process that runs it.
    pub pid: u32,
    /// Its UUID.
    pub uuid: String,
    /// The attributes of Instep's element in its metadata, in their order; at most 64.
    pub settings: Vec<(String, String)>,
    /// Elements of Instep's namespaces that are none, in their order; at most 64.
    pub unknown: Vec<Unknown>,
}

/// An element of one of Instep's namespaces that means nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Its namespace.
    pub namespace: String,
    /// Its name without a prefix.
    pub name: String,
}

impl Unknown {
    /// What is wrong with it, printable.
    fn problem(&self) -> String {
        let Self { namespace, name } = self;
        super::readable(&match namespace == NAMESPACE {
            true => format!(
                "its metadata has an element `{name}` of Instep's namespace, which has only `vm`"
            ),
            false => format!(
                "its metadata has an element of the namespace `{namespace}`, which is unknown; write {NAMESPACE}"
            ),
        })
    }
}

impl Domain {
    /// What is wrong with its metadata, one sentence each.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        self.unknown.iter().map(Unknown::problem)
    }

    /// Whether it is the domain that this process runs.
    pub fn is_of(&self, pid: u32, uuid: Option<&str>) -> bool {
        let digits = |uuid: &str| -> String {
            uuid.chars().filter(|c| *c != '-').map(|c| c.to_ascii_lowercase()).collect()
        };
        let is_same = |uuid: &str| !uuid.is_empty() && digits(uuid) == digits(&self.uuid);
        self.pid == pid && uuid.is_some_and(is_same)
    }
}

/// An element that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Status,
    Domain,
    Uuid,
    Metadata,
    Other,
}

/// Reads such a file.
///
/// # Errors
/// It is no XML, is cut, nests too deep, has a document type, or is not the state of a domain with a process and a UUID.
pub fn parse(bytes: &[u8]) -> Result<Domain, String> {
    let text = String::from_utf8_lossy(bytes);
    let mut reader = NsReader::from_str(&text);
    reader.config_mut().expand_empty_elements = true;
    let mut domain = Domain::default();
    let mut open: Vec<Open> = Vec::new();
    let mut is_whole = false;
    loop {
        let (namespace, event) = reader.read_resolved_event().map_err(not_whole)?;
        match event {
            Event::Start(start) => {
                if open.len() >= MAX_DEPTH {
                    return Err(format!("its elements nest deeper than {MAX_DEPTH}"));
                }
                if is_whole {
                    return Err("it has two root elements".to_owned());
                }
                let element = place(&open, &start);
                match element {
                    Open::Status => domain.pid = pid(&start)?,
                    Open::Other if open.last() == Some(&Open::Metadata) => {
                        domain.note(&namespace, &start);
                    }
                    _ => {}
                }
                open.push(element);
            }
            Event::End(_) => {
                open.pop();
                is_whole = open.is_empty();
            }
            Event::Text(text) if open.last() == Some(&Open::Uuid) => {
                let room = MAX_UUID.saturating_sub(domain.uuid.len());
                domain.uuid.extend(text.into_inner().trim().chars().take(room));
            }
            Event::DocType(_) => {
                return Err("it has a document type, which libvirt writes none of".to_owned());
            }
            Event::Eof => break,
            _ => {}
        }
    }
    if !is_whole {
        return Err("it is cut: its root element does not end".to_owned());
    }
    if domain.uuid.is_empty() {
        return Err("its domain has no UUID".to_owned());
    }
    Ok(domain)
}

/// Why it cannot be read; the parser's advice to programmers is left out.
fn not_whole(error: quick_xml::Error) -> String {
    let why = error.to_string();
    format!("it is no whole XML: {}", why.split(';').next().unwrap_or_default())
}

/// Which of the elements that matter this one is.
fn place(open: &[Open], start: &BytesStart<'_>) -> Open {
    match (open, start.name().0) {
        ([], "domstatus") => Open::Status,
        ([Open::Status], "domain") => Open::Domain,
        ([Open::Status, Open::Domain], "uuid") => Open::Uuid,
        ([Open::Status, Open::Domain], "metadata") => Open::Metadata,
        _ => Open::Other,
    }
}

fn pid(status: &BytesStart<'_>) -> Result<u32, String> {
    let found = attributes(status).find(|attribute| attribute.key.0 == "pid");
    let pid = found.and_then(|attribute| attribute.value.parse().ok());
    pid.ok_or_else(|| "its element domstatus names no process (pid='...')".to_owned())
}

/// Attributes that can be read; a second one of the same name is one of them.
fn attributes<'a>(start: &'a BytesStart<'_>) -> impl Iterator<Item = Attribute<'a>> {
    let mut all = start.attributes();
    // Looking for each among all before it takes a time that is quadratic in the length of the file.
    all.with_checks(false);
    all.take(MAX_ATTRIBUTES).filter_map(Result::ok)
}

impl Domain {
    /// Notes what an element of the metadata says, if it is Instep's.
    fn note(&mut self, namespace: &ResolveResult<'_>, start: &BytesStart<'_>) {
        let ResolveResult::Bound(Namespace(namespace)) = namespace else { return };
        let name = start.local_name();
        if !namespace.starts_with(ALL_VERSIONS) {
            return;
        }
        if (*namespace, name.as_ref()) != (NAMESPACE, "vm") {
            if self.unknown.len() < MAX_FOUND {
                let short = |text: &str| text.chars().take(super::MAX_TEXT).collect();
                let (namespace, name) = (short(namespace), short(name.as_ref()));
                self.unknown.push(Unknown { namespace, name });
            }
            return;
        }
        for attribute in attributes(start).filter(|it| it.key.as_namespace_binding().is_none()) {
            let value = attribute.normalized_value(XmlVersion::Implicit1_0);
            let value =
                value.map_or_else(|_| attribute.value.to_string(), |value| value.to_string());
            if self.settings.len() < MAX_FOUND {
                self.settings.push((attribute.key.0.to_owned(), value));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: &str = include_str!("fixtures/libvirt-web.xml");
    const OURS: &str =
        r#"<instep:vm xmlns:instep="urn:instep:vm:1" cosched="relaxed" weight="200"/>"#;

    fn with(ours: &str) -> Result<Domain, String> {
        assert!(WEB.contains(OURS), "the fixture has it");
        parse(WEB.replace(OURS, ours).as_bytes())
    }

    fn pairs(domain: &Domain) -> Vec<(&str, &str)> {
        domain.settings.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }

    #[test]
    fn settings_stand_beside_metadata_of_others() {
        let domain = parse(WEB.as_bytes()).unwrap();
        assert_eq!(pairs(&domain), [("cosched", "relaxed"), ("weight", "200")]);
        assert_eq!((domain.pid, domain.problems().count()), (4711, 0));
        assert_eq!(domain.uuid, "5b2f8c1e-7a44-4d0b-9a53-0f6f3f1c2e77");
    }

    #[test]
    fn a_domain_is_known_by_process_and_uuid_not_by_its_name() {
        let domain = parse(WEB.as_bytes()).unwrap();
        let uuid = "5B2F8C1E7A444D0B9A530F6F3F1C2E77";
        assert!(domain.is_of(4711, Some(uuid)) && domain.is_of(4711, Some(&domain.uuid)));
        assert!(!domain.is_of(4712, Some(uuid)) && !domain.is_of(4711, None));
        assert!(!domain.is_of(4711, Some("5b2f8c1e-7a44-4d0b-9a53-0f6f3f1c2e78")));
        assert!(!Domain { pid: 1, ..Domain::default() }.is_of(1, Some("")));
    }

    #[test]
    fn namespace_counts_and_prefix_and_place_do_not_matter() {
        for ours in [
            r#"<vm xmlns="urn:instep:vm:1" weight="7"/>"#,
            r#"<i:vm weight='7' xmlns:i='urn:instep:vm:1'></i:vm>"#,
            r#"<i:vm weight='7' xmlns:i='urn:instep:vm:1'><vm weight="9"/>x</i:vm>"#,
        ] {
            assert_eq!(pairs(&with(ours).unwrap()), [("weight", "7")], "{ours}");
        }
        let above = WEB.replace(OURS, r#"<i:vm weight="7"/>"#);
        let above = above.replace("<domain type", "<domain xmlns:i='urn:instep:vm:1' type");
        assert_eq!(pairs(&parse(above.as_bytes()).unwrap()), [("weight", "7")]);
        for none in [
            r#"<vm weight="7"/>"#,
            r#"<instep:vm weight="7"/>"#,
            r#"<instep:vm xmlns:instep="urn:other" weight="7"/>"#,
            r#"<a><instep:vm xmlns:instep="urn:instep:vm:1" weight="7"/></a>"#,
            r#"<!-- <instep:vm xmlns:instep="urn:instep:vm:1" weight="7"/> -->"#,
        ] {
            let domain = with(none).unwrap();
            assert!(domain.settings.is_empty() && domain.unknown.is_empty(), "{none}: {domain:?}");
        }
        let elsewhere = WEB.replace("<title>", &format!("{OURS}<title>"));
        let outside = parse(elsewhere.as_bytes()).unwrap();
        assert_eq!(outside.settings.len(), 2, "only that in the metadata");
    }

    #[test]
    fn another_version_and_another_element_are_reported() {
        let said = |ours| with(ours).unwrap().problems().next().unwrap();
        let version = said(r#"<i:vm xmlns:i="urn:instep:vm:2" weight="7"/>"#);
        assert!(
            version.contains("`urn:instep:vm:2`, which is unknown; write urn:instep:vm:1"),
            "{version}"
        );
        let element = said(r#"<i:domain xmlns:i="urn:instep:vm:1"/>"#);
        assert!(element.contains("an element `domain`"), "{element}");
    }

    #[test]
    fn half_a_file_and_what_is_no_file_of_a_domain_are_refused() {
        for end in (0..WEB.trim_end().len()).step_by(7) {
            let cut = WEB.get(..end).unwrap_or_default();
            assert!(parse(cut.as_bytes()).is_err(), "{end}");
        }
        let refused = |from: &str, to: &str| {
            assert!(WEB.contains(from), "{from}");
            parse(WEB.replacen(from, to, 1).as_bytes()).unwrap_err()
        };
        assert!(refused(" pid='4711'", "").contains("names no process"));
        assert!(refused("<uuid>", "<id>").contains("no whole XML"));
        assert!(
            refused("<domstatus", "<!DOCTYPE d [<!ENTITY x 'y'>]><domstatus")
                .contains("document type")
        );
        assert!(parse(b"<domain pid='1'><uuid>1</uuid></domain>").unwrap_err().contains("no UUID"));
        assert!(parse(b"").is_err() && parse(b"\xff\xfe<").is_err() && parse(b"4711\n").is_err());
    }

    #[test]
    fn entities_are_not_expanded() {
        let domain = with(r#"<i:vm xmlns:i="urn:instep:vm:1" a="&x;" b="&#50;&amp;"/>"#).unwrap();
        assert_eq!(pairs(&domain), [("a", "&x;"), ("b", "2&")]);
    }

    #[test]
    fn hostile_metadata_is_bounded() {
        let many: String = (0..40_000).map(|i| format!(" a{i}=''")).collect();
        let domain = with(&format!(r#"<i:vm xmlns:i="urn:instep:vm:1"{many}/>"#)).unwrap();
        assert!(domain.settings.len() < MAX_ATTRIBUTES);
        let elements = r#"<i:x xmlns:i="urn:instep:vm:1"/>"#.repeat(20_000);
        assert_eq!(with(&elements).unwrap().unknown.len(), MAX_FOUND);
        let (deep, end) = ("<a>".repeat(100_000), "</a>".repeat(100_000));
        assert!(with(&format!("{deep}{end}")).unwrap_err().contains("nest deeper"));
        let names: String = (0..40_000).map(|i| format!(" xmlns:a{i}='x'")).collect();
        let many = with(&format!("<a{names}/>")).unwrap_err();
        assert!(many.ends_with("namespace bindings in scope"), "{many}");
    }
}
