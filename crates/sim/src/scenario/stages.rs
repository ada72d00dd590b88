//! A guest's pipeline as a graph of stages: each takes items from others, works, and passes them on.
//! Refuses cycles: with bounded queues they would stop for ever.

use super::Fault;
use crate::guest::program::{Op, Program, Workload};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;
use toml::Spanned;

/// A stage.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Its name.
    pub name: String,
    /// Work on each item.
    #[serde(deserialize_with = "super::work")]
    pub work: Duration,
    /// Each work is up to this many per cent longer or shorter; 0 when not given.
    #[serde(default)]
    pub imbalance: u32,
    /// Stages that it takes one item of each from; none: it makes items.
    #[serde(default)]
    pub from: Vec<String>,
    /// Items that fit between it and each of those; 4 when not given.
    pub depth: Option<u32>,
}

/// Adds a pipeline's threads and queues to a workload.
///
/// # Errors
/// Names used twice or unknown, cycles, odd numbers.
pub(super) fn add(
    workload: &mut Workload,
    stages: &[Spanned<Stage>],
    profile: usize,
) -> Result<(), Fault> {
    if stages.is_empty() {
        return Ok(());
    }
    let mut names = BTreeMap::new();
    for (at, stage) in stages.iter().enumerate() {
        let this = stage.get_ref();
        if names.insert(this.name.as_str(), at).is_some() {
            return Err(Fault::at(stage.span(), format!("stage {}: named twice", this.name)));
        }
        let depth = this.depth.unwrap_or(4);
        if this.imbalance > 100 || depth == 0 || depth > 65_536 {
            let what = "an imbalance is 0 to 100, a depth 1 to 65536";
            return Err(Fault::at(stage.span(), format!("stage {}: {what}", this.name)));
        }
    }
    let mut sources: Vec<Vec<usize>> = Vec::new();
    for stage in stages {
        let from = stage.get_ref().from.iter().map(|name| {
            let unknown = || format!("stage {}: there is no stage {name}", stage.get_ref().name);
            names.get(name.as_str()).copied().ok_or_else(|| Fault::at(stage.span(), unknown()))
        });
        sources.push(from.collect::<Result<_, _>>()?);
    }
    if let Some(at) = in_cycle(&sources) {
        let name = &stages[at].get_ref().name;
        let what = format!("stage {name}: the pipeline is cyclic, so that it would stop for ever");
        return Err(Fault::at(stages[at].span(), what));
    }
    build(workload, stages, &sources, profile);
    Ok(())
}

/// A stage that can never come after all it takes from, if there is one.
fn in_cycle(sources: &[Vec<usize>]) -> Option<usize> {
    let mut settled = vec![false; sources.len()];
    loop {
        let next = (0..sources.len())
            .find(|at| !settled[*at] && sources[*at].iter().all(|from| settled[*from]));
        match next {
            Some(at) => settled[at] = true,
            None => return settled.iter().position(|settled| !settled),
        }
    }
}

fn build(
    workload: &mut Workload,
    stages: &[Spanned<Stage>],
    sources: &[Vec<usize>],
    profile: usize,
) {
    // For each stage the queues it takes from and puts into.
    let (mut takes, mut puts) = (vec![Vec::new(); stages.len()], vec![Vec::new(); stages.len()]);
    for (to, from) in sources.iter().enumerate() {
        for from in from {
            let queue = workload.queues.len() as u32;
            workload.queues.push(stages[to].get_ref().depth.unwrap_or(4));
            takes[to].push(queue);
            puts[*from].push(queue);
        }
    }
    for (at, stage) in stages.iter().enumerate() {
        let this = stage.get_ref();
        let ns = u64::try_from(this.work.as_nanos()).unwrap_or(u64::MAX / 2048);
        let mut ops: Vec<Op> = takes[at].iter().map(|queue| Op::Pop { queue: *queue }).collect();
        ops.push(Op::Work { ns, spread: this.imbalance });
        ops.extend(puts[at].iter().map(|queue| Op::Push { queue: *queue }));
        if puts[at].is_empty() {
            ops.push(Op::Count { units: 1 });
        }
        ops.push(Op::Jump { to: 0 });
        workload.threads.push((workload.programs.len(), 0));
        workload.programs.push(Program { ops, profile });
    }
    workload.count_in("items");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(links: &[(&str, &[&str])]) -> Result<Workload, Fault> {
        let stage = |(name, from): &(&str, &[&str])| Stage {
            name: (*name).to_owned(),
            work: Duration::from_micros(10),
            imbalance: 0,
            from: from.iter().map(|name| (*name).to_owned()).collect(),
            depth: None,
        };
        let stages: Vec<_> =
            links.iter().enumerate().map(|(at, link)| Spanned::new(at..at, stage(link))).collect();
        let mut workload = Workload::default();
        add(&mut workload, &stages, 0).map(|()| workload)
    }

    #[test]
    fn a_graph_without_cycles_has_a_queue_for_each_link() {
        let workload = stages(&[("c", &["a", "b"]), ("a", &[]), ("b", &["a"])]).unwrap();
        assert_eq!((workload.queues.len(), workload.threads.len()), (3, 3));
    }

    #[test]
    fn a_cycle_is_refused_with_its_place() {
        let fault = stages(&[("a", &[]), ("b", &["a", "c"]), ("c", &["b"])]).unwrap_err();
        assert_eq!((fault.at, fault.what.contains("cyclic")), (Some(1), true));
        assert!(stages(&[("a", &["a"])]).is_err());
        assert!(stages(&[("a", &["x"])]).unwrap_err().what.contains("no stage x"));
        assert!(stages(&[("a", &[]), ("a", &[])]).is_err());
    }
}
