//! The file behind a mapping: what tells it from others, and its path; and names of mappings without a file, as
//! `/proc/PID/maps` has them.
//!
//! ```text
//!  file.f_path -> dentry, mount        dentry.d_parent -> dentry ... -> the mount's root
//!                                      mount.mnt_mountpoint -> dentry in mount.mnt_parent ... -> the mount without parent
//! ```

use model::GuestVirt;

use crate::fields::Fields;
use crate::mappings::Mapping;
use crate::memory::KernelMemory;
use crate::types::layout;

/// Directories and mounts on the way to a file, at most.
const MAX_DEPTH: u32 = 64;
/// The longest name (`NAME_MAX`).
const MAX_NAME: u32 = 255;
/// The longest path that `/proc` shows.
const MAX_PATH: usize = 4096;
/// Longest names of mappings without a file (`ANON_VMA_NAME_MAX_LEN` is 80).
const MAX_ANONYMOUS_NAME: usize = 80;
/// A file of a file system behind another one, as of overlays (`FMODE_BACKING`, Linux 6.5).
const FMODE_BACKING: u32 = 1 << 25;

const ASTRAY: &str = "the file changed while it was read";

layout! {
    /// Where the kernel keeps files and their names: byte offsets of fields.
    Layout {
        dentry: "file" "f_path.dentry",
        mount: "file" "f_path.mnt",
        mode: "file" "f_mode",
        inode: "file" "f_inode",
        pages: "file" "f_mapping",
        number: "inode" "i_ino",
        generation: "inode" "i_generation",
        size: "inode" "i_size",
        super_block: "inode" "i_sb",
        device: "super_block" "s_dev",
        dentry_inode: "dentry" "d_inode",
        parent: "dentry" "d_parent",
        name: "dentry" "d_name.name",
        name_length: "dentry" "d_name.len",
        hash: "dentry" "d_hash.pprev",
        mount_root: "vfsmount" "mnt_root",
        mount_within: "mount" "mnt",
        mount_parent: "mount" "mnt_parent",
        mount_point: "mount" "mnt_mountpoint",
        operations: "vm_area_struct" "vm_ops",
        private: "vm_area_struct" "vm_private_data",
        operation_name: "vm_operations_struct" "name",
        special_name: "vm_special_mapping" "name",
        heap_start: "mm_struct" "start_brk",
        heap_end: "mm_struct" "brk",
        stack: "mm_struct" "start_stack",
    }
    optional {
        user_dentry: "backing_file" "user_path.dentry",
        user_mount: "backing_file" "user_path.mnt",
        anonymous_name: "vm_area_struct" "anon_name",
        anonymous_text: "anon_vma_name" "name",
    }
}

/// A file that is mapped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct File {
    /// As `/proc/PID/maps` shows it.
    pub inode: u64,
    /// A number that is used again has another generation.
    pub generation: u32,
    /// Device of its file system: major number above the 20 bits of the minor one.
    pub device: u32,
    pub size: u64,
    /// `struct address_space` of its page cache.
    pub pages: GuestVirt,
    /// Path in the mount namespace that it was opened in.
    pub path: String,
    pub is_deleted: bool,
}

/// Reads what a `struct file` says.
///
/// # Errors
/// One clause: it is no file, it changed, or its path is too deep.
pub fn read_file(
    memory: &dyn KernelMemory,
    layout: &Layout,
    file: GuestVirt,
) -> Result<File, &'static str> {
    let reader = Reader { memory, layout };
    let at = reader.place(file.0).ok_or(ASTRAY)?;
    let found = reader.inode(&at).ok_or(ASTRAY)?;
    let (path, is_deleted) = reader.path(at.dentry, at.mount)?;
    // What was closed meanwhile may be another file by now.
    if reader.place(file.0).as_ref() != Some(&at) {
        return Err(ASTRAY);
    }
    Ok(File { path, is_deleted, ..found })
}

