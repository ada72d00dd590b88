//! `cargo xtask bench placement`: evidence for the policy `instep` that does not share its constants. Random and
//! recorded hosts are placed by each rule and simulated; on small hosts the plan is compared with the best of all plans.
//!
//! ```text
//! options, recorded machines, before.json (an earlier policy)
//!   -> jobs -> crates/sim/examples/placement.rs -> found -> targets, table, JSON, page
//! ```

mod before;
mod found;
mod jobs;
mod options;
mod page;
mod recorded;
mod targets;

use crate::scale::{check_writable, read_commit, write_wanted};
use anyhow::Result;
pub(crate) use options::Options;
use std::path::Path;

/// Simulates, prints; whether everything that must be reached is.
pub(crate) fn run(root: &Path, options: &Options) -> Result<bool> {
    for path in [&options.json, &options.html].into_iter().flatten() {
        check_writable(path)?;
    }
    let (machines, why) = recorded::read_machines(root)?;
    let mut jobs = jobs::list_jobs(options, &machines);
    let unknown = before::add(root, &mut jobs)?;
    let mut found = jobs::work(root, &jobs)?;
    found.notes.extend(why.into_iter().chain(unknown));
    let targets = targets::judge(&found);
    print!("{}\n{}", targets::draw(&targets), found.draw());
    let commit = read_commit(root);
    write_wanted(options.json.as_deref(), found.json(&targets, &commit))?;
    write_wanted(options.html.as_deref(), page::render(&found, &targets, &commit))?;
    Ok(targets.iter().all(|target| target.verdict() != targets::Verdict::Missed))
}
