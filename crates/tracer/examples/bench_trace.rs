//! What an event costs, beside ftrace and perf: a loop of system calls, alone and traced by each in turns, on one CPU; and
//! how many events each loses at a million a second: these probes with a bare reader, and all of `vmscope trace record`.
//! Needs root and `perf`.
//!
//! `make bench-trace`, or `cargo run --release -p tracer --example bench_trace -- VMSCOPE FILE`: the program, and where
//! the figures go as JSON.

#![allow(clippy::print_stdout)]

mod calls;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use tracer::{Filter, Options, Tracer};

use self::calls::{BATCHES, CALLS, batches, call, median, ns_per_call};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const ROUNDS: usize = 7;
/// Entry and exit.
const EVENTS_PER_CALL: u32 = 2;
/// How long each must keep up.
const FLOOD: Duration = Duration::from_secs(2);
/// A million a second.
const NS_PER_EVENT: u128 = 1000;
/// Each CPU's buffer, of all three.
const BUFFER: usize = 4 << 20;
/// What vmscope traces, as others call it. Those that a kernel lacks are left out.
const EVENTS: &[&str] = &[
    "raw_syscalls/sys_enter",
    "raw_syscalls/sys_exit",
    "sched/sched_switch",
    "sched/sched_waking",
    "sched/sched_wakeup",
    "sched/sched_wakeup_new",
    "sched/sched_process_fork",
    "sched/sched_process_exec",
    "sched/sched_process_exit",
    "irq/irq_handler_entry",
    "irq/irq_handler_exit",
    "irq/softirq_entry",
    "irq/softirq_exit",
    "exceptions/page_fault_user",
    "exceptions/page_fault_kernel",
    "block/block_rq_insert",
    "block/block_rq_issue",
    "block/block_rq_complete",
];
const TRACEFS: &str = "/sys/kernel/tracing";
/// The argument with which this program is traced by `vmscope trace record`.
const FLOOD_ONLY: &str = "flood";

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let vmscope = arguments.next().ok_or("which vmscope?")?;
    let cpus = host::machine::online_cpus(Path::new("/sys"))?;
    let cpu = *cpus.last().ok_or("no CPU")?;
    let mut only = CpuSet::new();
    only.set(cpu as usize);
    sched_setaffinity(None, &only)?;
    if vmscope.as_os_str() == FLOOD_ONLY {
        flood();
        return Ok(());
    }
    let known = |event: &&&str| Path::new(TRACEFS).join("events").join(event).exists();
    let bench = Bench { cpus, cpu, events: EVENTS.iter().filter(known).copied().collect() };

    let mut alone = Vec::new();
    let mut traced = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        alone.extend(batches());
        traced[0].extend(bench.by_vmscope()?);
        traced[1].extend(bench.by_ftrace()?);
        traced[2].extend(bench.by_perf()?);
    }
    let floods = [bench.flood_vmscope()?, bench.flood_ftrace()?, bench.flood_perf()?];
    let recorded = bench.flood_recorder(&vmscope)?;

    let alone = median(alone);
    println!(
        "{ROUNDS} rounds of {BATCHES} batches in turns; a call alone takes {alone:.1} ns, median"
    );
    println!("tracer    ns per event    events a second    lost");
    let mut rows = Vec::new();
    for ((name, traced), flood) in ["vmscope", "ftrace", "perf"].iter().zip(traced).zip(floods) {
        let event = (median(traced) - alone) / f64::from(EVENTS_PER_CALL);
        let rate = flood.events as f64 / FLOOD.as_secs_f64();
        println!("{name:8} {event:13.1} {rate:18.0} {:7}", flood.lost);
        rows.push(format!(
            "{{\"tracer\":\"{name}\",\"ns_per_event\":{event:.1},\"events_per_s\":{rate:.0},\"lost\":{}}}",
            flood.lost
        ));
    }
    println!("vmscope trace record, of {} events: {} lost", recorded.events, recorded.lost);
    if let Some(file) = arguments.next() {
        let json = format!(
            "{{\"ns_per_call_alone\":{alone:.1},\"tracers\":[{}],\"recorder\":{{\"events\":{},\"lost\":{}}}}}\n",
            rows.join(","),
            recorded.events,
            recorded.lost
        );
        fs::write(&file, json)?;
        println!("written to {}", file.display());
    }
    Ok(())
}

/// What came of the loop at a steady rate.
struct Flood {
    /// By the calls that were made.
    events: u64,
    lost: u64,
}