/// Reads a file by what its `struct file` said: its process may have closed it meanwhile.
///
/// # Errors
/// One clause: it is another file by now, or its path is too deep.
pub fn read_closed_file(
    memory: &dyn KernelMemory,
    layout: &Layout,
    place: &Place,
) -> Result<File, &'static str> {
    let reader = Reader { memory, layout };
    let found = reader.inode(place).ok_or(ASTRAY)?;
    let (path, is_deleted) = reader.path(place.dentry, place.mount)?;
    // The entries of directories, and with them inodes, are used again.
    if memory.u64_at(place.dentry, layout.dentry_inode) != Some(place.inode) {
        return Err(ASTRAY);
    }
    Ok(File { path, is_deleted, ..found })
}

/// The name of a mapping without a file in the process that has this `mm_struct`: `[vdso]`, `[anon]`. `special_mapping_name`:
/// the kernel's function of that name.
pub fn name_without_file(
    memory: &dyn KernelMemory,
    layout: &Layout,
    mm: GuestVirt,
    mapping: &Mapping,
    special_mapping_name: Option<GuestVirt>,
) -> String {
    let reader = Reader { memory, layout };
    let special = special_mapping_name.and_then(|by| reader.special_name(mapping.vma.0, by));
    let name = special.or_else(|| reader.area_name(mm.0, mapping));
    name.or_else(|| reader.anonymous_name(mapping.vma.0)).unwrap_or_else(|| "[anon]".to_owned())
}

/// Where a file is.
#[derive(Debug, PartialEq, Eq)]
pub struct Place {
    /// `struct inode`
    pub inode: u64,
    /// `struct address_space` of its page cache.
    pub pages: u64,
    /// `struct dentry`
    pub dentry: u64,
    /// `struct vfsmount`
    pub mount: u64,
}

struct Reader<'a> {
    memory: &'a dyn KernelMemory,
    layout: &'a Layout,
}

