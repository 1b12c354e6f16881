//! What to report.

use std::collections::BTreeSet;

use model::{Tables, VmId};

/// Which samples count, and from whose point of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// Everything: an interrupted guest shows as the guest's own function.
    Unified,
    /// The host; an interrupted guest shows as one `[vmname]` line.
    Host,
    Guest,
    /// The host without the samples that interrupted a guest.
    Native,
}

/// What a line of the report stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// A function in a process.
    Function,
    /// An instruction in a process.
    Address,
    Process,
    Thread,
    Module,
    /// A VM, a VM's VMM, the rest of the host.
    Vm,
    /// A physical CPU; in the guest view a vCPU.
    Cpu,
    /// The NUMA node of the physical CPU, and a VM, a VM's VMM, the rest of the host there.
    Node,
}

/// Which samples are looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    view: View,
    vm: Option<VmId>,
    vcpu: Option<u32>,
    process: Option<ProcessFilter>,
    of_command: bool,
}

/// Which samples a profile counts, and how it groups them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    pub selection: Selection,
    /// What a line stands for.
    pub by: By,
    /// Lines to show at most; the rest is one line. `None`: all.
    pub limit: Option<usize>,
}

/// One process or all of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessFilter {
    text: String,
    pid: Option<u32>,
}

/// A selection that does not fit the recording.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SelectError {
    /// A VM is requested, and the recording has none.
    #[error("this recording has no VM: use --view unified or host")]
    NoVms,
    /// No VM of that name.
    #[error("no VM named {name:?} in this recording; it has: {known}")]
    UnknownVm { name: String, known: String },
    /// The guest view needs a VM.
    #[error("choose a VM with --vm: {known}")]
    VmNeeded { known: String },
    /// No vCPU of that number.
    #[error("VM {vm:?} has no vCPU {vcpu} in this recording; it has: {known}")]
    UnknownVcpu { vm: String, vcpu: u32, known: String },
}

impl View {
    /// Its name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unified => "unified",
            Self::Host => "host",
            Self::Guest => "guest",
            Self::Native => "native",
        }
    }
}

impl By {
    /// Its name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::Address => "address",
            Self::Process => "process",
            Self::Thread => "thread",
            Self::Module => "module",
            Self::Vm => "vm",
            Self::Cpu => "cpu",
            Self::Node => "node",
        }
    }
}

impl Selection {
    /// Everything there is, host and guests.
    #[must_use]
    pub fn everything() -> Self {
        Self { view: View::Unified, vm: None, vcpu: None, process: None, of_command: false }
    }

    /// Everything in the view.
    ///
    /// # Errors
    /// The guest view needs a VM: the only one is the default.
    pub fn all(tables: &Tables, view: View) -> Result<Self, SelectError> {
        Self::new(tables, view, None, None, None)
    }

    /// Restricts a view to a VM, one of its vCPUs, and a process by name or id.
    ///
    /// The guest view, and a vCPU number, need a VM; when the recording has exactly one, that is it.
    ///
    /// # Errors
    /// What is queried for is not in the recording; the error names what is.
    pub fn new(
        tables: &Tables,
        view: View,
        vm: Option<&str>,
        vcpu: Option<u32>,
        process: Option<&str>,
    ) -> Result<Self, SelectError> {
        let vm = match vm {
            Some(name) => Some(vm_named(tables, name)?),
            None if view == View::Guest || vcpu.is_some() => Some(only_vm(tables)?),
            None => None,
        };
        if let (Some(vm), Some(vcpu)) = (vm, vcpu) {
            check_vcpu(tables, vm, vcpu)?;
        }
        let process = process.map(ProcessFilter::new);
        Ok(Self { view, vm, vcpu, process, of_command: false })
    }

    /// Of that only the recording's COMMAND and its descendants on the host.
    #[must_use]
    pub fn of_command(self) -> Self {
        Self { of_command: true, ..self }
    }

