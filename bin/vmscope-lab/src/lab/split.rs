//! `vmscope lab split`.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use analysis::report::VcpuTime;
use analysis::vcpu_timeline::VcpuTimelines;
use anyhow::Context;
use clap::ValueEnum;
use model::{HostNs, MachineId, VmId};
use recording::trace::Trace;
use split::report::{SplitBy, SplitQuery, SplitRecording};
use split::{
    CaptureFile, CaptureNs, Counts, Endpoint, GuestTrips, Interface, Packet, Roles, Splitter,
};
use table::clean;

use cli::TimeRange;
use cli::Usage;
use cli::{Format, OpenRecording};
use cli::{count, print};

const EXAMPLE: &str = "Examples:
  vmscope lab split web.pcap                   the parts of all requests, and the slowest ones
  vmscope lab split taps.pcapng --web 10.0.0.2:80 --db 10.0.0.3
                                               roles by address
  vmscope lab split taps.pcapng --format csv --by part
                                               a row per interval, in ns
  vmscope lab split taps.pcapng --recording day1 --vm web=10.0.0.2 --vm db=10.0.0.3
                                               steal in each part, by thief
  vmscope lab split taps.pcapng --trace trace1 --vm web=10.0.0.2
                                               web server and database in one guest";

/// Split web requests' turnaround into web server and database, by packets.
///
/// Reads pcap and pcapng files with HTTP/1.x and PostgreSQL's or MySQL's protocol. Time that no rule can assign
/// (encryption, lost packets, concurrent requests) is unknown. docs/lab.md explains parts, rules and JSON.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE, group(clap::ArgGroup::new("of_vms").args(["recording", "trace"]).multiple(true)))]
pub(super) struct Args {
    /// Captures by one clock, pcap or pcapng; `-` for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Web servers: ADDRESS, ADDRESS:PORT or :PORT [default: endpoints that answer HTTP]
    #[arg(long, value_name = "ENDPOINT,...", value_delimiter = ',')]
    web: Vec<Endpoint>,
    /// Databases [default: endpoints with a database protocol, and ports 5432 and 3306]
    #[arg(long, value_name = "ENDPOINT,...", value_delimiter = ',')]
    db: Vec<Endpoint>,
    /// Web server's address for requests, and the address from which it queries
    #[arg(long, value_name = "WEB=OTHER,...", value_delimiter = ',', value_parser = alias)]
    alias: Vec<(IpAddr, IpAddr)>,
    /// Recording of the same host and time: adds the VMs' states to each part
    #[arg(long, value_name = "DIR", requires = "vm")]
    recording: Option<PathBuf>,
    /// Trace of the same time, of guests that run both web server and database
    #[arg(long, value_name = "DIR", requires = "vm")]
    trace: Option<PathBuf>,
    /// VM of the recording or trace, and the address of its web server or database
    #[arg(long, value_name = "NAME=ADDRESS", value_parser = vm, requires = "of_vms")]
    vm: Vec<(String, IpAddr)>,
    /// Rows of the CSV output
    #[arg(long, value_enum, default_value_t = By::Request)]
    by: By,
    /// Number of slowest requests to print, 0 for all
    #[arg(long, value_name = "N", default_value = "10", value_parser = count)]
    limit: usize,
    /// Output format; CSV and JSON have all requests
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    /// Each request
    Request,
    /// Each interval of a request in one part
    Part,
}

fn alias(text: &str) -> Result<(IpAddr, IpAddr), String> {
    let wrong = || "give two addresses: WEB=OTHER".to_owned();
    let (web, other) = text.split_once('=').ok_or_else(wrong)?;
    Ok((web.parse().map_err(|_| wrong())?, other.parse().map_err(|_| wrong())?))
}

