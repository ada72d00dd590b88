//! Developer tasks: ci, tidy, licences, bench, fuzz, load, man, deb, rpm, bpf-clang.

mod bench;
mod bpf;
mod built;
mod ci;
mod deny;
mod fuzz;
mod licences;
mod load;
mod package;
mod placement;
mod scale;
mod simbench;
mod simulations;
mod tidy;
mod tracebench;

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask TASK

  ci [--no-test]         what CI runs: fmt, clippy, tests, tidy, licences, docs
  tidy                   layering of the crates, file sizes, forbidden text, links of the documents
  licences               whether deny.toml allows all that the programs are built of, and its licences
  bench [--vms N,N,...]  cycle time by number of VMs, as a table for docs/performance.md;
                         run with --release: cargo run --release -p xtask -- bench
  bench sim              the simulator's speed by size, and beside SimSo (pip), as tables
  bench analyze [PERF_DATA...]
                         instep analyze beside perf sched timehist, as a table
  bench scale [--quick] [--case NAME]... [--scheduler NAME]... [--seeds N]
              [--without MECHANISM]... [--json FILE] [--html FILE] [--write DIR]
                         the kernel scheduler on simulated hosts of 2 to 384 CPUs beside its targets
                         (scenarios/scale/targets.toml) and other schedulers; status 1 if one is missed.
                         --quick: one seed, up to 32 CPUs. NAME of a case may have `*`. The first
                         scheduler named is judged in place of instep. --without: instep without a
                         mechanism, as in `[dispatch] without`. --write: only the scenarios
  bench scale --mechanisms [--case NAME]... [--without MECHANISM]... [--seeds N] [--json FILE]
                         what each mechanism of instep (or those named) is worth: the row that loses
                         most without it, on hosts of 32 CPUs and more; status 1 if one loses no 3 %
  bench placement [--quick] [--hosts N] [--gaps N] [--runs N] [--drawn N] [--seed N] [--json FILE] [--html FILE]
                         the policy instep beside bnn, bind, none, spread and numad's rule: speed of simulated
                         guests on N random hosts (40) and on recorded machines, the gap to the best plan on
                         N small hosts (600), time of deciding; status 1 if a target is missed
  fuzz [--seconds S] [TARGET...]
                         every fuzz target (or those named) for S seconds, 60 by default
  load                   build instep-load, the static guest program, and print its path
  man                    write man pages and completions to target/package
  deb                    build the Debian packages in target/package/deb (needs cargo-deb)
  rpm                    build the RPM packages in target/package/rpm (needs cargo-generate-rpm)
  bpf-clang              the clang that the feature `kernel` is built with; status 1 and why if none
  fuzz-seeds             write the seeds of the fuzz targets to fuzz/corpus
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs one task; whether it found nothing wrong.
fn run(args: &[String]) -> Result<bool> {
    let root = workspace_root()?;
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["ci"] => ci::run(&root, true),
        ["ci", "--no-test"] => ci::run(&root, false),
        ["tidy"] => tidy::run(&root),
        ["licences"] => licences::run(&root),
        ["bench"] => bench::run(&bench::SIZES).map(|()| true),
        ["bench", "--vms", sizes] => {
            let sizes: Result<Vec<u32>, _> = sizes.split(',').map(str::parse).collect();
            bench::run(&sizes.context("--vms takes numbers, such as 10,100,1000")?).map(|()| true)
        }
        ["bench", "sim"] => simbench::run(&root).map(|()| true),
        ["bench", "scale", rest @ ..] => scale::run(&root, rest),
        ["bench", "placement", rest @ ..] => placement::run(&root, rest),
        ["bench", "analyze", files @ ..] => tracebench::run(&root, files).map(|()| true),
        ["load"] => load::run(&root).map(|()| true),
        ["man"] => package::write_pages(&root).map(|()| true),
        ["deb"] => package::deb(&root).map(|()| true),
        ["rpm"] => package::rpm(&root).map(|()| true),
        ["bpf-clang"] => Ok(match bpf::clang() {
            Ok(name) => {
                println!("{name}");
                true
            }
            Err(why) => {
                eprintln!("the kernel scheduler is not built here: {why}");
                false
            }
        }),
        ["fuzz-seeds"] => fuzz::write_seeds(&root).map(|()| true),
        ["fuzz", rest @ ..] => fuzz::run(&root, rest),
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(true)
        }
        [] => bail!("no task given\n\n{USAGE}"),
        [task, ..] => bail!("unknown task or option: {}\n\n{USAGE}", [*task].concat()),
    }
}

fn workspace_root() -> Result<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(own.parent().context("xtask has no parent directory")?.to_owned())
}
