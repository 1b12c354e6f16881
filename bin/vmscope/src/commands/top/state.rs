//! What the screen shows, and how keys change it. Pure: no terminal here.
//!
//! ```text
//!  List --Enter--> One VM --Esc--> List
//!    \--/--> typing a filter --Enter or Esc--> List
//! ```

use analysis::overview::Overview;
use model::TimeAccount;

/// What is looked at, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) mode: Mode,
    pub(crate) sort: Sort,
    pub(crate) filter: String,
    pub(crate) selected: usize,
    /// A line per vCPU rather than per VM.
    pub(crate) vcpus: bool,
    pub(crate) paused: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mode {
    List,
    /// One VM in detail, by name.
    Detail(String),
    /// A filter is being typed.
    Filter,
    Help,
}

/// The order of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    Name,
    Guest,
    Halt,
    Outside,
    Vmm,
}

/// A key, independent of the terminal library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Char(char),
    Up,
    Down,
    Enter,
    Escape,
    Backspace,
    /// Ctrl-C.
    Interrupt,
}

/// What the program is to do after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Nothing,
    Quit,
    /// Ask the guests for names again.
    Names,
}

impl Default for State {
    fn default() -> Self {
        Self {
            mode: Mode::List,
            sort: Sort::Outside,
            filter: String::new(),
            selected: 0,
            vcpus: false,
            paused: false,
        }
    }
}

impl Sort {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Guest => "guest",
            Self::Halt => "halt",
            Self::Outside => "steal1",
            Self::Vmm => "steal2",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Name => Self::Guest,
            Self::Guest => Self::Halt,
            Self::Halt => Self::Outside,
            Self::Outside => Self::Vmm,
            Self::Vmm => Self::Name,
        }
    }

    /// Its share of a line's time, in millionths.
    fn of(self, line: &Overview) -> u64 {
        let ns = match self {
            Self::Name => return 0,
            Self::Guest => line.ns(TimeAccount::Guest),
            Self::Halt => line.ns(TimeAccount::Halt) + line.ns(TimeAccount::HaltPolling),
            Self::Outside => line.ns(TimeAccount::StealOutside),
            Self::Vmm => line.ns(TimeAccount::StealVmm),
        };
        ns.saturating_mul(1_000_000) / line.wall_ns.max(1)
    }
}

impl State {
    /// The lines to show: VMs or vCPUs, those that the filter admits, in order.
    pub(crate) fn lines(&self, vcpus: &[Overview]) -> Vec<Overview> {
        let admitted = |line: &&Overview| line.vm.contains(&self.filter);
        let mut lines: Vec<Overview> = if self.vcpus {
            vcpus.iter().filter(admitted).cloned().collect()
        } else {
            let of_vms = vcpus.chunk_by(|a, b| a.vm == b.vm);
            let sums = of_vms.map(|vm| Overview::sum(&vm.iter().collect::<Vec<_>>()));
            sums.filter(|vm| admitted(&vm)).collect()
        };
        lines.sort_by_key(|line| std::cmp::Reverse(self.sort.of(line)));
        lines
    }

    /// Takes a key; `lines` are those on the screen.
    pub(crate) fn key(&mut self, key: Key, lines: &[Overview]) -> Wish {
        self.selected = self.selected.min(lines.len().saturating_sub(1));
        match (&self.mode, key) {
            (_, Key::Interrupt) => return Wish::Quit,
            (Mode::Filter, key) => self.filter_key(key),
            (_, Key::Char('q')) => return Wish::Quit,
            (_, Key::Char('n')) => return Wish::Names,
            (_, Key::Char('p')) => self.paused = !self.paused,
            (Mode::Detail(_) | Mode::Help, Key::Escape | Key::Enter)
            | (Mode::Help, Key::Char('h' | '?')) => self.mode = Mode::List,
            (Mode::List, Key::Enter) => {
                if let Some(line) = lines.get(self.selected) {
                    self.mode = Mode::Detail(line.vm.clone());
                }
            }
            (Mode::List, Key::Escape) => self.filter.clear(),
            (_, Key::Char('h' | '?')) => self.mode = Mode::Help,
            (Mode::List, Key::Char('/')) => self.mode = Mode::Filter,
            (Mode::List, Key::Char('s')) => self.sort = self.sort.next(),
            (Mode::List, Key::Char('v')) => self.vcpus = !self.vcpus,
            (Mode::List, Key::Up | Key::Char('k')) => {
                self.selected = self.selected.saturating_sub(1);
            }
            (Mode::List, Key::Down | Key::Char('j')) => {
                self.selected = (self.selected + 1).min(lines.len().saturating_sub(1));
            }
            _ => {}
        }
        Wish::Nothing
    }

