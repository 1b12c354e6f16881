//! Names as shown.

use model::{BuildId, ImageKind, ModuleId, Owner, SymbolName, Tables};

use resolve::{Code, CodeName, ProcessRef, Resolver, UnresolvedReason, VmRef};

/// Stands for a missing name.
pub(crate) const UNKNOWN: &str = "[unknown]";
/// A kernel's own threads.
pub(crate) const KERNEL: &str = "[kernel]";
/// The host's idle task.
pub(crate) const IDLE: &str = "[idle]";
/// A module without symbols.
pub(crate) const STRIPPED: &str = "(stripped)";
/// Code of a guest's guest.
pub(crate) const NESTED: &str = "[nested]";

/// Gives names to what a resolver found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Namer<'t> {
    tables: &'t Tables,
}

impl<'t> Namer<'t> {
    pub(crate) fn new(resolver: &Resolver<'t>) -> Self {
        Self { tables: resolver.tables() }
    }

    /// A VM's name.
    pub(crate) fn vm(&self, vm: VmRef) -> String {
        match vm {
            VmRef::Known(vm) => self.tables.vms[vm.index()].name.clone(),
            VmRef::OfProcess(pid) => format!("pid {pid}"),
        }
    }

    /// A process' name and, when it is a real one, id.
    pub(crate) fn process(&self, process: ProcessRef) -> (String, Option<u32>) {
        match process {
            ProcessRef::Idle => (IDLE.to_owned(), None),
            ProcessRef::Vm(vm) => (format!("[{}]", self.vm(vm)), None),
            ProcessRef::UnknownHost(pid) => (UNKNOWN.to_owned(), Some(pid.0)),
            ProcessRef::UnknownGuest(..) => (UNKNOWN.to_owned(), None),
            ProcessRef::Image(image) => {
                let image = &self.tables.images[image.index()];
                match image.kind {
                    ImageKind::Kernel => (KERNEL.to_owned(), None),
                    ImageKind::Process => (image.name.clone(), Some(image.pid.0)),
                }
            }
        }
    }

    /// A function's name, or what stands for it.
    pub(crate) fn function(&self, code: Code) -> String {
        match code.name {
            CodeName::Function(row) => match &self.tables.symbols[row as usize].name {
                SymbolName::Function(name) => name.clone(),
                SymbolName::Stripped | SymbolName::Unreadable(_) => UNKNOWN.to_owned(),
            },
            CodeName::Stripped => STRIPPED.to_owned(),
            CodeName::Vm(vm) => format!("[{}]", self.vm(vm)),
            CodeName::Unknown(UnresolvedReason::NoGuestMap(vm)) => {
                format!("[{}]", self.vm(VmRef::Known(vm)))
            }
            CodeName::Unknown(UnresolvedReason::Nested) => NESTED.to_owned(),
            CodeName::Unknown(UnresolvedReason::StackEnds(end)) => format!("[cut: {end}]"),
            CodeName::Unknown(_) => UNKNOWN.to_owned(),
        }
    }

    /// A module's path.
    pub(crate) fn module(&self, module: ModuleId) -> &'t str {
        self.tables.modules.get(module.index()).map_or(UNKNOWN, |module| module.path.as_str())
    }

    /// A module's build id.
    pub(crate) fn build_id(&self, module: ModuleId) -> Option<&'t BuildId> {
        self.tables.modules.get(module.index())?.build_id.as_ref()
    }

    /// The VM a module belongs to.
    pub(crate) fn module_vm(&self, module: ModuleId) -> Option<&'t str> {
        match self.tables.modules.get(module.index())?.owner {
            Owner::Host => None,
            Owner::Vm(vm) => self.tables.vms.get(vm.index()).map(|vm| vm.name.as_str()),
        }
    }

    /// The name and id of a thread.
    pub(crate) fn thread(&self, row: u32) -> (String, Option<u32>) {
        let thread = &self.tables.threads[row as usize];
        (thread.name.clone(), Some(thread.tid.0))
    }
}