/// A VM's name may have a `=` in it.
fn vm(text: &str) -> Result<(String, IpAddr), String> {
    let wrong = || "give a VM and its address: NAME=ADDRESS".to_owned();
    let (name, address) = text.rsplit_once('=').ok_or_else(wrong)?;
    Ok((name.to_owned(), address.parse().map_err(|_| wrong())?))
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let roles = Roles { web: args.web.clone(), db: args.db.clone(), aliases: args.alias.clone() };
    let recording =
        args.recording.as_deref().map(|dir| Recorded::open(dir, &args.vm)).transpose()?;
    let source = recording.as_ref().map(Recorded::vcpu_time);
    let mut captures = Captures::open(&args.files)?;
    let mut splitter = Splitter::new(roles);
    captures.read(&mut splitter)?;
    let is_whole = captures.is_whole();
    if let Some(dir) = &args.trace {
        captures.problems.extend(traced(dir, &args.vm, recording.is_some(), &mut splitter)?);
    }
    let query = SplitQuery {
        by: match args.by {
            By::Request => SplitBy::Request,
            By::Part => SplitBy::Part,
        },
        limit: (args.limit != 0).then_some(args.limit),
        interfaces: &captures.interfaces(),
        recording: source
            .as_ref()
            .zip(recording.as_ref())
            .map(|(source, recorded)| SplitRecording { source, vms: &recorded.vms }),
    };
    let mut report = split::report::split(&splitter.finish(), &query);
    report.notes.splice(..0, captures.problems);
    print(&args.format.render(&report)).context("failed to write to standard output")?;
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A recording, and which of its VMs has which address.
struct Recorded {
    recording: OpenRecording,
    axis: VcpuTimelines,
    vms: BTreeMap<IpAddr, VmId>,
}

impl Recorded {
    fn open(dir: &Path, names: &[(String, IpAddr)]) -> anyhow::Result<Self> {
        let recording = OpenRecording::open(dir, TimeRange::ALL)?;
        let axis = recording.axis(&recording.resolver(), None)?;
        let mut vms = BTreeMap::new();
        for (name, address) in names {
            let vm = recording.vm(Some(name))?;
            if vms.insert(*address, vm).is_some_and(|other| other != vm) {
                return Err(Usage(format!("{address} is given to two VMs")).into());
            }
        }
        Ok(Self { recording, axis, vms })
    }

    fn vcpu_time(&self) -> VcpuTime<'_> {
        self.recording.vcpu_time(&self.axis)
    }
}

/// Tells the splitter what a trace says of databases in these VMs. Gives what the reader should know.
fn traced(
    dir: &Path,
    names: &[(String, IpAddr)],
    has_recording: bool,
    splitter: &mut Splitter,
) -> anyhow::Result<Vec<String>> {
    let trace = Trace::open(dir)?;
    let rows = || (0..).map(MachineId).zip(&trace.tables.machines);
    let machines: Vec<_> = rows().filter(|(_, row)| !row.cpus.is_empty()).collect();
    let of_name = |name: &str| machines.iter().find(|(_, row)| row.name == name).map(|(id, _)| *id);
    let mut guests = Vec::new();
    for (name, address) in names {
        match of_name(name) {
            Some(machine) => {
                guests.push((name, *address, GuestTrips::new(&trace.tables, machine)));
            }
            // It may be of the recording only.
            None if has_recording => {}
            None => {
                let known: Vec<_> = machines.iter().map(|(_, row)| clean(&row.name)).collect();
                let (name, known) = (clean(name), known.join(", "));
                return Err(
                    Usage(format!("the trace has no machine {name}: it has {known}")).into()
                );
            }
        }
    }
    trace.for_each_batch(&mut |events| {
        guests.iter_mut().for_each(|(_, _, guest)| guest.see(events));
    })?;
    let header = &trace.header;
    let to_capture = |time: HostNs| {
        let unix_ns =
            i128::from(header.begin_unix_ns) + i128::from(time.0) - i128::from(header.begin.0);
        CaptureNs(u64::try_from(unix_ns.max(0)).unwrap_or(u64::MAX))
    };
    let mut notes = Vec::new();
    for (name, address, guest) in guests {
        let guest = guest.finish(address, to_capture);
        if !guest.has_database {
            notes.push(format!("the trace of {} has no process of a database", clean(name)));
        }
        splitter.add_traced(&guest);
    }
    Ok(notes)
}

/// Interfaces of a file have numbers from a multiple of this on.
const INTERFACES: u32 = 4096;
/// Times that are less exact than this are noted.
const COARSE_NS: u64 = 1000;
/// While reading takes, this is how often its progress is shown.
const EVERY: Duration = Duration::from_secs(2);

/// Files that are read as one, by the times of packets.
struct Captures {
    files: Vec<Capture>,
    problems: Vec<String>,
}

struct Capture {
    path: PathBuf,
    file: CaptureFile<'static>,
    n_read: u64,
    /// The number of its first interface.
    interfaces: u32,
    /// The time of its last packet, and whether another file goes on from there.
    last: CaptureNs,
    is_continued: bool,
    is_over: bool,
    /// It could not be read to its end.
    is_damaged: bool,
}