struct Bench {
    cpus: Vec<u32>,
    /// Where the loop runs.
    cpu: u32,
    events: Vec<&'static str>,
}

impl Bench {
    fn tracer(&self) -> Result<Tracer> {
        let slots_per_cpu = u32::try_from(BUFFER / 16)?;
        let mut tracer = Tracer::load(&Options {
            cpus: self.cpus.clone(),
            slots_per_cpu,
            stacks: 16384,
            user_stacks: 16384,
            files: 0,
            filter: Filter::None,
            exclude: None,
        })?;
        tracer.start()?;
        Ok(tracer)
    }

    fn drain(&self, tracer: &mut Tracer) -> Result<()> {
        let mut events = Vec::new();
        for &cpu in &self.cpus {
            tracer.drain(cpu, &mut events)?;
        }
        Ok(())
    }

    fn by_vmscope(&self) -> Result<Vec<f64>> {
        let mut tracer = self.tracer()?;
        let mut times = Vec::new();
        for _ in 0..BATCHES {
            times.push(ns_per_call());
            self.drain(&mut tracer)?;
        }
        tracer.stop();
        Ok(times)
    }

    /// Rings are drained on another CPU, as when a trace is recorded.
    fn flood_vmscope(&self) -> Result<Flood> {
        let mut tracer = self.tracer()?;
        let ended = AtomicBool::new(false);
        let events = std::thread::scope(|scope| {
            let drains = scope.spawn(|| -> std::result::Result<(), String> {
                self.move_away().map_err(|error| error.to_string())?;
                while !ended.load(Ordering::Relaxed) {
                    self.drain(&mut tracer).map_err(|error| error.to_string())?;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            });
            let events = flood();
            ended.store(true, Ordering::Relaxed);
            drains.join().map_err(|_| "the drain ended early")??;
            Ok::<u64, Box<dyn Error>>(events)
        })?;
        tracer.stop();
        let lost = tracer.lost().iter().map(|lost| lost.count).sum();
        Ok(Flood { events, lost })
    }

    /// `N events in T s, N lost`: the recorder has the CPUs that the loop leaves.
    fn flood_recorder(&self, vmscope: &Path) -> Result<Flood> {
        let folder = Path::new("/dev/shm").join(format!("vmscope-bench-{}", std::process::id()));
        let trace = folder.join("trace");
        fs::create_dir_all(&folder)?;
        let mut command = self.elsewhere(&vmscope.to_string_lossy());
        command.args(["trace", "record", "-o"]).arg(&trace).arg("--");
        let output = command.arg(std::env::current_exe()?).arg(FLOOD_ONLY).output()?;
        fs::remove_dir_all(&folder)?;
        let said = String::from_utf8(output.stderr)?;
        let count = |what: &str| {
            let words: Vec<&str> = said.split_whitespace().collect();
            let at = words.iter().position(|word| word.trim_end_matches(',') == what)?;
            words.get(at.checked_sub(1)?)?.parse().ok()
        };
        let counts = count("events").zip(count("lost"));
        let (events, lost) = counts.ok_or_else(|| format!("{} said: {said}", vmscope.display()))?;
        Ok(Flood { events, lost })
    }

    fn move_away(&self) -> Result<()> {
        let mut others = CpuSet::new();
        let others_than = self.cpus.iter().filter(|&&cpu| cpu != self.cpu);
        others_than.for_each(|&cpu| others.set(cpu as usize));
        Ok(sched_setaffinity(None, &others)?)
    }

    fn by_ftrace(&self) -> Result<Vec<f64>> {
        let ftrace = Ftrace::start(&self.events)?;
        let times = batches();
        drop(ftrace);
        Ok(times)
    }

    /// A reader on another CPU empties the buffer.
    fn flood_ftrace(&self) -> Result<Flood> {
        let ftrace = Ftrace::start(&self.events)?;
        let cpu = ftrace.folder.join("per_cpu").join(format!("cpu{}", self.cpu));
        let mut reader = self.elsewhere("cat");
        let reader = reader.arg(cpu.join("trace_pipe_raw")).stdout(Stdio::null()).spawn()?;
        let events = flood();
        let stats = fs::read_to_string(cpu.join("stats"))?;
        end(reader)?;
        let lost = ["overrun: ", "dropped events: "];
        let counts = stats.lines().filter_map(|line| {
            lost.iter().find_map(|name| line.strip_prefix(name)).and_then(|n| n.parse::<u64>().ok())
        });
        Ok(Flood { events, lost: counts.sum() })
    }

    fn by_perf(&self) -> Result<Vec<f64>> {
        let perf = Perf::start(self)?;
        let times = batches();
        perf.stop()?;
        Ok(times)
    }

    fn flood_perf(&self) -> Result<Flood> {
        let perf = Perf::start(self)?;
        let events = flood();
        Ok(Flood { events, lost: perf.stop()? })
    }

    /// A command on the CPUs that the loop leaves.
    fn elsewhere(&self, program: &str) -> Command {
        let others = self.cpus.iter().filter(|&&cpu| cpu != self.cpu).map(u32::to_string);
        let mut command = Command::new("taskset");
        command.arg("-c").arg(others.collect::<Vec<_>>().join(",")).arg(program);
        command
    }
}

/// A trace instance of its own.
struct Ftrace {
    folder: PathBuf,
}

impl Ftrace {
    fn start(events: &[&str]) -> Result<Self> {
        let folder = Path::new(TRACEFS).join("instances/vmscope-bench");
        fs::create_dir_all(&folder)?;
        let ftrace = Self { folder };
        fs::write(ftrace.folder.join("buffer_size_kb"), (BUFFER >> 10).to_string())?;
        for event in events {
            fs::write(ftrace.folder.join("events").join(event).join("enable"), "1")?;
        }
        Ok(ftrace)
    }
}

impl Drop for Ftrace {
    fn drop(&mut self) {
        let _ = fs::write(self.folder.join("events/enable"), "0");
        let _ = fs::remove_dir(&self.folder);
    }
}

/// `perf record`, which writes to a file in memory.
struct Perf {
    child: Child,
    folder: PathBuf,
}

impl Perf {
    fn start(bench: &Bench) -> Result<Self> {
        let folder = Path::new("/dev/shm").join(format!("vmscope-bench-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let [control, ack] = ["control", "ack"].map(|name| folder.join(name));
        Command::new("mkfifo").args([&control, &ack]).status()?;
        let mut command = bench.elsewhere("perf");
        command.args(["record", "-a", "-D", "-1", "-m", &format!("{}M", BUFFER >> 20)]);
        command.arg(format!("--control=fifo:{},{}", control.display(), ack.display()));
        command.arg("-o").arg(folder.join("data"));
        for event in &bench.events {
            command.args(["-e", &event.replace('/', ":")]);
        }
        let said = fs::File::create(folder.join("said"))?;
        let child = command.stdout(Stdio::null()).stderr(said).spawn()?;
        fs::write(&control, "enable\n")?;
        let perf = Self { child, folder };
        fs::File::open(&ack).and_then(|mut ack| {
            let mut word = [0; 4];
            std::io::Read::read_exact(&mut ack, &mut word)
        })?;
        Ok(perf)
    }

    /// The events that it lost.
    fn stop(self) -> Result<u64> {
        end(self.child)?;
        let data = self.folder.join("data");
        let stats = Command::new("perf").args(["report", "--stats", "-i"]).arg(data).output()?;
        let stats = String::from_utf8(stats.stdout)?;
        // `LOST events: N` counts records; how many events each stands for is in the samples' line of `perf script`.
        let n_records = stats.lines().find_map(|line| {
            let (name, n) = line.trim().split_once(" events:")?;
            (name == "LOST").then(|| n.split_whitespace().next()?.parse::<u64>().ok())?
        });
        let lost = match n_records {
            Some(n) if 0 < n => lost_events(&self.folder.join("data"))?,
            _ => 0,
        };
        fs::remove_dir_all(&self.folder)?;
        Ok(lost)
    }
}

fn lost_events(data: &Path) -> Result<u64> {
    let script =
        Command::new("perf").args(["script", "--show-lost-events", "-i"]).arg(data).output()?;
    let text = String::from_utf8_lossy(&script.stdout).into_owned();
    let lost = text.lines().filter_map(|line| {
        line.split_once("PERF_RECORD_LOST")?.1.split_whitespace().last()?.parse::<u64>().ok()
    });
    Ok(lost.sum())
}

/// As by Ctrl-C.
fn end(mut child: Child) -> Result<()> {
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT)?;
    child.wait()?;
    Ok(())
}

/// Calls at a steady rate, or as fast as they go where that is slower: the events that they make.
fn flood() -> u64 {
    let begin = Instant::now();
    let mut events = 0;
    while begin.elapsed() < FLOOD {
        call();
        events += u64::from(CALLS * EVENTS_PER_CALL);
        while begin.elapsed().as_nanos() < u128::from(events) * NS_PER_EVENT {
            std::hint::spin_loop();
        }
    }
    events
}
