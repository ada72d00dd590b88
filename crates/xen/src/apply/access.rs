//! What touches a Xen host: `xl vcpu-pin`, and libxenlight for the node affinity.

use super::node_affinity::Library;
use crate::error::Error;
use crate::scan::{Depth, XenScan, scan};
use crate::source::Source;
use crate::text::info::Info;
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::units::NodeId;

/// Looks at a host and changes it. Tests have a made one.
pub trait HostAccess {
    /// Domains with their affinities as they are now.
    ///
    /// # Errors
    /// They cannot be read.
    fn scan_domains(&self) -> Result<XenScan, Error>;

    /// Sets hard and soft affinity of a vCPU; `None` leaves one as it is.
    ///
    /// # Errors
    /// It was refused.
    fn pin(
        &self,
        domain: u32,
        vcpu: u32,
        hard: Option<&CpuSet>,
        soft: Option<&CpuSet>,
    ) -> Result<(), Error>;

    /// Whether node affinity can be set at all.
    ///
    /// # Errors
    /// It cannot; `domain` is named.
    fn can_set_nodes(&self, domain: u32) -> Result<(), Error>;

    /// Sets the node affinity of a domain.
    ///
    /// # Errors
    /// It was refused.
    fn set_nodes(&self, domain: u32, nodes: &NodeSet) -> Result<(), Error>;
}

/// This machine.
#[derive(Clone, Debug)]
pub struct LiveAccess {
    source: Source,
    library: Library,
    nodes: NodeSet,
}

impl LiveAccess {
    /// With `xl` of this source; the version of Xen and the host's nodes are those of `info`.
    pub fn new(source: Source, info: &Info) -> Self {
        let library = Library::of_version(&info.version);
        Self { source, library, nodes: info.nodes.keys().map(|node| NodeId(*node)).collect() }
    }
}

/// The arguments of `xl` that set the affinities of a vCPU, `-` for one that stays.
pub fn pin_arguments(
    domain: u32,
    vcpu: u32,
    hard: Option<&CpuSet>,
    soft: Option<&CpuSet>,
) -> [String; 5] {
    let shown = |cpus: Option<&CpuSet>| match cpus {
        None => "-".to_owned(),
        // `xl` refuses an empty set; a soft affinity of all CPUs means as little.
        Some(cpus) if cpus.is_empty() => "all".to_owned(),
        Some(cpus) => cpus.to_string(),
    };
    ["vcpu-pin".to_owned(), domain.to_string(), vcpu.to_string(), shown(hard), shown(soft)]
}

impl HostAccess for LiveAccess {
    fn scan_domains(&self) -> Result<XenScan, Error> {
        scan(&self.source, Depth::Times)
    }

    fn pin(
        &self,
        domain: u32,
        vcpu: u32,
        hard: Option<&CpuSet>,
        soft: Option<&CpuSet>,
    ) -> Result<(), Error> {
        self.source.run(&pin_arguments(domain, vcpu, hard, soft)).map(drop)
    }

    fn can_set_nodes(&self, domain: u32) -> Result<(), Error> {
        self.library.probe(domain)
    }

    fn set_nodes(&self, domain: u32, nodes: &NodeSet) -> Result<(), Error> {
        self.library.set(domain, nodes, self.nodes.is_subset(nodes))
    }
}
