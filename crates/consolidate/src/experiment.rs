//! A plan carried out on the machine that this process runs on: the KVM host itself, or a virtual one.
//!
//! ```text
//!  for each kind of guest:  template --> for each number of VMs:  clones --> for each repetition:
//!                               remedies in random order:  switches --> load, warm --> load, measured and recorded --> Run
//! ```
//!
//! Each measurement is a folder, which gets its name when it is complete: whatever ends a run, what was measured stays, and
//! the next run goes on from there.

mod attach;

use std::fmt;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lab::observe::VmRoles;
use lab::{Class, Plan, Run, RunKey, Rungs, Treatment, ladder};
use split::Split;
use testbed::{Boot, Bridge, Instance, Template};

use crate::capture::{self, Interface};
use crate::error::Error;
use crate::generator::{Generator, Said};
use crate::guest::guest;
use crate::host::{Counters, Roots};
use crate::host_setup::{self, HostSetup};
use crate::load::{LoadJob, Pace, Phase, generate};
use crate::network::{BRIDGE, NETWORK, PREFIX, address, identity, vm_address};
use crate::packets::{self, PacketCapture};
use crate::recorder::{self, WindowRecorder};
use crate::results;
use crate::switches::{Switches, VmProcess};

/// A measurement's capture.
const PACKETS: &str = "packets.pcapng";
/// VMs that may end by themselves in a run: under emulation a guest now and then dies of an exception.
const MAX_DEATHS: u32 = 5;
/// How long the template gets requests before it is saved, so that its caches are warm.
const WARM: Duration = Duration::from_secs(3);
/// How long the template's application may take until it answers: a database has to start, on an emulated CPU perhaps.
const BOOT_LIMIT: Duration = Duration::from_secs(600);
/// How long answers and a finished generator may take beyond their time.
const PATIENCE: Duration = Duration::from_secs(60);

/// The experiment to run.
pub struct Experiment<'a> {
    pub plan: &'a Plan,
    /// What guests of each of the plan's ladders boot, in their order.
    pub boots: Vec<Boot>,
    /// Where measurements go.
    pub out: PathBuf,
    /// Earlier measurements.
    pub done: Vec<Run>,
    pub vmscope: PathBuf,
    pub symbols: PathBuf,
    /// Whether it is to end.
    pub interrupted: &'a dyn Fn() -> bool,
    /// Gets progress messages.
    pub say: &'a dyn Fn(&str),
}

impl fmt::Debug for Experiment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Experiment")
            .field("plan", &self.plan.name)
            .field("out", &self.out)
            .finish_non_exhaustive()
    }
}

/// A measurement under way.
struct Window {
    capture: Option<PacketCapture>,
    before: Counters,
    since: Instant,
}

/// Counters and captures of a measurement.
struct Measured {
    before: Counters,
    now: Counters,
    ns: u64,
    host: lab::Host,
    requests: Option<Split>,
}

/// The VMs that an experiment runs.
struct Vms<'a> {
    template: &'a Template,
    bridge: &'a Bridge,
    switches: &'a mut Switches,
    running: Vec<Instance>,
    n_deaths: u32,
}

/// The recorder and the tools of an experiment.
struct Lab<'a> {
    experiment: &'a Experiment<'a>,
    roots: &'a Roots,
    recorder: WindowRecorder,
    runs: Vec<Run>,
    /// For what is not kept.
    scratch: &'a Path,
}