impl Reader<'_> {
    fn place(&self, file: u64) -> Option<Place> {
        let at = self.layout;
        let words = [at.dentry, at.mount, at.inode, at.pages].map(|offset| (offset, 8));
        let fields = Fields::read(self.memory, file, &[&words[..], &[(at.mode, 4)]].concat())?;
        let mut place = Place {
            inode: fields.u64(at.inode)?,
            pages: fields.u64(at.pages)?,
            dentry: fields.u64(at.dentry)?,
            mount: fields.u64(at.mount)?,
        };
        // Linux 6.8 has the overlay's path apart, and before it in the place of the file's own.
        if let (Some(dentry), Some(mount)) = (at.user_dentry, at.user_mount)
            && fields.u32(at.mode)? & FMODE_BACKING != 0
        {
            place.dentry = self.memory.u64_at(file, dentry)?;
            place.mount = self.memory.u64_at(file, mount)?;
            place.inode = self.memory.u64_at(place.dentry, at.dentry_inode)?;
        }
        Some(place)
    }

    fn inode(&self, place: &Place) -> Option<File> {
        let at = self.layout;
        let offsets = [(at.number, 8), (at.size, 8), (at.super_block, 8), (at.generation, 4)];
        let fields = Fields::read(self.memory, place.inode, &offsets)?;
        let mut device = [0; 4];
        self.memory.bytes_at(fields.u64(at.super_block)?, at.device, &mut device)?;
        Some(File {
            inode: fields.u64(at.number)?,
            generation: fields.u32(at.generation)?,
            device: u32::from_le_bytes(device),
            size: fields.u64(at.size)?,
            pages: GuestVirt(place.pages),
            ..File::default()
        })
    }

    /// The path, and whether the file was deleted.
    fn path(&self, mut dentry: u64, mut mount: u64) -> Result<(String, bool), &'static str> {
        let at = self.layout;
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut bytes = 0;
        let mut is_deleted = false;
        for _ in 0..MAX_DEPTH {
            if self.memory.u64_at(mount, at.mount_root).ok_or(ASTRAY)? == dentry {
                let this = mount.wrapping_sub(at.mount_within);
                let parent = self.memory.u64_at(this, at.mount_parent).ok_or(ASTRAY)?;
                if parent == this {
                    return Ok((join(&names), is_deleted));
                }
                dentry = self.memory.u64_at(this, at.mount_point).ok_or(ASTRAY)?;
                mount = parent.wrapping_add(at.mount_within);
                continue;
            }
            let (name, parent, is_hashed) = self.name(dentry).ok_or(ASTRAY)?;
            is_deleted |= names.is_empty() && !is_hashed && parent != dentry;
            bytes += name.len() + 1;
            if MAX_PATH < bytes {
                return Err("the file's path is too long");
            }
            names.push(name);
            // A file without directory: `/memfd:NAME`, `/SYSV00000000`.
            if parent == dentry {
                return Ok((join(&names), true));
            }
            dentry = parent;
        }
        Err("the file's path is too deep")
    }

    /// A directory entry's name and parent, and whether it can be found in its directory.
    fn name(&self, dentry: u64) -> Option<(Vec<u8>, u64, bool)> {
        let at = self.layout;
        let offsets = [(at.parent, 8), (at.name, 8), (at.name_length, 4), (at.hash, 8)];
        let fields = Fields::read(self.memory, dentry, &offsets)?;
        let length = fields.u32(at.name_length).filter(|length| (1..=MAX_NAME).contains(length))?;
        let mut name = vec![0; length as usize];
        self.memory.bytes_at(fields.u64(at.name)?, 0, &mut name)?;
        (!name.contains(&0)).then_some((name, fields.u64(at.parent)?, fields.u64(at.hash)? != 0))
    }

    /// Of a mapping that the kernel makes by itself.
    fn special_name(&self, vma: u64, by: GuestVirt) -> Option<String> {
        let operations = self.memory.u64_at(vma, self.layout.operations)?;
        if self.memory.u64_at(operations, self.layout.operation_name)? != by.0 {
            return None;
        }
        let special = self.memory.u64_at(vma, self.layout.private)?;
        let text = self.memory.u64_at(special, self.layout.special_name)?;
        self.text(text, 0)
    }

    fn area_name(&self, mm: u64, mapping: &Mapping) -> Option<String> {
        let word = |offset| self.memory.u64_at(mm, offset);
        let (start, end) = (word(self.layout.heap_start)?, word(self.layout.heap_end)?);
        let stack = word(self.layout.stack)?;
        if mapping.start < end && start < mapping.end {
            return Some("[heap]".to_owned());
        }
        (mapping.start <= stack && stack <= mapping.end).then(|| "[stack]".to_owned())
    }

    /// That the process gave (`PR_SET_VMA_ANON_NAME`).
    fn anonymous_name(&self, vma: u64) -> Option<String> {
        let name = self.memory.u64_at(vma, self.layout.anonymous_name?)?;
        Some(format!("[anon:{}]", self.text(name, self.layout.anonymous_text?)?))
    }

    /// A text that ends with a zero byte.
    fn text(&self, base: u64, offset: u64) -> Option<String> {
        let mut text = Vec::new();
        // It may end just before memory that can't be read.
        for at in 0..MAX_ANONYMOUS_NAME as u64 {
            let mut byte = [0];
            self.memory.bytes_at(base, offset + at, &mut byte)?;
            if byte == [0] {
                break;
            }
            text.push(byte[0]);
        }
        (!text.is_empty()).then(|| String::from_utf8_lossy(&text).into_owned())
    }
}

