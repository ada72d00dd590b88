//! Documents that one command prints and another reads: topologies, results to compare.

use instep_trace::topology::TopologyDocument;

#[allow(dead_code, reason = "the command uses the rest")]
#[path = "../../crates/cli/src/compare/documents.rs"]
mod results;

/// `instep analyze --topology`.
pub(crate) fn topology_json(data: &[u8]) {
    let Ok(document) = serde_json::from_slice::<TopologyDocument>(data) else { return };
    if let Ok(topology) = document.topology() {
        // What was read can be written, and read again as the same.
        let again = TopologyDocument::of(&topology).topology().expect("written by us");
        assert_eq!(
            (again.cores(), again.llcs(), again.nodes()),
            (topology.cores(), topology.llcs(), topology.nodes())
        );
    }
}

/// `instep compare`: every reading is a finite number.
pub(crate) fn results(data: &[u8]) {
    let Ok(side) = results::Input::parse("fuzz", &String::from_utf8_lossy(data)) else { return };
    for reading in side.runs.iter().flatten() {
        assert!(reading.value.is_finite(), "{reading:?}");
        assert!(reading.samples.iter().all(|sample| sample.is_finite()), "{reading:?}");
        if let Some((low, high)) = reading.range {
            assert!(low.is_finite() && high.is_finite(), "{reading:?}");
        }
    }
}
