//! The screen. Fits 80x24; without colour everything is still reported by words.

use analysis::overview::{Overview, Share};
use analysis::report::top_thief;
use model::TimeAccount;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, TableState};
use table::{Keep, clean, cut};

use super::data::Shown;
use super::state::{Mode, State};

/// Whether colours may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colours {
    Yes,
    No,
}

const KEYS: &str = " q quit  s sort  / filter  v vCPUs  Enter one VM  p pause  n names  h help";

const HELP: &str = "\
GUEST   the guest ran: USER and KERN are its parts
HALT    the guest had nothing to do (with the host's polling for its next work)
STEAL1  the vCPU could run and another thread had its CPU: THIEF, its part of it
STEAL2  the vCPU was in KVM or the VMM for an exit, running or waiting
QUOTA   held back by a CPU quota
PAUSE   paused by the VMM: stopped, migrating, saved or debugged
?       not sampled, or not known
[unknown] as a thief: no sample shows who had the CPU, or all show the victim
All in % of the window's time; a VM's line is the mean of its vCPUs.

Up Down or k j  choose a line         s  sort by the next column
Enter           one VM in detail      v  a line per vCPU, per VM
/               show only VMs whose names hold a text; Esc shows all
p               pause, go on          n  ask the guests for names again
q Ctrl-C        quit                  h, Esc or Enter leaves this page";

pub(crate) fn draw(frame: &mut Frame<'_>, shown: &Shown, state: &State, colours: Colours) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(3), Constraint::Length(1)])
            .areas(frame.area());
    let reverse = Style::new().add_modifier(Modifier::REVERSED);
    let title = fit(&title(shown, state), head);
    frame.render_widget(Paragraph::new(title).style(reverse), head);
    let lines = state.lines(&shown.vcpus);
    match &state.mode {
        Mode::Help => {
            let lines: Vec<Line<'_>> = HELP.lines().map(|line| fit(line, body).into()).collect();
            frame.render_widget(Paragraph::new(lines), body);
        }
        Mode::Detail(vm) => detail(frame, body, shown, vm, colours),
        Mode::List | Mode::Filter if lines.is_empty() => {
            frame.render_widget(Paragraph::new(nothing(shown, state)), body);
        }
        Mode::List | Mode::Filter => list(frame, body, &lines, state, colours),
    }
    let text = match state.mode {
        Mode::Filter => format!(" show VMs with: {}_", clean(&state.filter)),
        _ => KEYS.to_owned(),
    };
    frame.render_widget(Paragraph::new(fit(&text, foot)).style(reverse), foot);
}

/// As much of a line as an area is wide.
fn fit(line: &str, area: Rect) -> String {
    cut(line, area.width.into(), Keep::Start)
}

fn title(shown: &Shown, state: &State) -> String {
    let paused = if state.paused { "  PAUSED" } else { "" };
    let filter = match state.filter.as_str() {
        "" => String::new(),
        text => format!("  only *{}*", clean(text)),
    };
    let status = match shown.status.as_str() {
        "" => clean(&shown.notes.join("; ")).into_owned(),
        status => status.to_owned(),
    };
    format!(
        " vmscope top  {}  {} CPUs  last {:.1} s  by {}{filter}{paused}  {}",
        clean(&shown.hostname),
        shown.n_cpus,
        shown.window_ns as f64 / 1e9,
        state.sort.name(),
        status,
    )
}

fn nothing(shown: &Shown, state: &State) -> String {
    if shown.vcpus.is_empty() {
        return format!("\n  {}", if shown.window_ns == 0 { "sampling ..." } else { "no VM runs" });
    }
    format!("\n  no VM's name holds {:?}: Esc shows all", clean(&state.filter))
}

/// The table, and below it what leads in the selected line.
fn list(frame: &mut Frame<'_>, area: Rect, lines: &[Overview], state: &State, colours: Colours) {
    let below = if 14 <= area.height { 8 } else { 0 };
    let [upper, lower] =
        Layout::vertical([Constraint::Min(3), Constraint::Length(below)]).areas(area);
    let name = |line: &Overview| match state.vcpus {
        true => format!("{} vcpu{}", line.vm, line.vcpu),
        false => line.vm.clone(),
    };
    let selected = state.selected.min(lines.len() - 1);
    let mut at = TableState::new().with_selected(selected);
    let highlight = Style::new().add_modifier(Modifier::REVERSED);
    let lines_of = lines.iter().map(|line| (name(line), line)).collect::<Vec<_>>();
    let table = accounts(&lines_of, colours, upper).row_highlight_style(highlight);
    frame.render_stateful_widget(table, upper, &mut at);
    leaders(frame, lower, &lines[selected]);
}

fn detail(frame: &mut Frame<'_>, area: Rect, shown: &Shown, vm: &str, colours: Colours) {
    let vcpus: Vec<&Overview> = shown.vcpus.iter().filter(|vcpu| vcpu.vm == vm).collect();
    if vcpus.is_empty() {
        let text = format!("\n  VM {} does not run any more: Esc goes back", clean(vm));
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let sum = Overview::sum(&vcpus);
    let height = u16::try_from(vcpus.len() + 2).unwrap_or(u16::MAX).min(area.height / 2);
    let [upper, lower] =
        Layout::vertical([Constraint::Length(height), Constraint::Min(3)]).areas(area);
    let each = vcpus.iter().map(|vcpu| (format!("  vcpu{}", vcpu.vcpu), *vcpu));
    let lines: Vec<_> = std::iter::once((vm.to_owned(), &sum)).chain(each).collect();
    frame.render_widget(accounts(&lines, colours, upper), upper);
    leaders(frame, lower, &sum);
}

/// The columns after the name, and how wide they are.
const COLUMNS: [(&str, u16); 8] = [
    ("GUEST", 5),
    ("USER", 5),
    ("KERN", 5),
    ("HALT", 5),
    ("STEAL1", 6),
    ("STEAL2", 6),
    ("QUOTA", 5),
    ("?", 5),
];

/// The column of pauses, where there are any: they are rare, and 80 columns are few.
const PAUSE: (&str, u16) = ("PAUSE", 5);
const PAUSE_AT: usize = COLUMNS.len() - 1;

/// A line of the table for each name and its time.
fn accounts(lines: &[(String, &Overview)], colours: Colours, area: Rect) -> Table<'static> {
    let mut columns = COLUMNS.to_vec();
    let has_pauses = lines.iter().any(|(_, line)| 0 < line.ns(TimeAccount::Paused));
    if has_pauses {
        columns.insert(PAUSE_AT, PAUSE);
    }
    let wanted = std::iter::once(12).chain(columns.iter().map(|(_, width)| *width));
    let wanted = wanted.map(Constraint::Length).chain([Constraint::Min(8)]);
    let columns_at = Layout::horizontal(wanted).spacing(1).split(area);
    let row = |cells: Vec<String>| {
        Row::new(
            cells
                .iter()
                .zip(columns_at.iter())
                .map(|(cell, at)| fit(cell, *at))
                .collect::<Vec<_>>(),
        )
    };
    let titles = columns.iter().map(|(title, _)| *title);
    let titles = std::iter::once("VM").chain(titles).chain(["THIEF"]);
    let header = row(titles.map(str::to_owned).collect());
    let rows = lines.iter().map(|(name, line)| {
        let stolen = line.ns(TimeAccount::StealOutside) + line.ns(TimeAccount::StealVmm);
        let alarm = colours == Colours::Yes && line.wall_ns / 10 <= stolen;
        let style = if alarm { Style::new().fg(Color::Red) } else { Style::new() };
        row(cells(name, line, has_pauses)).style(style)
    });
    let widths = columns_at.iter().map(|at| Constraint::Length(at.width));
    Table::new(rows.collect::<Vec<_>>(), widths.collect::<Vec<_>>())
        .header(header.style(Style::new().add_modifier(Modifier::BOLD)))
}

/// A line's columns as text; the numbers in % of its time.
fn cells(name: &str, line: &Overview, with_pauses: bool) -> Vec<String> {
    let of = |account| line.ns(account);
    let mut parts = vec![
        of(TimeAccount::Guest),
        line.guest_user_ns,
        line.guest_kernel_ns,
        of(TimeAccount::Halt) + of(TimeAccount::HaltPolling),
        of(TimeAccount::StealOutside),
        of(TimeAccount::StealVmm),
        of(TimeAccount::Throttled),
        of(TimeAccount::NotSampled) + of(TimeAccount::Unknown),
    ];
    if with_pauses {
        parts.insert(PAUSE_AT, of(TimeAccount::Paused));
    }
    let percent = |ns| format!("{:5.1}", 100.0 * ns as f64 / line.wall_ns.max(1) as f64);
    let thief = line.thieves.first().map(|thief| top_thief(line, thief));
    let numbers = parts.into_iter().map(percent);
    let name = clean(name).into_owned();
    std::iter::once(name).chain(numbers).chain([thief.unwrap_or_default()]).collect()
}

fn leaders(frame: &mut Frame<'_>, area: Rect, line: &Overview) {
    let thirds = [Constraint::Percentage(29), Constraint::Percentage(31), Constraint::Min(10)];
    let [left, middle, right] = Layout::horizontal(thirds).spacing(1).areas(area);
    for (title, shares, area) in [
        ("Thieves", &line.thieves, left),
        ("Exits by time", &line.exits, middle),
        ("Guest functions", &line.functions, right),
    ] {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let mut text = vec![Line::styled(title, bold)];
        let lines = shares.iter().map(|share| fit(&leader(share, line.wall_ns), area));
        text.extend(lines.map(Line::raw));
        frame.render_widget(Paragraph::new(text), area);
    }
}

fn leader(share: &Share, wall_ns: u64) -> String {
    let part = 100.0 * share.ns as f64 / wall_ns.max(1) as f64;
    let process = match share.process.as_str() {
        "" => String::new(),
        process => format!(" ({})", clean(process)),
    };
    format!("{part:5.1} {}{process}", clean(&share.name))
}

#[cfg(test)]
mod test {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn share(name: &str, process: &str, ns: u64) -> Share {
        Share { name: name.to_owned(), process: process.to_owned(), ns }
    }

    fn vcpu(vm: &str, vcpu: u32, accounts: &[(TimeAccount, u64)]) -> Overview {
        Overview {
            vm: vm.to_owned(),
            vcpu,
            wall_ns: 1000,
            guest_user_ns: accounts
                .iter()
                .find(|(a, _)| *a == TimeAccount::Guest)
                .map_or(0, |a| a.1),
            accounts: accounts.iter().copied().collect(),
            ..Overview::default()
        }
    }

    fn shown() -> Shown {
        use TimeAccount::{
            Guest, Halt, HaltPolling, NotSampled, StealOutside, StealVmm, Throttled,
        };
        let mut web = vcpu("web", 0, &[(Guest, 470), (StealOutside, 500), (StealVmm, 30)]);
        web.thieves = vec![share("vm db vcpu0", "", 490), share("vhost-1234", "", 10)];
        web.exits = vec![share("npf", "", 20), share("io", "", 10)];
        web.functions =
            vec![share("compute_a", "compute", 400), share("evil\u{1b}[31m", "compute", 70)];
        let idle = vcpu("web", 1, &[(Guest, 20), (Halt, 900), (HaltPolling, 80)]);
        let db = vcpu("db", 0, &[(Guest, 600), (Throttled, 300), (NotSampled, 100)]);
        Shown {
            hostname: "host1".to_owned(),
            n_cpus: 2,
            window_ns: 2_000_000_000,
            vcpus: vec![db, web, idle],
            notes: Vec::new(),
            status: String::new(),
            has_queried: false,
        }
    }

    /// The screen as text, without blanks at the ends of lines.
    fn screen(state: &State, shown: &Shown, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, shown, state, Colours::No)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let row = |y| -> String { (0..width).map(|x| buffer[(x, y)].symbol()).collect() };
        (0..height).map(|y| row(y).trim_end().to_owned() + "\n").collect()
    }

    fn check(name: &str, state: &State) {
        check_of(name, state, &shown(), 80);
    }

    fn check_of(name: &str, state: &State, shown: &Shown, width: u16) {
        let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/golden/top")
            .join(name);
        let text = screen(state, shown, width, 24);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&golden, &text).expect("the golden file can be written");
        }
        assert_eq!(text, std::fs::read_to_string(&golden).unwrap_or_default(), "{name}");
    }

    #[test]
    fn screens() {
        check("vms.txt", &State::default());
        check("vcpus.txt", &State { vcpus: true, selected: 1, ..State::default() });
        check("detail.txt", &State { mode: Mode::Detail("web".to_owned()), ..State::default() });
        check("help.txt", &State { mode: Mode::Help, ..State::default() });
        let mut paused = shown();
        paused.vcpus[0].accounts.insert(TimeAccount::Paused, 100);
        paused.vcpus[0].accounts.insert(TimeAccount::Guest, 500);
        check_of("paused.txt", &State::default(), &paused, 80);
        check_of("narrow.txt", &State::default(), &shown(), 50);
        let filter = State { mode: Mode::Filter, filter: "x".to_owned(), ..State::default() };
        check("filter.txt", &filter);
    }

    #[test]
    fn any_size_is_drawn() {
        for (width, height) in [(1, 1), (10, 3), (20, 8), (79, 15), (300, 100)] {
            screen(&State::default(), &shown(), width, height);
            let detail = State { mode: Mode::Detail("gone".to_owned()), ..State::default() };
            screen(&detail, &shown(), width, height);
        }
    }
}