/// Runs the rest of a plan. The processes that it starts end with the calling thread.
///
/// # Errors
/// When something fails, or it was interrupted. Finished measurements stay in their folders.
pub fn run(experiment: &Experiment<'_>) -> Result<Vec<Run>, Error> {
    let roots = Roots::of_this_machine();
    let (plan, mut runs) = (experiment.plan, experiment.done.clone());
    // In memory, so that VMs share their template's.
    let memory = Path::new("/dev/shm");
    let scratch = tempfile::Builder::new().prefix("vmscope-lab-").tempdir_in(memory);
    let scratch = scratch.map_err(Error::io("create a folder in", memory))?;
    if !plan.attach.is_empty() {
        let mut lab = Lab::begin(experiment, &roots, scratch.path(), runs)?;
        lab.watch()?;
        return Ok(lab.runs);
    }
    let ladders = plan.ladders();
    ladders.iter().try_for_each(|rungs| host_setup::check(&roots, &rungs.guest))?;
    let cpus = ::host::machine::online_cpus(&roots.sys).map_err(Error::io("read", &roots.sys))?;
    let mut switches = Switches::new(&roots.proc, &roots.sys, &cpus)?;
    for (rungs, boot) in ladders.iter().zip(&experiment.boots) {
        if ladder::left(plan, rungs, &runs).is_none() {
            continue;
        }
        let folder = scratch.path().join("vms");
        let _setup = HostSetup::new(&roots, &rungs.guest, &folder)?;
        let mut lab = Lab::begin(experiment, &roots, scratch.path(), runs)?;
        lab.climb(rungs, boot, &folder, &mut switches)?;
        runs = lab.runs;
    }
    Ok(runs)
}

impl<'a> Lab<'a> {
    fn begin(
        experiment: &'a Experiment<'a>,
        roots: &'a Roots,
        scratch: &'a Path,
        runs: Vec<Run>,
    ) -> Result<Self, Error> {
        fs::create_dir_all(&experiment.out).map_err(Error::io("create", &experiment.out))?;
        (experiment.say)("attaching the recorder");
        let period = Duration::from_secs_f64(experiment.plan.ladder.period_ms / 1e3);
        let interrupted = experiment.interrupted;
        let recorder = WindowRecorder::begin(period, &experiment.symbols, scratch, interrupted)?;
        Ok(Self { experiment, roots, recorder, runs, scratch })
    }

    /// All steps with guests of one kind.
    fn climb(
        &mut self,
        rungs: &Rungs,
        boot: &Boot,
        folder: &Path,
        switches: &mut Switches,
    ) -> Result<(), Error> {
        let plan = self.experiment.plan;
        let template = Template::new(guest(plan, &rungs.guest), boot.clone(), folder)?;
        let bridge = Bridge::create(BRIDGE, NETWORK, PREFIX)?;
        let mut vms = Vms {
            template: &template,
            bridge: &bridge,
            switches,
            running: Vec::new(),
            n_deaths: 0,
        };
        self.make_template(&mut vms, rungs)?;
        while let Some((n, orders)) = ladder::left(plan, rungs, &self.runs) {
            let before = self.roots.available_bytes();
            let started = vms.running.len();
            self.grow(&mut vms, n)?;
            let new = vms.running.len() - started;
            if 0 < new {
                let mebibytes = before.saturating_sub(self.roots.available_bytes()) >> 20;
                let each = mebibytes as f64 / new as f64;
                (self.experiment.say)(&format!("{n} VMs run, {each:.1} MiB each of the new ones"));
            }
            for (treatment, key) in orders {
                self.measure_until_done(&mut vms, &treatment, &key)?;
            }
        }
        Ok(())
    }

    fn make_template(&mut self, vms: &mut Vms<'_>, rungs: &Rungs) -> Result<(), Error> {
        let say = self.experiment.say;
        say(&format!("booting the template (guest kernel: {})", rungs.guest));
        let since = Instant::now();
        let original = vms.template.boot()?;
        original.identify(&identity(0, "template")?, vms.bridge)?;
        self.warm_up()?;
        // Its connections are closed by now; what the guest's kernel still has of them would be in all clones.
        std::thread::sleep(Duration::from_millis(500));
        vms.template.save(original)?;
        say(&format!("the template is saved, {:.1} s", since.elapsed().as_secs_f64()));
        Ok(())
    }