/// A path of its names, the last one first.
fn join(names: &[Vec<u8>]) -> String {
    let parts = names.iter().rev().flat_map(|name| [b"/", &name[..]]);
    String::from_utf8_lossy(&parts.collect::<Vec<_>>().concat()).into_owned()
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::fields::test::Drawn;

    const LAYOUT: Layout = Layout {
        dentry: 0x08,
        mount: 0x00,
        mode: 0x20,
        inode: 0x10,
        pages: 0x18,
        number: 0x00,
        generation: 0x18,
        size: 0x08,
        super_block: 0x10,
        device: 0x10,
        dentry_inode: 0x28,
        parent: 0x00,
        name: 0x10,
        name_length: 0x0c,
        hash: 0x18,
        mount_root: 0x00,
        mount_within: 0x20,
        mount_parent: 0x10,
        mount_point: 0x18,
        operations: 0x40,
        private: 0x48,
        operation_name: 0x50,
        special_name: 0x00,
        heap_start: 0x00,
        heap_end: 0x08,
        stack: 0x10,
        user_dentry: Some(0x30),
        user_mount: Some(0x38),
        anonymous_name: Some(0x50),
        anonymous_text: Some(4),
    };

    fn at(n: u64) -> u64 {
        0xffff_8880_0000_0000 + n * 0x100
    }

    const FILE: GuestVirt = GuestVirt(0xffff_8880_0000_0000);
    const INODE: u64 = 0xffff_8880_0000_0100;

    fn draw_dentry(memory: &Drawn, n: u64, parent: u64, name: &[u8]) {
        memory.write(at(n), at(parent));
        memory.write_bytes(at(n) + 0x0c, &u32::try_from(name.len()).unwrap().to_le_bytes());
        memory.write(at(n) + 0x10, at(1000 + n));
        memory.write(at(n) + 0x18, 1);
        memory.write(at(n) + 0x28, INODE);
        memory.write_bytes(at(1000 + n), name);
    }

    /// Mount `n`, its root, its parent, and the directory that it covers there.
    fn draw_mount(memory: &Drawn, n: u64, root: u64, parent: u64, point: u64) {
        let words = [0, 0, at(parent), at(point), at(root)];
        words.iter().zip((at(n)..).step_by(8)).for_each(|(word, at)| memory.write(at, *word));
    }

    /// `/usr/lib/file`, in a file system that is mounted at `/usr`.
    fn example() -> Drawn {
        let memory = Drawn::default();
        let words = [at(20) + 0x20, at(12), INODE, at(30), 0];
        words.iter().zip((FILE.0..).step_by(8)).for_each(|(word, at)| memory.write(at, *word));
        let words = [1234, 5678, at(2), 9];
        words.iter().zip((INODE..).step_by(8)).for_each(|(word, at)| memory.write(at, *word));
        memory.write(at(2) + 0x10, 0x80_0001);
        draw_dentry(&memory, 10, 10, b"/");
        draw_dentry(&memory, 11, 10, b"lib");
        draw_dentry(&memory, 12, 11, b"file");
        draw_dentry(&memory, 13, 13, b"/");
        draw_dentry(&memory, 14, 13, b"usr");
        draw_mount(&memory, 20, 10, 21, 14);
        draw_mount(&memory, 21, 13, 21, 13);
        memory
    }

    fn path(memory: &Drawn) -> Result<String, &'static str> {
        read_file(memory, &LAYOUT, FILE).map(|file| file.path)
    }

    #[test]
    fn a_file_is_identified_and_its_path_leads_over_mounts() {
        let expected = File {
            inode: 1234,
            generation: 9,
            device: 0x80_0001,
            size: 5678,
            pages: GuestVirt(at(30)),
            path: "/usr/lib/file".into(),
            is_deleted: false,
        };
        let memory = example();
        assert_eq!(read_file(&memory, &LAYOUT, FILE), Ok(expected.clone()));
        memory.write(at(12) + 0x18, 0);
        assert_eq!(read_file(&memory, &LAYOUT, FILE), Ok(File { is_deleted: true, ..expected }));
    }

    #[test]
    fn an_overlays_file_has_the_overlays_path_and_number() {
        let memory = example();
        draw_dentry(&memory, 15, 13, b"merged");
        memory.write(at(15) + 0x28, at(3));
        memory.write(at(3), 77);
        memory.write(at(3) + 0x10, at(2));
        memory.write(FILE.0 + 0x20, FMODE_BACKING.into());
        memory.write(FILE.0 + 0x30, at(15));
        memory.write(FILE.0 + 0x38, at(21) + 0x20);
        let file = read_file(&memory, &LAYOUT, FILE).unwrap();
        assert_eq!((file.inode, &*file.path, file.pages), (77, "/merged", GuestVirt(at(30))));
    }

    #[test]
    fn a_file_in_memory_has_no_directory() {
        let memory = example();
        draw_dentry(&memory, 12, 12, b"memfd:code");
        assert_eq!(path(&memory).unwrap(), "/memfd:code");
    }

    #[test]
    fn endless_paths_and_names_are_refused() {
        let long = vec![b'x'; 255];
        let memory = example();
        // A directory within itself, by way of another.
        draw_dentry(&memory, 11, 12, b"lib");
        assert_eq!(path(&memory), Err("the file's path is too deep"));
        draw_dentry(&memory, 11, 12, &long);
        draw_dentry(&memory, 12, 11, &long);
        assert_eq!(path(&memory), Err("the file's path is too long"));
        for length in [0, 256, u32::MAX] {
            let memory = example();
            memory.write_bytes(at(12) + 0x0c, &length.to_le_bytes());
            assert_eq!(path(&memory), Err(ASTRAY), "{length}");
        }
        for word in [at(12), at(12) + 0x10, at(20) + 0x10, FILE.0, FILE.0 + 8, FILE.0 + 16] {
            for wild in [0, 0x5555_0000_0000, 0xffff_8880_dead_0000] {
                let memory = example();
                memory.write(word, wild);
                assert_eq!(path(&memory), Err(ASTRAY), "{word:x} {wild:x}");
            }
        }
        let memory = example();
        memory.write_bytes(at(1012) + 2, b"\0");
        assert_eq!(path(&memory), Err(ASTRAY), "a name with a zero byte");
    }

    #[test]
    fn mappings_without_a_file_have_their_names_of_maps() {
        const VMA: u64 = 0xffff_8880_0000_4000;
        const MM: GuestVirt = GuestVirt(0xffff_8880_0000_5000);
        let memory = Drawn::default();
        memory.write(VMA, 0);
        let areas = [0x10_0000, 0x12_0000, 0x7ffe_0000_1234];
        areas.iter().zip((MM.0..).step_by(8)).for_each(|(word, at)| memory.write(at, *word));
        let name = |start: u64| {
            let end = start + 0x1000;
            let vma = GuestVirt(VMA);
            let mapping = Mapping { start, end, offset: 0, flags: 4, file: None, vma };
            name_without_file(&memory, &LAYOUT, MM, &mapping, Some(GuestVirt(at(90))))
        };
        assert_eq!(name(0x7000), "[anon]");
        assert_eq!(name(0x11_0000), "[heap]");
        assert_eq!(name(0x7ffe_0000_1000), "[stack]");
        memory.write(VMA + 0x50, at(60));
        memory.write_bytes(at(60) + 4, b"code cache\0");
        assert_eq!(name(0x7000), "[anon:code cache]");
        memory.write_bytes(at(60) + 4, &[b'x'; 200]);
        assert_eq!(name(0x7000), format!("[anon:{}]", "x".repeat(80)));
        // Special mappings.
        memory.write(VMA + 0x40, at(70));
        memory.write(VMA + 0x48, at(71));
        memory.write(at(70) + 0x50, at(90));
        memory.write(at(71), at(72));
        memory.write_bytes(at(72), b"[vdso]\0");
        assert_eq!(name(0x7000), "[vdso]");
        memory.write(at(70) + 0x50, at(91));
        assert_ne!(name(0x7000), "[vdso]");
    }
}
