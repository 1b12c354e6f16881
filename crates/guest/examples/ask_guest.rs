//! Asks a guest as `vmscope record` does and prints what it says: `ask_guest vsock:CID|serial:PATH|file:PATH
//! [SECONDS]`. Before the end it asks for what is new each second,
//! for SECONDS.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use api::guest::Pace;
use guest::fuzzing::Here;
use guest::{CachedMap, Channel, Limits, MapSpan, SampleKey, Session};
use model::{Clock, Guest, ImageKind, Pid, Tables, Vm, VmId};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let target = arguments.next().unwrap_or_default();
    let seconds = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let mut out = io::stdout().lock();
    match target.split_once(':') {
        Some(("vsock", cid)) => ask(&Channel::Vsock { cid: cid.parse()? }, seconds, &mut out),
        Some(("serial", path)) => {
            let user = rustix::process::getuid().as_raw();
            ask(&Channel::Serial { path: path.into(), user }, seconds, &mut out)
        }
        Some(("file", path)) => {
            let mut symbols = 0;
            let map = guest::read_snapshot(Path::new(path), &mut Here, &mut |_| symbols += 1)?;
            print(map.into(), Clock::default(), &mut out)?;
            writeln!(out, "{symbols} modules have symbols")?;
            Ok(())
        }
        _ => Err("usage: ask_guest vsock:CID|serial:PATH|file:PATH [SECONDS]".into()),
    }
}

fn ask(channel: &Channel, seconds: u64, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let timed = |what: &str, began: Instant, out: &mut dyn Write| {
        writeln!(out, "{what}: {:?}", began.elapsed())
    };
    let began = Instant::now();
    let limits = Limits { time: Duration::from_secs(60), ..Limits::default() };
    let mut session = Session::open(channel, &limits, Here)?;
    timed("open", began, out)?;
    let began = Instant::now();
    writeln!(
        out,
        "log problem: {:?}",
        session.start_log(Pace::Prompt, limits.time, &mut || false)?
    )?;
    timed("start log", began, out)?;
    let began = Instant::now();
    let mut known = CachedMap::default();
    known.add(session.changes(limits.time, &mut || false)?);
    timed("all", began, out)?;
    for _ in 0..seconds {
        std::thread::sleep(Duration::from_secs(1));
        let began = Instant::now();
        known.add(session.changes_while_sampled(limits.time, &mut || false)?);
        timed("changes", began, out)?;
    }
    let began = Instant::now();
    known.add(session.snapshot()?);
    timed("snapshot", began, out)?;
    let reported = known.into_map().0;
    let modules: Vec<u32> = (0..u32::try_from(reported.map.modules.len())?).collect();
    let clock = session.clock();
    writeln!(out, "clock: {clock:?}")?;
    print(reported, clock, out)?;
    let began = Instant::now();
    let mut lines = Vec::new();
    session.symbols(&modules, &|_| true, &mut |answer| {
        let module = answer.module;
        lines.push(match guest::functions(answer) {
            Ok(functions) => format!("module {module}: {} functions", functions.len()),
            Err(problem) => format!("module {module}: {problem}"),
        });
    });
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    timed("symbols", began, out)?;
    Ok(())
}

fn print(reported: guest::ReportedMap, clock: Clock, out: &mut impl Write) -> io::Result<()> {
    let guest = Guest::Unmapped { reason: String::new() };
    let vm = Vm {
        name: "vm".into(),
        pid: Pid(0),
        started: None,
        ended: None,
        guest,
        labels: model::VmLabels::default(),
    };
    let mut tables = Tables { vms: vec![vm], ..Tables::default() };
    let merged = guest::merge(
        reported,
        VmId(0),
        clock,
        MapSpan::default(),
        SampleKey::PageTables,
        &mut tables,
    );
    let mut mapped: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for mapping in &tables.mappings {
        mapped.entry(mapping.image).or_default().push(mapping);
    }
    for (n, image) in tables.images.iter().enumerate() {
        let id = model::ImageId::from_index(n);
        writeln!(
            out,
            "{} {:?} cr3={:x?} {:?}..{:?}",
            image.pid,
            image.name,
            image.cr3.map(model::Cr3::base),
            image.start.map(|time| time.0),
            image.end.map(|time| time.0)
        )?;
        for thread in tables.threads.iter().filter(|thread| thread.image == id) {
            let fs_base = thread.fs_base.map_or(0, |address| address.0);
            writeln!(out, "    thread {} {:?} fs={fs_base:x}", thread.tid, thread.name)?;
        }
        let shown = if image.kind == ImageKind::Kernel { 3 } else { 20 };
        for mapping in mapped.get(&id).into_iter().flatten().take(shown) {
            let module = &tables.modules[mapping.module.index()];
            let build_id = module.build_id.as_ref().map(ToString::to_string).unwrap_or_default();
            writeln!(
                out,
                "    {:x}-{:x} +{:x} {} {build_id}",
                mapping.start, mapping.end, mapping.offset, module.path
            )?;
        }
    }
    writeln!(out, "{} kernel functions, notes: {:#?}", merged.functions.len(), merged.notes)
}
