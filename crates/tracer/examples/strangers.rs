//! What tracing one task costs the system calls of all others: a loop of `getppid`, alone and beside each way in turns, on
//! one CPU. Needs root, and tracefs at `/sys/kernel/tracing`.
//!
//! `cargo run --release -p tracer --example strangers`

#![allow(clippy::print_stdout)]

mod calls;

use std::error::Error;
use std::path::Path;
use std::process::{Child, Command};

use aya::Ebpf;
use aya::programs::RawTracePoint;
use model::Pid;
use perf_event::events::Tracepoint;
use perf_event::{Builder, Counter};
use rustix::thread::{CpuSet, sched_setaffinity};
use tracer::{Filter, Options, Tracer};

use self::calls::{batches, median};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const ROUNDS: usize = 12;

fn main() -> Result<()> {
    let cpus = host::machine::online_cpus(Path::new("/sys"))?;
    let mut only = CpuSet::new();
    only.set(*cpus.last().ok_or("no CPU")? as usize);
    sched_setaffinity(None, &only)?;
    let mut traced = Command::new("sleep").arg("1000").spawn()?;
    let measured = measure(&cpus, &traced);
    traced.kill()?;
    traced.wait()?;
    for (what, batches) in measured? {
        let [alone, beside] = batches.map(median);
        let more = 100.0 * (beside / alone - 1.0);
        println!("{what:32} {alone:6.1} ns alone, {beside:6.1} ns beside it: {more:+.1} %");
    }
    Ok(())
}

/// A way, and its batches: alone and beside it.
type Measured = (&'static str, [Vec<f64>; 2]);

fn measure(cpus: &[u32], traced: &Child) -> Result<Vec<Measured>> {
    let ways = ["two empty programs", "perf events of another task", "vmscope, another command"];
    let mut measured = ways.map(|way| (way, [Vec::new(), Vec::new()]));
    for _ in 0..ROUNDS {
        for (way, (_, [alone, beside])) in measured.iter_mut().enumerate() {
            alone.extend(batches());
            let tracing: Box<dyn std::any::Any> = match way {
                0 => Box::new(empty_programs()?),
                1 => Box::new(perf_events(traced.id())?),
                _ => Box::new(vmscope(cpus, traced.id())?),
            };
            beside.extend(batches());
            drop(tracing);
        }
    }
    Ok(measured.into())
}

fn empty_programs() -> Result<Ebpf> {
    let mut bpf = Ebpf::load(bpf::EMPTY)?;
    let program = bpf.program_mut("nothing_at_calls").ok_or("no program")?;
    let program: &mut RawTracePoint = program.try_into()?;
    program.load()?;
    program.attach("sys_enter")?;
    program.attach("sys_exit")?;
    Ok(bpf)
}

fn perf_events(pid: u32) -> Result<Vec<Counter>> {
    let open = |event: &str| -> Result<Counter> {
        let id = Path::new("/sys/kernel/tracing/events/raw_syscalls").join(event).join("id");
        let id = std::fs::read_to_string(id)?.trim().parse()?;
        let mut event = Builder::new(Tracepoint::with_id(id));
        event.observe_pid(i32::try_from(pid)?).any_cpu().include_kernel().include_hv();
        Ok(event.inherit(true).enabled(true).build()?)
    };
    ["sys_enter", "sys_exit"].into_iter().map(open).collect()
}

fn vmscope(cpus: &[u32], pid: u32) -> Result<Tracer> {
    let (cpus, filter) = (cpus.to_vec(), Filter::Tree);
    let options = Options {
        cpus,
        slots_per_cpu: 1 << 16,
        stacks: 16384,
        user_stacks: 16384,
        files: 0,
        filter,
        exclude: None,
    };
    let mut tracer = Tracer::load(&options)?;
    tracer.follow(Pid(pid))?;
    tracer.start()?;
    Ok(tracer)
}
