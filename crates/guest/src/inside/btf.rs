//! Where the running kernel keeps what the walk reads, from its type information.

use std::path::Path;

use linux::tasks::Layout;
use linux::types::Types;

use super::InsideError;

/// Reads what the walk needs to know from a BTF file (`/sys/kernel/btf/vmlinux`).
pub(crate) fn read_layout(path: &Path) -> Result<Layout, InsideError> {
    let bytes = std::fs::read(path).map_err(InsideError::read(path))?;
    let types = Types::parse(&bytes).ok_or_else(|| InsideError::Content {
        path: path.into(),
        text: "not the kernel's type information".into(),
    })?;
    Ok(Layout::from_types(&types)?)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_running_kernel_tells_its_layout() {
        let path = Path::new("/sys/kernel/btf/vmlinux");
        if !path.exists() {
            return skip::skip("this kernel has no BTF");
        }
        let layout = read_layout(path).unwrap();
        assert!(0 < layout.tasks && 0 < layout.fs_base, "{layout:?}");
        assert_eq!(layout.tgid, layout.pid + 4);
        assert!(read_layout(Path::new("/proc/self/comm")).is_err());
    }
}
