//! Field offsets from the running kernel's BTF.

use std::path::Path;

use btf_rs::{Btf, Struct, Type};

use super::InsideError;
use crate::walk::Layout;

/// Anonymous structs and unions within each other, at most.
const MAX_DEPTH: u32 = 8;

/// Reads what the walk needs to know from a BTF file (`/sys/kernel/btf/vmlinux`).
pub(crate) fn read_layout(path: &Path) -> Result<Layout, InsideError> {
    let btf = Btf::from_file(path)
        .map_err(|error| InsideError::Content { path: path.into(), text: error.to_string() })?;
    let task = find_struct(&btf, "task_struct")?;
    let in_task = |name| offset(&btf, &task, name, 0).ok_or(InsideError::NoField(name));
    let within = |structure, name| {
        offset(&btf, &find_struct(&btf, structure)?, name, 0).ok_or(InsideError::NoField(name))
    };
    Ok(Layout {
        tasks: in_task("tasks")?,
        pid: in_task("pid")?,
        comm: in_task("comm")?,
        mm: in_task("mm")?,
        start_time: in_task("start_time")?,
        fs_base: in_task("thread")? + within("thread_struct", "fsbase")?,
        signal: in_task("signal")?,
        thread_node: in_task("thread_node")?,
        thread_head: within("signal_struct", "thread_head")?,
        pgd: within("mm_struct", "pgd")?,
    })
}

fn find_struct(btf: &Btf, name: &'static str) -> Result<Struct, InsideError> {
    let types = btf.resolve_types_by_name(name).unwrap_or_default();
    types
        .into_iter()
        .find_map(|found| match found {
            Type::Struct(found) => Some(found),
            _ => None,
        })
        .ok_or(InsideError::NoField(name))
}

/// Byte offset of the member `name`, also within anonymous structs and unions.
fn offset(btf: &Btf, structure: &Struct, name: &str, depth: u32) -> Option<u64> {
    if depth == MAX_DEPTH {
        return None;
    }
    structure.members.iter().find_map(|member| {
        let here = u64::from(member.bit_offset()) / 8;
        let member_name = btf.resolve_name(member).unwrap_or_default();
        if member_name == name {
            return Some(here);
        }
        if !member_name.is_empty() {
            return None;
        }
        match btf.resolve_chained_type(member).ok()? {
            Type::Struct(inner) | Type::Union(inner) => {
                Some(here + offset(btf, &inner, name, depth + 1)?)
            }
            _ => None,
        }
    })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_running_kernel_tells_its_layout() {
        let path = Path::new("/sys/kernel/btf/vmlinux");
        if !path.exists() {
            return eprintln!("skipped: this kernel has no BTF");
        }
        let layout = read_layout(path).unwrap();
        assert!(0 < layout.tasks && 0 < layout.fs_base && layout.pid % 4 == 0, "{layout:?}");
        assert!(read_layout(Path::new("/proc/self/comm")).is_err());
    }
}
