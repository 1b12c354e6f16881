//! Who runs in a guest, as its own kernel has it.

use serde::{Deserialize, Serialize};

use crate::{Pid, Tid};

/// The task that a guest's kernel says runs on a vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GuestTask {
    /// 0 for an idle task.
    pub pid: Pid,
    pub tid: Tid,
}

/// Where a guest's kernel keeps what is read at a sample: byte offsets of fields, in the order of `struct guest_view` of
/// `bpf/abi/sample.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TaskOffsets {
    /// `task_struct.mm`
    pub mm: u32,
    /// `task_struct.stack`
    pub stack: u32,
    /// `task_struct.thread.fsbase`
    pub fs_base: u32,
    /// `task_struct.pid`; `tgid` lies behind it.
    pub pid: u32,
    /// `task_struct.comm`
    pub comm: u32,
    /// `task_struct.start_time`
    pub start_time: u32,
    /// `mm_struct.pgd`
    pub pgd: u32,
    /// `mm_struct.mm_mt.ma_root`; 0: this kernel keeps mappings in another way.
    pub tree: u32,
    /// `vm_area_struct.vm_start`; `vm_end` lies behind it.
    pub area_start: u32,
    /// `vm_area_struct.vm_pgoff`
    pub area_offset: u32,
    /// `vm_area_struct.vm_file`
    pub area_file: u32,
    /// `file.f_path`: mount, then dentry.
    pub file_path: u32,
    /// `file.f_inode`
    pub file_inode: u32,
    /// `file.f_mapping`
    pub file_pages: u32,
    /// Bytes of `task_struct` up to the last of these fields.
    pub task_bytes: u32,
    /// Of its page tables: 4 or 5.
    pub paging_levels: u32,
}

impl TaskOffsets {
    /// In the order of the fields.
    #[must_use]
    pub fn words(&self) -> [u32; 16] {
        let Self { mm, stack, fs_base, pid, comm, start_time, pgd, tree, .. } = *self;
        let Self { area_start, area_offset, area_file, .. } = *self;
        let Self { file_path, file_inode, file_pages, task_bytes, paging_levels, .. } = *self;
        [
            mm,
            stack,
            fs_base,
            pid,
            comm,
            start_time,
            pgd,
            tree,
            area_start,
            area_offset,
            area_file,
            file_path,
            file_inode,
            file_pages,
            task_bytes,
            paging_levels,
        ]
    }
}

/// A guest's task that a sample hit in a page of code where none hit it before, and what is mapped there (`struct guest_code`
/// of `bpf/abi/sample.h`). Addresses are those of the guest's kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GuestCode {
    /// Host's `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// Raw page-table base; 0 for a kernel thread and for an idle task.
    pub cr3: u64,
    pub fs_base: u64,
    /// First address of its kernel stack.
    pub stack: u64,
    /// When it was made, guest's `CLOCK_MONOTONIC`, ns.
    pub start_ns: u64,
    /// The executable mapping; `end` 0: kernel code, or unknown.
    pub start: u64,
    pub end: u64,
    /// Offset of `start` in the file, in pages.
    pub offset: u64,
    /// `struct file`; 0: none. Then its mount, dentry, inode and page cache, which live longer.
    pub file: u64,
    pub mount: u64,
    pub dentry: u64,
    pub inode: u64,
    pub pages: u64,
    pub pid: u32,
    pub tid: u32,
    pub comm: [u8; 16],
}