impl Captures {
    fn open(paths: &[PathBuf]) -> anyhow::Result<Self> {
        let mut files = Vec::new();
        for (n, path) in (0_u32..).zip(paths) {
            files.push(Capture {
                path: path.clone(),
                file: open(path)?,
                n_read: 0,
                interfaces: n.saturating_mul(INTERFACES),
                last: CaptureNs::default(),
                is_continued: false,
                is_over: false,
                is_damaged: false,
            });
        }
        Ok(Self { files, problems: Vec::new() })
    }

    /// Hands all packets to the splitter, in the order of their times.
    fn read(&mut self, splitter: &mut Splitter) -> anyhow::Result<()> {
        let mut last_said = Instant::now();
        let mut n_read: u64 = 0;
        for at in 0..self.files.len() {
            self.advance(at)?;
        }
        loop {
            let heads = self.files.iter().enumerate();
            let heads = heads.filter_map(|(at, file)| Some((file.file.packet()?.at, at)));
            let Some((_, first)) = heads.min() else { break };
            if self.files[first].n_read == 1 {
                self.go_on(first);
            }
            let file = &mut self.files[first];
            if let Some(packet) = file.file.packet() {
                let interface = file.interfaces.saturating_add(packet.interface);
                splitter.packet(&Packet { interface, ..packet });
                file.last = packet.at;
            }
            self.advance(first)?;
            n_read += 1;
            if n_read.is_multiple_of(4096) && EVERY <= last_said.elapsed() {
                last_said = Instant::now();
                say!("read {n_read} packets");
            }
        }
        for file in &self.files {
            splitter.file(&file.file.counts());
            let tick_ns = file.file.tick_ns();
            if COARSE_NS < tick_ns {
                let (name, tick) = (file.path.display(), table::length(tick_ns));
                self.problems.push(format!("times in {name} are exact to {tick} only"));
            }
        }
        Ok(())
    }

    /// Whether every file was read to its end, and gave packets if it has any.
    fn is_whole(&self) -> bool {
        let is_used = |file: &Capture| 0 < file.n_read || file.file.counts() == Counts::default();
        self.files.iter().all(|file| !file.is_damaged && is_used(file))
    }

    /// A file that begins where another one of the same interfaces has ended goes on with its connections, as tcpdump's
    /// do with `-C` or `-G`.
    fn go_on(&mut self, next: usize) {
        let of = |file: &Capture| file.file.interfaces().to_vec();
        let own = of(&self.files[next]);
        let fits = |file: &&mut Capture| {
            let same = |(one, other): (&Interface, &Interface)| {
                (&one.name, one.link) == (&other.name, other.link)
            };
            file.is_over
                && 0 < file.n_read
                && !file.is_continued
                && own.iter().zip(&of(file)).all(same)
        };
        let before = self.files.iter_mut().filter(fits).max_by_key(|file| file.last);
        if let Some(before) = before {
            before.is_continued = true;
            self.files[next].interfaces = before.interfaces;
        }
    }

    /// A damaged file counts as far as it can be read.
    fn advance(&mut self, at: usize) -> anyhow::Result<()> {
        let capture = &mut self.files[at];
        if capture.is_over {
            return Ok(());
        }
        let name = capture.path.display();
        match capture.file.advance() {
            Ok(true) => capture.n_read += 1,
            Ok(false) => {
                capture.is_over = true;
                if capture.file.is_cut() {
                    capture.is_damaged = true;
                    self.problems.push(format!("{name} ends in the middle of a packet"));
                }
            }
            Err(error) if 0 < capture.n_read => {
                capture.is_over = true;
                capture.is_damaged = true;
                self.problems.push(format!("failed to read all of {name}: {error}"));
            }
            Err(error) => anyhow::bail!("failed to read {name}: {error}"),
        }
        Ok(())
    }

    /// Names by number.
    fn interfaces(&self) -> Vec<String> {
        let mut names = Vec::new();
        for (n, file) in self.files.iter().enumerate() {
            names.resize(n * INTERFACES as usize, String::new());
            names.extend(file.file.interfaces().iter().map(|interface| interface.name.clone()));
        }
        names
    }
}

fn open(path: &Path) -> anyhow::Result<CaptureFile<'static>> {
    let name = path.display();
    let file = if path == Path::new("-") {
        CaptureFile::new(std::io::stdin(), 0)
    } else {
        let file = File::open(path).with_context(|| format!("failed to open {name}"))?;
        if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
            return Err(Usage(format!("{name} is a folder: give capture files")).into());
        }
        CaptureFile::new(file, 0)
    };
    file.map_err(|error| Usage(format!("failed to read {name}: {error}")).into())
}
