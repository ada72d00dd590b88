//! `xl list -l`: the configurations of domains, as JSON. Domains that another toolstack made, and dom0, may be
//! missing in it.

use super::{MOST_NAMED, XlTable};
use crate::error::Error;
use instep_core::idset::NodeSet;
use instep_core::snapshot::GuestNode;
use instep_core::units::{Bytes, NodeId};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

const COMMAND: &str = "xl list -l";
/// More nodes than a guest has.
const MOST_NODES: usize = 1024;

/// What the configuration of a domain says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// `pv`, `hvm` or `pvh`.
    pub kind: String,
    /// The vCPUs that the domain was made with, of those that it may have at most.
    pub available: BTreeSet<u32>,
    /// The guest's NUMA nodes (`vnuma`), each bound to a node of the host.
    pub guest_nodes: Vec<GuestNode>,
}

#[derive(Deserialize)]
struct Entry {
    domid: Option<u32>,
    config: Option<Whole>,
}

#[derive(Deserialize)]
struct Whole {
    c_info: Option<Create>,
    b_info: Option<Build>,
}

#[derive(Deserialize)]
struct Create {
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Build {
    #[serde(default)]
    avail_vcpus: Vec<u32>,
    #[serde(default)]
    vnuma_nodes: Vec<VirtualNode>,
}

#[derive(Deserialize)]
struct VirtualNode {
    #[serde(default)]
    memkb: u64,
    pnode: Option<u32>,
    #[serde(default)]
    vcpus: Vec<u32>,
}

/// Reads it, by domain. An entry of another shape is left out, as one that tells no domain is.
///
/// # Errors
/// It is no list as JSON.
pub fn parse(text: &str) -> Result<XlTable<BTreeMap<u32, Config>>, Error> {
    let entries: Vec<serde_json::Value> = serde_json::from_str(text).map_err(|error| {
        let line = text.lines().nth(error.line().saturating_sub(1)).unwrap_or_default();
        Error::output(COMMAND, error.line(), line, "a list of domains as JSON")
    })?;
    let mut table = XlTable::<BTreeMap<u32, Config>>::default();
    for (number, entry) in entries.into_iter().enumerate() {
        match serde_json::from_value::<Entry>(entry) {
            Ok(Entry { domid: Some(id), config: Some(whole) }) => {
                table.rows.insert(id, config(whole));
            }
            Ok(_) => {}
            Err(error) if table.unread.len() < MOST_NAMED => {
                table.unread.push(format!("entry {number} of `{COMMAND}`: {error}: left out"));
            }
            Err(_) => {}
        }
    }
    Ok(table)
}

fn config(whole: Whole) -> Config {
    let (vcpus, nodes) =
        whole.b_info.map(|build| (build.avail_vcpus, build.vnuma_nodes)).unwrap_or_default();
    let node = |(id, node): (usize, VirtualNode)| GuestNode {
        id: id as u32,
        vcpus: node.vcpus,
        memory: Bytes(node.memkb.saturating_mul(1024)),
        resident: BTreeMap::new(),
        bound: node.pnode.filter(|id| *id < MOST_NODES as u32).map(|id| NodeSet::one(NodeId(id))),
    };
    Config {
        available: vcpus.into_iter().collect(),
        kind: whole.c_info.and_then(|create| create.kind).unwrap_or_default(),
        guest_nodes: nodes.into_iter().take(MOST_NODES).enumerate().map(node).collect(),
    }
}
