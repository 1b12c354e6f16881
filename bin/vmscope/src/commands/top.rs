//! `vmscope top`.

mod data;
mod draw;
mod questions;
mod state;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use collector::{Exits, GuestQuestions, ProcessEvents, Roots, Sampling, SessionPlan};
use model::{OffCpuSource, Trigger};
use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};

use cli::duration_in_seconds;
use cli::{SIGHUP, SIGTERM, SignalFlag, Usage};
use cli::{print, width};
use data::{Data, Shown};
use draw::{Colours, draw};
use state::{Key, State, Wish};

/// How long a key may have to wait.
const LOOK_AT_KEYS: Duration = Duration::from_millis(100);

const EXAMPLE: &str = "Examples:
  vmscope top                                 q quits, h explains columns and keys
  vmscope top --interval 5                    a new picture every 5 s
  vmscope top --once                          one picture as text, for scripts
  vmscope top --once --format json | jq '.vcpus[] | select(.steal_outside > 0.1)'";

/// Show live how VMs spend their time: guest, halt, steal, thieves, exits, functions.
///
/// Samples every CPU as `record` does, but writes no files. A guest sends names at the start, and again when more than
/// 5 % of its time has none. Needs root.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// Time between screen updates, in seconds (or with a unit: 500ms, 1m)
    #[arg(short, long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    interval: Duration,
    /// Time between samples of a CPU: 100us to 100ms
    #[arg(short, long, value_name = "TIME", default_value = "1ms", value_parser = super::record::period)]
    period: Duration,
    /// Print one update and exit (the default without a terminal)
    #[arg(long)]
    once: bool,
    /// Output format with --once
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table
    Text,
    /// One object, see docs/top.md
    Json,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let once = args.once || !io::stdout().is_terminal() || !io::stdin().is_terminal();
    if !once && args.format == Format::Json {
        return Err(Usage("--format json needs --once".to_owned()).into());
    }
    let limits = guest::Limits { time: Duration::from_secs(10), ..guest::Limits::default() };
    let data = data::start(&plan(args), args.interval, limits)?;
    if once {
        return print_once(&data, args);
    }
    let end = SignalFlag::catch(&[SIGTERM, SIGHUP]).context("failed to catch signals")?;
    // Restores the terminal whatever happens, panics included.
    let outcome = ratatui::run(|terminal| interact(terminal, &data, &end));
    outcome.map(|()| ExitCode::SUCCESS)
}

/// Nothing but samples: guests are queried for names when names are needed.
fn plan(args: &Args) -> SessionPlan {
    let period_ns = u64::try_from(args.period.as_nanos()).unwrap_or(u64::MAX);
    SessionPlan {
        roots: Roots::default(),
        sampling: Sampling {
            trigger: Trigger::CpuClock,
            period_ns,
            trigger_period: period_ns,
            call_graph: false,
        },
        off_cpu_source: OffCpuSource::Samples,
        exits: Exits::NotCounted,
        process_events: ProcessEvents::Ignored,
        guests: GuestQuestions::Off,
        vmscope_version: env!("CARGO_PKG_VERSION").to_owned(),
        hostname: None,
    }
}

fn interact(
    terminal: &mut ratatui::DefaultTerminal,
    data: &Data,
    end: &AtomicBool,
) -> anyhow::Result<()> {
    let colours = if std::env::var_os("NO_COLOR").is_some() { Colours::No } else { Colours::Yes };
    let (mut state, mut shown) = (State::default(), Shown::default());
    while !end.load(Ordering::Relaxed) {
        if let Some(newest) = data.newest()?
            && !state.paused
        {
            shown = newest;
        }
        terminal
            .draw(|frame| draw(frame, &shown, &state, colours))
            .context("failed to draw on the terminal")?;
        if !ratatui::crossterm::event::poll(LOOK_AT_KEYS).context("failed to read keys")? {
            continue;
        }
        let Some(key) = key(&ratatui::crossterm::event::read().context("failed to read keys")?)
        else {
            continue;
        };
        match state.key(key, &state.lines(&shown.vcpus)) {
            Wish::Quit => return Ok(()),
            // The windows' thread may just have ended: the next look at it says so.
            Wish::Names => _ = data.ask.send(()),
            Wish::Nothing => {}
        }
    }
    Ok(())
}

fn key(event: &Event) -> Option<Key> {
    let Event::Key(event) = event else { return None };
    (event.kind != KeyEventKind::Release).then_some(())?;
    Some(match event.code {
        KeyCode::Char('c') if event.modifiers.contains(KeyModifiers::CONTROL) => Key::Interrupt,
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}

/// Waits for at least two windows. The guests are queried after the first; the last comes when they have answered or
/// run out of time.
fn print_once(data: &Data, args: &Args) -> anyhow::Result<ExitCode> {
    let mut shown = data.windows.recv().context("sampling ended unexpectedly")??;
    let mut windows = 1;
    while windows < 2 || !(shown.has_queried || shown.status.is_empty()) {
        shown = data.windows.recv().context("sampling ended unexpectedly")??;
        windows += 1;
    }
    let mut report =
        analysis::report::top(&shown.hostname, shown.n_cpus, shown.window_ns, &shown.vcpus);
    report.notes.extend(shown.notes);
    let text = match args.format {
        Format::Text => report.text(width()),
        Format::Json => table::pretty(&report.json),
    };
    print(&text).context("failed to write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration_in_seconds(text)?;
    let (least, most) = (Duration::from_millis(200), Duration::from_secs(60));
    if (least..=most).contains(&interval) {
        return Ok(interval);
    }
    Err("the interval lies between 200ms and 60s".to_owned())
}