    /// Waits until the template answers, then asks it for a while.
    fn warm_up(&self) -> Result<(), Error> {
        let length = u64::try_from(WARM.as_nanos()).unwrap_or(0);
        let since = Instant::now();
        let mut has_answered = false;
        loop {
            self.check_interrupted()?;
            // One that still starts must not be kept from it.
            let think_ns = if has_answered { 0 } else { length / 10 };
            let pace = Pace::Closed { clients: 1, think_ns };
            let job =
                LoadJob { warm_up_ns: 0, measure_ns: length, ..self.job(&[address(0)], pace) };
            let load =
                generate(&job, |_| ()).map_err(|error| Error::Generator(error.to_string()))?;
            let answers = 0 < load.turnarounds.n_answered();
            if answers && has_answered {
                return Ok(());
            }
            has_answered = answers;
            if !answers && BOOT_LIMIT < since.elapsed() {
                let why = load.turnarounds.failed().keys().cloned().collect::<Vec<_>>().join(", ");
                return Err(Error::Generator(format!("got no answer from the template: {why}")));
            }
        }
    }

    /// Starts clones until this many run.
    fn grow(&self, vms: &mut Vms<'_>, n: u32) -> Result<(), Error> {
        let since = Instant::now();
        let first = vms.running.len();
        while vms.running.len() < n as usize {
            self.check_interrupted()?;
            let number = vms.running.len() + 1;
            let clone = vms.start(number)?;
            vms.running.push(clone);
        }
        let new = vms.running.len() - first;
        if 0 < new {
            let each = since.elapsed().as_secs_f64() / new as f64;
            (self.experiment.say)(&format!("started {new} clones, {each:.2} s each"));
        }
        Ok(())
    }

    /// Measures; if a VM ended by itself meanwhile, once more with another in its place.
    fn measure_until_done(
        &mut self,
        vms: &mut Vms<'_>,
        treatment: &Treatment,
        key: &RunKey,
    ) -> Result<(), Error> {
        loop {
            for dead in vms.running.iter().filter(|vm| vm.has_died()) {
                (self.experiment.say)(&format!(
                    "VM {} ended; another takes its place",
                    dead.name()
                ));
            }
            vms.replace_dead()?;
            let partial = self.partial(key)?;
            let run = self.measure(vms, treatment, key, &partial)?;
            if vms.running.iter().any(Instance::has_died) {
                (self.experiment.say)("measuring again");
                continue;
            }
            return self.keep(run, &partial);
        }
    }

    /// An empty folder for a measurement that is not complete yet.
    fn partial(&self, key: &RunKey) -> Result<PathBuf, Error> {
        let partial = self.experiment.out.join(format!(".{}.partial", key.folder()));
        if partial.exists() {
            fs::remove_dir_all(&partial).map_err(Error::io("remove", &partial))?;
        }
        fs::create_dir_all(&partial).map_err(Error::io("create", &partial))?;
        Ok(partial)
    }

    /// A measurement is complete.
    fn keep(&mut self, run: Run, partial: &Path) -> Result<(), Error> {
        results::store(&run, partial, &self.experiment.out)?;
        (self.experiment.say)(&summary(&run, self.experiment.plan));
        self.runs.push(run);
        Ok(())
    }

