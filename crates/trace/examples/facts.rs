//! Counts the facts of a trace and says how fast they were read: `facts FILE [print]`.

use std::collections::BTreeMap;
use std::fs::File;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: facts FILE [print]")?;
    let print = std::env::args().nth(2).is_some();
    let begin = Instant::now();
    let mut stream = instep_trace::open(File::open(&path)?, &path, Default::default())?;
    if print {
        println!("{:#?}", stream.header());
    }
    let (mut batch, mut counts) = (Vec::new(), BTreeMap::<String, u64>::new());
    while stream.next_batch(&mut batch) {
        for event in &batch {
            if print {
                println!("{event:?}");
            }
        }
        *counts.entry("facts".to_owned()).or_default() += batch.len() as u64;
    }
    let (took, tally) = (begin.elapsed().as_secs_f64(), stream.tally());
    println!("{counts:?} {tally:?}");
    println!("{:.3} s, {:.0} records a second", took, tally.records as f64 / took);
    Ok(())
}
