//! What an event costs: a loop of system calls, alone and traced, in turns. Needs root.
//!
//! `cargo run --release -p tracer --example rate`, best on one CPU (`taskset -c 1`).

#![allow(clippy::print_stdout)]

use std::time::Instant;

use tracer::{Filter, Options, Tracer};

const BATCHES: usize = 4001;
/// So few that most batches are not interrupted.
const CALLS: u32 = 1000;
/// Entry and exit.
const EVENTS_PER_CALL: f64 = 2.0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cpus = host::machine::online_cpus(std::path::Path::new("/sys"))?;
    let options = Options {
        cpus: cpus.clone(),
        slots_per_cpu: 1 << 16,
        stacks: 16384,
        filter: Filter::None,
        exclude: None,
    };
    let alone: Vec<f64> = (0..BATCHES).map(|_| ns_per_call()).collect();
    let begin = Instant::now();
    let mut tracer = Tracer::load(&options)?;
    let loaded = begin.elapsed();
    tracer.start()?;
    println!("loaded in {loaded:.0?}, attached in {:.0?}", begin.elapsed() - loaded);
    let (mut traced, mut drained, mut events) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..BATCHES {
        traced.push(ns_per_call());
        let begin = Instant::now();
        for &cpu in &cpus {
            tracer.drain(cpu, &mut events)?;
        }
        drained.push(begin.elapsed().as_nanos() as f64 / events.len() as f64);
        events.clear();
    }
    let begin = Instant::now();
    tracer.stop();
    println!("detached in {:.0?}", begin.elapsed());
    for (probe, reason) in tracer.missing() {
        println!("missing: {probe}: {reason}");
    }
    assert_eq!(tracer.lost(), []);
    println!("ns               fastest  first decile  median");
    let [alone, traced] = [spread(alone), spread(traced)];
    let event = std::array::from_fn(|n| (traced[n] - alone[n]) / EVENTS_PER_CALL);
    for (name, values) in [
        ("a call alone", alone),
        ("a call traced", traced),
        ("an event", event),
        ("taking one out", spread(drained)),
    ] {
        println!("{name:16} {:7.1} {:13.1} {:7.1}", values[0], values[1], values[2]);
    }
    Ok(())
}

fn ns_per_call() -> f64 {
    let begin = Instant::now();
    for _ in 0..CALLS {
        std::hint::black_box(rustix::process::getpid());
    }
    begin.elapsed().as_nanos() as f64 / f64::from(CALLS)
}

/// Fastest, first decile, median.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [values[0], values[values.len() / 10], values[values.len() / 2]]
}