    fn measure(
        &mut self,
        vms: &mut Vms<'_>,
        treatment: &Treatment,
        key: &RunKey,
        folder: &Path,
    ) -> Result<Run, Error> {
        let plan = self.experiment.plan;
        let loaded = plan.loaded(key.vms) as usize;
        let processes: Vec<VmProcess> = (0..)
            .zip(&vms.running)
            .filter_map(|(n, vm)| {
                let (name, is_loaded) = (vm.name().to_owned(), n < loaded);
                Some(VmProcess { name, pid: vm.pid()?, is_loaded })
            })
            .collect();
        vms.switches.set(&treatment.host, &processes)?;
        let targets: Vec<SocketAddr> = (1..=loaded).map(address).collect();
        let job = self.job(&targets, pace(plan));
        let mut generator = Generator::start(&self.experiment.vmscope, &job)?;
        let recording = folder.join("recording");
        self.wait_for(&mut generator, Phase::Measuring)?;
        let bridge = match plan.load.capture {
            true => vec![capture::named(&self.roots.sys, BRIDGE)?],
            false => Vec::new(),
        };
        let window = self.begin_window(&bridge, &recording)?;
        self.wait_for(&mut generator, Phase::Measured)?;
        let measured = self.end_window(window, folder)?;
        let pid = generator.pid();
        let load = self.wait_for_load(&mut generator)?;
        drop(generator);
        let loaded = u32::try_from(loaded).unwrap_or(u32::MAX);
        let mut run = Run::new(key.clone(), loaded, load);
        self.recorder.finish()?;
        let class = |vm: &VmProcess| if vm.is_loaded { Class::Loaded } else { Class::Idle };
        let cast = VmRoles {
            vms: processes.iter().map(|vm| (vm.pid, class(vm))).collect(),
            generator: Some(pid),
            recorder: std::process::id(),
            addresses: (1..)
                .zip(&processes)
                .map(|(number, vm)| (IpAddr::from(vm_address(number)), vm.pid))
                .collect(),
        };
        recorder::add_figures(&recording, &cast, measured.requests.as_ref(), &mut run)?;
        self.add_counts(&mut run, &processes, measured);
        Ok(run)
    }

    /// Begins to record, to count, and to capture on these interfaces.
    fn begin_window(
        &mut self,
        interfaces: &[Interface],
        recording: &Path,
    ) -> Result<Window, Error> {
        let capture = match interfaces {
            [] => None,
            some => Some(PacketCapture::start(some, &self.packets())?),
        };
        let (before, since) = (self.roots.counters(), Instant::now());
        self.recorder.start(recording)?;
        Ok(Window { capture, before, since })
    }

    fn end_window(&mut self, window: Window, folder: &Path) -> Result<Measured, Error> {
        let Window { capture, before, since } = window;
        self.recorder.stop()?;
        let ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let now = self.roots.counters();
        let host = self.roots.since(&before, &now, ns);
        let requests = capture.map(|capture| self.requests(capture, folder)).transpose()?;
        Ok(Measured { before, now, ns, host, requests })
    }

    /// Where packets are while it is measured: in memory, as writing them elsewhere would be work for the host.
    fn packets(&self) -> PathBuf {
        self.scratch.join(PACKETS)
    }

    /// Ends a capture, keeps it in `folder`, and splits its requests.
    fn requests(&self, capture: PacketCapture, folder: &Path) -> Result<Split, Error> {
        capture.finish()?.iter().for_each(|note| (self.experiment.say)(note));
        let (from, to) = (self.packets(), folder.join(PACKETS));
        fs::copy(&from, &to).map_err(Error::io("write", &to))?;
        packets::split(&from)
    }

    /// Drains samples until the generator has reached this point.
    fn wait_for(&mut self, generator: &mut Generator, phase: Phase) -> Result<(), Error> {
        loop {
            self.check_interrupted()?;
            match generator.wait(Duration::from_millis(200))? {
                Said::Phase(said) if said == phase => return Ok(()),
                Said::Nothing => self.recorder.poll()?,
                said => return Err(Error::Generator(format!("said {said:?} too early"))),
            }
        }
    }

    fn wait_for_load(&mut self, generator: &mut Generator) -> Result<lab::Load, Error> {
        let timeout = Duration::from_secs_f64(self.experiment.plan.load.timeout_s);
        let until = Instant::now() + timeout + PATIENCE;
        loop {
            self.check_interrupted()?;
            match generator.wait(Duration::from_millis(200))? {
                Said::Result(load) => return Ok(*load),
                Said::Nothing if Instant::now() < until => self.recorder.poll()?,
                Said::Nothing => return Err(Error::Generator("did not end".to_owned())),
                said @ Said::Phase(_) => {
                    return Err(Error::Generator(format!("said {said:?} twice")));
                }
            }
        }
    }

