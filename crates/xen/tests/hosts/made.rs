//! Outputs of real Xen hosts (tests/data/README.md), and a made host that starts from one of them.

use instep_core::idset::{CpuSet, NodeSet};
use instep_core::units::NodeId;
use instep_xen::apply::{HostAccess, Journal, pin_arguments};
use instep_xen::scan::{Depth, scan};
use instep_xen::text::XlSet;
use instep_xen::{Error, Source, XenScan};
use std::cell::{Cell, RefCell};
use std::fs;
use std::path::PathBuf;

/// The copy of a captured host.
pub(crate) fn copy(state: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(state)
}

/// All that is in it.
pub(crate) fn captured(state: &str) -> XenScan {
    scan(&Source::Copy(copy(state)), Depth::Full).unwrap()
}

/// All that is in a copy of it whose files this changes, given their names and texts.
pub(crate) fn changed(
    state: &str,
    change: impl Fn(&str, String) -> String,
) -> Result<XenScan, Error> {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("xen")).unwrap();
    for entry in fs::read_dir(copy(state).join("xen")).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let text = change(&name, fs::read_to_string(entry.path()).unwrap());
        fs::write(dir.path().join("xen").join(name), text).unwrap();
    }
    scan(&Source::Copy(dir.path().to_owned()), Depth::Full)
}

/// What goes wrong on a made host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Nothing.
    None,
    /// The domain of this number ends before the next change.
    Ends(u32),
    /// This many changes of vCPUs work, then all are refused for lack of privilege.
    DeniedAfter(u32),
    /// There is no libxenlight.
    NoLibrary,
    /// libxenlight is there, but Xen refuses the node affinity.
    NodesRefused,
    /// Xen takes the next change of a vCPU, but its command is stopped before it ends.
    Stopped,
    /// The same, and all that follow are refused.
    StoppedThenDenied,
    /// Xen takes the node affinity, but libxenlight fails afterwards.
    NodesTakenAndFailed,
    /// Commands succeed, but Xen takes only the changes of vCPUs below this one.
    IgnoredFrom(u32),
}

/// A host that carries out the commands it gets, with a log of them.
pub(crate) struct Made {
    pub(crate) scan: RefCell<XenScan>,
    pub(crate) trouble: Cell<Trouble>,
    pub(crate) log: RefCell<Vec<String>>,
    /// The state directory whose journal must name a domain before it is changed.
    pub(crate) recorded_in: RefCell<Option<PathBuf>>,
}

impl Made {
    pub(crate) fn of(state: &str) -> Self {
        Self::from(captured(state))
    }

    pub(crate) fn from(scan: XenScan) -> Self {
        let (trouble, log) = (Cell::new(Trouble::None), RefCell::default());
        let recorded_in = RefCell::default();
        Self { scan: RefCell::new(scan), trouble, log, recorded_in }
    }

    fn assert_recorded(&self, domain: u32) {
        let Some(dir) = &*self.recorded_in.borrow() else { return };
        let journal = Journal::load(dir).unwrap().expect("a journal is on disk");
        assert!(journal.domains.keys().any(|key| key.id == domain), "{journal:?}");
    }

    /// Hard and soft affinity of a vCPU.
    pub(crate) fn sets(&self, domain: u32, vcpu: u32) -> (String, String) {
        let scan = self.scan.borrow();
        let vcpu = scan.by_id(domain).unwrap().vcpu(vcpu).unwrap();
        (vcpu.hard.to_string(), vcpu.soft.to_string())
    }

    /// The node affinity of a domain.
    pub(crate) fn nodes(&self, domain: u32) -> String {
        self.scan.borrow().by_id(domain).unwrap().nodes.to_string()
    }

    fn failed(&self, said: &str) -> Error {
        let (command, status) = ("xl vcpu-pin".to_owned(), "status 1".to_owned());
        Error::Failed { command, status, said: said.to_owned() }
    }
}

impl HostAccess for &Made {
    fn scan_domains(&self) -> Result<XenScan, Error> {
        Ok(self.scan.borrow().clone())
    }

    fn pin(
        &self,
        domain: u32,
        vcpu: u32,
        hard: Option<&CpuSet>,
        soft: Option<&CpuSet>,
    ) -> Result<(), Error> {
        self.assert_recorded(domain);
        match self.trouble.get() {
            Trouble::Ends(id) => self.scan.borrow_mut().domains.retain(|one| one.key.id != id),
            Trouble::DeniedAfter(0) => return Err(self.failed("Permission denied")),
            Trouble::DeniedAfter(left) => self.trouble.set(Trouble::DeniedAfter(left - 1)),
            Trouble::IgnoredFrom(first) if vcpu >= first => return Ok(()),
            _ => {}
        }
        let mut scan = self.scan.borrow_mut();
        let all = scan.info.all_cpus();
        let found = scan.domains.iter_mut().find(|one| one.key.id == domain);
        let Some(found) = found else {
            return Err(
                self.failed("libxl: error: Domain 9:Setting vcpu affinity: No such process")
            );
        };
        let of = found.vcpus.iter_mut().find(|one| one.index == vcpu).unwrap();
        // As `xl` reads them.
        let arguments = pin_arguments(domain, vcpu, hard, soft);
        for (set, word) in [(&mut of.hard, &arguments[3]), (&mut of.soft, &arguments[4])] {
            if word != "-" {
                *set = XlSet::parse(word).unwrap().of(&all);
            }
        }
        self.log.borrow_mut().push(arguments.join(" "));
        match self.trouble.get() {
            Trouble::Stopped => self.trouble.set(Trouble::None),
            Trouble::StoppedThenDenied => self.trouble.set(Trouble::DeniedAfter(0)),
            _ => return Ok(()),
        }
        Err(Error::Slow { command: "xl vcpu-pin".to_owned(), seconds: 10 })
    }

    fn can_set_nodes(&self, domain: u32) -> Result<(), Error> {
        match self.trouble.get() {
            Trouble::NoLibrary => Err(refused(domain, "libxenlight cannot be loaded")),
            _ => Ok(()),
        }
    }

    fn set_nodes(&self, domain: u32, nodes: &NodeSet) -> Result<(), Error> {
        self.assert_recorded(domain);
        self.can_set_nodes(domain)?;
        if self.trouble.get() == Trouble::DeniedAfter(0) {
            return Err(refused(domain, "Permission denied"));
        }
        if self.trouble.get() == Trouble::NodesRefused {
            return Err(refused(domain, "libxenlight refused"));
        }
        let mut scan = self.scan.borrow_mut();
        let found = scan.domains.iter_mut().find(|one| one.key.id == domain).unwrap();
        found.nodes = nodes.clone();
        self.log.borrow_mut().push(format!("nodes {domain} {nodes}"));
        if self.trouble.get() == Trouble::NodesTakenAndFailed {
            self.trouble.set(Trouble::None);
            return Err(refused(domain, "libxenlight failed"));
        }
        Ok(())
    }
}

fn refused(domain: u32, why: &str) -> Error {
    Error::NodeAffinity { domain, why: why.to_owned(), next: "see there" }
}

/// A set of one node.
pub(crate) fn node(id: u32) -> NodeSet {
    NodeSet::one(NodeId(id))
}