    /// Whether only the recording's COMMAND and its descendants are selected.
    #[must_use]
    pub fn is_of_command(&self) -> bool {
        self.of_command
    }

    /// Whose point of view the profile takes.
    #[must_use]
    pub fn view(&self) -> View {
        self.view
    }

    /// The VM; always there in the guest view.
    #[must_use]
    pub fn vm(&self) -> Option<VmId> {
        self.vm
    }

    /// The number of the selected vCPU, if one is selected.
    #[must_use]
    pub fn vcpu(&self) -> Option<u32> {
        self.vcpu
    }

    /// The selected process, if one is selected.
    #[must_use]
    pub fn process(&self) -> Option<&ProcessFilter> {
        self.process.as_ref()
    }
}

impl ProcessFilter {
    /// From a name, or a number: a process id in its owner's numbering.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self { text: text.to_owned(), pid: text.parse().ok() }
    }

    /// The filter as the user wrote it.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it means this process. The kernel cuts names to 15 bytes; the whole name is
    /// understood too.
    #[must_use]
    pub fn matches(&self, name: &str, pid: Option<u32>) -> bool {
        let cut = name.len() == 15 && self.text.len() > 15 && self.text.starts_with(name);
        name == self.text || cut || (pid.is_some() && pid == self.pid)
    }
}

fn vm_named(tables: &Tables, name: &str) -> Result<VmId, SelectError> {
    if tables.vms.is_empty() {
        return Err(SelectError::NoVms);
    }
    let row = tables.vms.iter().position(|vm| vm.name == name);
    row.map(VmId::from_index)
        .ok_or_else(|| SelectError::UnknownVm { name: name.to_owned(), known: vm_names(tables) })
}

fn only_vm(tables: &Tables) -> Result<VmId, SelectError> {
    let is_first = |index| tables.is_same_vm(VmId(0), VmId::from_index(index));
    match tables.vms.len() {
        0 => Err(SelectError::NoVms),
        n if (1..n).all(is_first) => Ok(VmId(0)),
        _ => Err(SelectError::VmNeeded { known: vm_names(tables) }),
    }
}

fn check_vcpu(tables: &Tables, vm: VmId, vcpu: u32) -> Result<(), SelectError> {
    let mut numbers: Vec<u32> =
        tables.vcpus.iter().filter(|v| tables.is_same_vm(v.vm, vm)).map(|v| v.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    if numbers.contains(&vcpu) {
        return Ok(());
    }
    let names: Vec<String> = numbers.iter().map(u32::to_string).collect();
    let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    Err(SelectError::UnknownVcpu { vm: tables.vms[vm.index()].name.clone(), vcpu, known })
}

fn vm_names(tables: &Tables) -> String {
    let mut names: Vec<&str> = tables.vms.iter().map(|vm| vm.name.as_str()).collect();
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(*name));
    names.join(", ")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn without_vms() {
        let check = |view, vm, vcpu, expected: Option<SelectError>| {
            let selection = Selection::new(&Tables::default(), view, vm, vcpu, None);
            assert_eq!(selection.err(), expected, "{view:?} {vm:?} {vcpu:?}");
        };
        check(View::Unified, None, None, None);
        check(View::Guest, None, None, Some(SelectError::NoVms));
        check(View::Unified, Some("x"), None, Some(SelectError::NoVms));
        check(View::Host, None, Some(1), Some(SelectError::NoVms));
    }

    #[test]
    fn process_filter() {
        let check = |filter: &str, name: &str, pid, expected| {
            assert_eq!(ProcessFilter::new(filter).matches(name, pid), expected, "{filter} {name}");
        };
        check("sh", "sh", Some(1), true);
        check("sh", "ssh", Some(1), false);
        check("12", "sh", Some(12), true);
        check("12", "sh", Some(1), false);
        check("12", "12", None, true);
        check("qemu-system-x86_64", "qemu-system-x86", Some(1), true);
        check("qemu-system-x86_64", "qemu", Some(1), false);
    }
}