    fn job(&self, targets: &[SocketAddr], pace: Pace) -> LoadJob {
        let Plan { load, ladder, .. } = self.experiment.plan;
        LoadJob {
            targets: targets.to_vec(),
            path: load.path.clone(),
            pace,
            choose: load.choose,
            warm_up_ns: ns(ladder.warm_up_s),
            measure_ns: ns(ladder.measure_s),
            timeout_ns: ns(load.timeout_s),
            connections: load.connections as usize,
            seed: ladder.seed.wrapping_add(self.runs.len() as u64),
        }
    }

    /// What the kernel tells of the host and the VMs' processes, and what is missing of the packets.
    fn add_counts(&self, run: &mut Run, processes: &[VmProcess], measured: Measured) {
        let Measured { before, now, .. } = &measured;
        for (class, vms) in &mut run.vms {
            let of_class = processes.iter().filter(|vm| vm.is_loaded == (*class == Class::Loaded));
            let pids: Vec<u32> = of_class.map(|vm| vm.pid).collect();
            vms.injected = now.injected_since(before, &pids);
            vms.private_bytes = pids.iter().map(|pid| self.roots.private_bytes(*pid)).sum();
            vms.huge_bytes = pids.iter().map(|pid| self.roots.huge_bytes(*pid)).sum();
        }
        run.notes.extend(measured.requests.iter().flat_map(packets::notes));
        run.host = measured.host;
    }

    fn check_interrupted(&self) -> Result<(), Error> {
        if (self.experiment.interrupted)() { Err(Error::Interrupted) } else { Ok(()) }
    }
}

impl Vms<'_> {
    /// Starts a clone and tells it who it is.
    fn start(&mut self, number: usize) -> Result<Instance, Error> {
        let name = format!("vm{number}");
        let clone = self.template.start_clone(number, &name)?;
        clone.identify(&identity(number, &name)?, self.bridge)?;
        Ok(clone)
    }

    fn replace_dead(&mut self) -> Result<(), Error> {
        while let Some(place) = self.running.iter().position(Instance::has_died) {
            self.n_deaths += 1;
            let name = self.running[place].name().to_owned();
            if MAX_DEATHS < self.n_deaths {
                return Err(Error::Unstable { name, times: self.n_deaths });
            }
            self.running[place] = self.start(place + 1)?;
        }
        Ok(())
    }
}

/// A line for an observer.
fn summary(run: &Run, plan: &Plan) -> String {
    let RunKey { vms, treatment, repetition } = &run.key;
    let percent = plan.service.percentile;
    let longest = run.load.turnarounds.percentile(percent);
    let longest = longest.map_or("failed".to_owned(), |ns| format!("{:.1} ms", ns as f64 / 1e6));
    let rate = run.load.answered_per_s();
    let busy = run.busy_cpus().map_or_else(String::new, |busy| format!(", {busy:.2} CPUs busy"));
    format!(
        "{vms} VMs, {treatment}, {}: {percent} % within {longest}, {rate:.1} answers/s{busy}",
        repetition + 1
    )
}

fn pace(plan: &Plan) -> Pace {
    match (plan.load.rate, plan.load.clients) {
        (Some(rate), _) => Pace::Open { rate, arrivals: plan.load.arrivals },
        (None, clients) => {
            Pace::Closed { clients: clients.unwrap_or(1), think_ns: ns(plan.load.think_s) }
        }
    }
}

fn ns(seconds: f64) -> u64 {
    u64::try_from(Duration::from_secs_f64(seconds).as_nanos()).unwrap_or(u64::MAX)
}
