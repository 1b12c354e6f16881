//! The lowest possible cost of a sampler: an empty BPF program on the sampler's event, on every CPU, while a command
//! runs.
//!
//! Usage: floor PERIOD_NS COMMAND [ARGUMENT...]

use std::os::fd::{AsRawFd, IntoRawFd};
use std::process::{Command, ExitCode};

use libbpf_rs::{Link, Object, ObjectBuilder};
use model::Trigger;
use probes::ProbeError;

// Not a copy: the very event that the sampler opens.
#[path = "../src/perf.rs"]
mod perf;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [period, command @ ..] = words.as_slice() else { return usage() };
    match (period.parse(), command) {
        (Ok(period), [program, arguments @ ..]) => match run(period, program, arguments) {
            Ok(code) => code,
            Err(error) => {
                eprintln!("floor: {error}");
                ExitCode::FAILURE
            }
        },
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: floor PERIOD_NS COMMAND [ARGUMENT...]");
    ExitCode::from(2)
}

fn run(period: u64, program: &str, arguments: &[String]) -> Result<ExitCode, Failure> {
    let object = ObjectBuilder::default().open_memory(bpf::EMPTY)?.load()?;
    let _links = attach(&object, period)?;
    let status = Command::new(program).args(arguments).status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn attach(object: &Object, period: u64) -> Result<Vec<Link>, Failure> {
    let program = object.progs_mut().next().ok_or("the object holds no program")?;
    let event = perf::Event { trigger: Trigger::CpuClock, period, prepare_ip: false };
    let cpus = std::thread::available_parallelism()?.get();
    let mut links = Vec::with_capacity(cpus);
    for cpu in 0..u32::try_from(cpus)? {
        let fd = event.open(cpu)?;
        links.push(program.attach_perf_event(fd.as_raw_fd())?);
        // The link closes the descriptor when it goes.
        let _owned_by_link = fd.into_raw_fd();
    }
    Ok(links)
}