    fn filter_key(&mut self, key: Key) {
        match key {
            Key::Char(c) => self.filter.push(c),
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Escape => {
                self.filter.clear();
                self.mode = Mode::List;
            }
            Key::Enter => self.mode = Mode::List,
            Key::Up | Key::Down | Key::Interrupt => {}
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    /// Each VM's name and the per cent of its time that was guest and stolen.
    fn vcpus(lines: &[(&str, u64, u64)]) -> Vec<Overview> {
        let one = |(vm, guest, stolen): &(&str, u64, u64)| Overview {
            vm: (*vm).to_owned(),
            wall_ns: 100,
            accounts: [(TimeAccount::Guest, *guest), (TimeAccount::StealOutside, *stolen)].into(),
            ..Overview::default()
        };
        lines.iter().map(one).collect()
    }

    /// Types `keys` and names the lines that are then shown; the selected one is marked.
    fn check(keys: &str, expected: &str) {
        let vcpus = vcpus(&[("ci", 10, 50), ("db", 90, 5), ("web", 20, 70), ("web", 40, 10)]);
        let mut state = State::default();
        for key in keys.chars() {
            let key = match key {
                '↓' => Key::Down,
                '↑' => Key::Up,
                '⏎' => Key::Enter,
                '⎋' => Key::Escape,
                '⌫' => Key::Backspace,
                key => Key::Char(key),
            };
            let lines = state.lines(&vcpus);
            state.key(key, &lines);
        }
        let lines = state.lines(&vcpus);
        let shown: Vec<String> = lines
            .iter()
            .enumerate()
            .map(|(n, line)| format!("{}{}", if n == state.selected { ">" } else { "" }, line.vm))
            .collect();
        let mode = match &state.mode {
            Mode::Detail(vm) => format!("detail of {vm}: "),
            Mode::Filter => "filter: ".to_owned(),
            Mode::Help => "help: ".to_owned(),
            Mode::List => String::new(),
        };
        assert_eq!(format!("{mode}{}", shown.join(" ")), expected, "{keys}");
    }

    #[test]
    fn keys() {
        check("", ">ci web db");
        check("↓", "ci >web db");
        check("↓↓↓↓↑", "ci >web db");
        check("ss", ">ci db web"); // by name
        check("sss", ">db web ci"); // by guest
        check("v", ">web ci web db");
        check("/w", "filter: >web");
        check("/wx⌫⏎", ">web");
        check("/w⎋", ">ci web db");
        check("/q⏎⎋", ">ci web db"); // a letter of the filter, not a command
        check("↓⏎", "detail of web: ci >web db");
        check("↓⏎⎋", "ci >web db");
        check("h⎋", ">ci web db");
        check("hh", ">ci web db");
        check("h?h", "help: >ci web db");
    }

    #[test]
    fn quitting() {
        let mut state = State::default();
        assert_eq!(state.key(Key::Char('q'), &[]), Wish::Quit);
        assert_eq!(state.key(Key::Char('/'), &[]), Wish::Nothing);
        assert_eq!(state.key(Key::Char('q'), &[]), Wish::Nothing);
        assert_eq!(state.key(Key::Interrupt, &[]), Wish::Quit);
    }
}
