//! The guest kernel's text, symbols and modules, from `/proc/kallsyms` and `/proc/modules`.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use api::guest::{GuestKernel, KernelModule, KernelSymbol};
use host::procfs::{ModuleEntry, parse_kallsyms, parse_modules};

use super::InsideError;

/// What the symbols say, beyond what the host wants to know.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// For the host.
    pub(crate) map: GuestKernel,
    /// The address of `init_task`.
    pub(crate) init_task: Option<u64>,
    /// The address of the kernel's own page tables (`swapper_pg_dir`).
    pub(crate) page_tables: Option<u64>,
    /// The address of `idle_threads`: on kernels before Linux 6.15, its offset in each CPU's variables.
    pub(crate) idle_threads: Option<u64>,
    /// The address of `__per_cpu_offset`.
    pub(crate) per_cpu_offset: Option<u64>,
    module_lines: Vec<ModuleEntry>,
}

/// Reads the kernel's symbols below `proc`, or takes `known`, if no module came or went since: the
/// kernel prints some 200,000 lines.
pub(crate) fn read_kernel(
    proc: &Path,
    known: Option<&Arc<Kernel>>,
) -> Result<Arc<Kernel>, InsideError> {
    // A kernel without modules has no such file.
    let modules = read_text(&proc.join("modules")).unwrap_or_default();
    if let Some(known) = known
        && known.module_lines == parse_modules(&modules)
    {
        return Ok(Arc::clone(known));
    }
    let symbols = read_text(&proc.join("kallsyms"))?;
    parse_kernel(&symbols, &modules).map(Arc::new)
}

fn read_text(path: &Path) -> Result<String, InsideError> {
    let bytes = std::fs::read(path).map_err(InsideError::read(path))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn parse_kernel(symbols: &str, modules: &str) -> Result<Kernel, InsideError> {
    let mut kernel = Kernel::default();
    let mut text_of_modules: HashMap<&str, (u64, u64)> = HashMap::new();
    for symbol in parse_kallsyms(symbols).filter(|symbol| symbol.address != 0) {
        match (symbol.module, symbol.name) {
            (None, "_stext") => kernel.map.text_start = symbol.address,
            (None, "_etext") => kernel.map.text_end = symbol.address,
            (None, "init_task") => kernel.init_task = Some(symbol.address),
            // `swapper_pg_dir` is a macro for it on x86-64.
            (None, "init_top_pgt") => kernel.page_tables = Some(symbol.address),
            (None, "idle_threads") => kernel.idle_threads = Some(symbol.address),
            (None, "__per_cpu_offset") => kernel.per_cpu_offset = Some(symbol.address),
            _ => {}
        }
        if !symbol.is_text() {
            continue;
        }
        if let Some(module) = symbol.module {
            let (first, last) =
                text_of_modules.entry(module).or_insert((symbol.address, symbol.address));
            *first = symbol.address.min(*first);
            *last = symbol.address.max(*last);
        }
        let name = symbol.name.to_owned();
        kernel.map.symbols.push(KernelSymbol { address: symbol.address, name });
    }
    if kernel.map.text_start == 0 || kernel.map.text_end <= kernel.map.text_start {
        return Err(InsideError::NoSymbol("_stext and _etext"));
    }
    kernel.map.symbols.sort_by_key(|symbol| symbol.address);
    kernel.module_lines = parse_modules(modules);
    kernel.map.modules = module_ranges(&kernel.module_lines, &text_of_modules);
    Ok(kernel)
}

/// The range of each module's code. `/proc/modules` gives the sum of a module's parts, which since
/// Linux 6.4 are not in one piece: its text symbols say how far the code reaches.
fn module_ranges(modules: &[ModuleEntry], text: &HashMap<&str, (u64, u64)>) -> Vec<KernelModule> {
    const PAGE: u64 = 0x1000;
    let mut ranges: Vec<KernelModule> = modules
        .iter()
        .filter_map(|module| {
            let (first, last) = text.get(module.name.as_str())?;
            let start = first & !(PAGE - 1);
            Some(KernelModule {
                name: module.name.clone(),
                start,
                size: (last & !(PAGE - 1)) + PAGE - start,
            })
        })
        .collect();
    ranges.sort_by_key(|module| module.start);
    // Modules start on page boundaries, but init sections of old kernels may stand elsewhere.
    for index in 1..ranges.len() {
        let next = ranges[index].start;
        let before = &mut ranges[index - 1];
        before.size = before.size.min(next - before.start);
    }
    ranges.retain(|module| 0 < module.size);
    ranges
}

#[cfg(test)]
mod test {
    use super::*;

    const SYMBOLS: &str = "\
ffffffff81000000 T _stext
ffffffff81000100 T schedule
ffffffff82000000 T _etext
ffffffff82400000 D init_task
ffffffff82410000 D init_top_pgt
ffffffff82420000 D __per_cpu_offset
000000000001f8c8 d idle_threads
ffffffffc0000010 t first\t[virtio]
ffffffffc0001fff t last\t[virtio]
ffffffffc0003000 d data\t[virtio]
ffffffffc0001000 t inner\t[overlay]
ffffffffc0700000 t bpf_prog_1\t[bpf]
";
    const MODULES: &str = "\
virtio 20480 0 - Live 0xffffffffc0000000
overlay 20480 0 - Live 0xffffffffc0001000
silent 20480 0 - Live 0xffffffffc0009000
";

    #[test]
    fn text_symbols_and_module_ranges_are_kept() {
        let kernel = parse_kernel(SYMBOLS, MODULES).unwrap();
        assert_eq!(kernel.init_task, Some(0xffff_ffff_8240_0000));
        assert_eq!(kernel.page_tables, Some(0xffff_ffff_8241_0000));
        assert_eq!(kernel.per_cpu_offset, Some(0xffff_ffff_8242_0000));
        assert_eq!(kernel.idle_threads, Some(0x1_f8c8));
        assert_eq!(kernel.map.text_start, 0xffff_ffff_8100_0000);
        assert_eq!(kernel.map.text_end, 0xffff_ffff_8200_0000);
        let names: Vec<_> = kernel.map.symbols.iter().map(|symbol| &*symbol.name).collect();
        assert_eq!(names, ["_stext", "schedule", "_etext", "first", "inner", "last", "bpf_prog_1"]);
        let modules: Vec<_> =
            kernel.map.modules.iter().map(|m| (&*m.name, m.start, m.size)).collect();
        let base = 0xffff_ffff_c000_0000;
        assert_eq!(modules, [("virtio", base, 0x1000), ("overlay", base + 0x1000, 0x1000)]);
    }

    #[test]
    fn known_symbols_are_kept_until_modules_change() {
        let proc = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(proc.path().join(name), text).unwrap();
        write("kallsyms", SYMBOLS);
        write("modules", MODULES);
        let known = read_kernel(proc.path(), None).unwrap();
        write("kallsyms", "");
        let known = read_kernel(proc.path(), Some(&known)).unwrap();
        assert_eq!(known.map.symbols.len(), 7);
        write("modules", "virtio 20480 0 - Live 0xffffffffc0000000\n");
        assert!(read_kernel(proc.path(), Some(&known)).is_err());
    }

    #[test]
    fn hidden_addresses_are_an_error() {
        let hidden = "0000000000000000 T _stext\n0000000000000000 T _etext\n";
        assert!(parse_kernel(hidden, "").is_err());
    }
}
