/* SPDX-License-Identifier: GPL-2.0 */
/* Which file a system call, a cached page, a lock or a request to a disk is of. */
#ifndef VMSCOPE_TRACE_FILES_BPF_H
#define VMSCOPE_TRACE_FILES_BPF_H

#include "trace_filter.bpf.h"
#include <bpf/bpf_tracing.h>

/* Files that events name. Rows are taken once, and never given to another file. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* user space: a power of two */
	__type(key, __u32);
	__type(value, struct trace_file);
} files SEC(".maps");

/* Rows that a file may be in, and names of its path at most. */
#define FILE_PLACES 8
#define PATH_DEPTH 24

struct file_key {
	__u64 inode;
	__u32 device;
	__u32 generation;
	__u64 hash; /* not 0 */
	__u32 mode;
};

#define S_IFMT 0170000
#define S_IFREG 0100000
#define S_IFDIR 0040000
#define S_IFBLK 0060000
#define S_IFSOCK 0140000

static __always_inline void file_key_of(struct file_key *key, struct inode___files *inode)
{
	key->mode = BPF_CORE_READ(inode, i_mode);
	key->inode = key->generation = 0;
	/* A disk has a node in /dev, and another inode that holds its cached blocks. */
	if ((key->mode & S_IFMT) == S_IFBLK) {
		key->device = BPF_CORE_READ(inode, i_rdev);
	} else {
		key->inode = BPF_CORE_READ(inode, i_ino);
		key->device = BPF_CORE_READ(inode, i_sb, s_dev);
		key->generation = BPF_CORE_READ(inode, i_generation);
	}
	key->hash = (key->inode ^ (__u64)key->device << 40 ^ (__u64)key->generation << 32) * 0x9e3779b97f4a7c15ULL;
	key->hash = (key->hash ^ key->hash >> 29) | 1;
}

/* An inode that no one has open may have a name all the same. */
static __always_inline struct dentry___files *dentry_of(struct inode___files *inode)
{
	struct hlist_node *first = BPF_CORE_READ(inode, i_dentry.first);

	return first ? (void *)first - bpf_core_field_offset(struct dentry___files, d_u) : NULL;
}

/* The names from the file up to its file system's root, each with a final 0. The root has none. */
static __always_inline void store_path(struct trace_file *row, struct dentry___files *dentry)
{
	__u32 at = 0;

	for (int i = 0; i < PATH_DEPTH; i++) {
		struct dentry___files *parent = BPF_CORE_READ(dentry, d_parent);
		long length;

		if (parent == dentry) {
			row->is_whole = 1;
			break;
		}
		if (!parent || at > TRACE_PATH_BYTES - TRACE_NAME_BYTES)
			break;
		length = bpf_probe_read_kernel_str(row->path + at, TRACE_NAME_BYTES,
						   BPF_CORE_READ(dentry, d_name.name));
		if (length <= 0)
			break;
		at += length;
		dentry = parent;
	}
	row->path_bytes = at;
}

/* The file's name may be seen first when it is opened: others use it by its inode. */
static __always_inline void name_file(struct trace_file *row, struct inode___files *inode, struct dentry___files *dentry)
{
	if (row->is_named || (row->mode & S_IFMT) == S_IFBLK)
		return;
	if (!dentry)
		dentry = dentry_of(inode);
	if (dentry && !__sync_val_compare_and_swap(&row->is_named, 0, 1))
		store_path(row, dentry);
}

/* The number by which events name a file: its row and one; 0: there is no room. Two CPUs that store a file at once may
 * give it two rows. */
static __always_inline __u32 file_number(struct inode___files *inode, struct dentry___files *dentry)
{
	struct file_key key;

	file_key_of(&key, inode);
	for (__u32 i = 0; i < FILE_PLACES; i++) {
		__u32 index = ((key.hash >> 32) + i) & config.files_mask;
		struct trace_file *row = bpf_map_lookup_elem(&files, &index);

		if (!row)
			return 0;
		if (row->inode == key.inode && row->device == key.device && row->generation == key.generation &&
		    row->hash == key.hash) {
			name_file(row, inode, dentry);
			return index + 1;
		}
		if (row->hash || __sync_val_compare_and_swap(&row->hash, 0, key.hash))
			continue;
		row->inode = key.inode;
		row->device = key.device;
		row->generation = key.generation;
		row->mode = key.mode;
		row->links = BPF_CORE_READ(inode, i_nlink);
		name_file(row, inode, dentry);
		return index + 1;
	}
	return 0;
}

/* System calls. */

#define AF_INET 2
#define AF_INET6 10

static __always_inline bool is_on_disk(__u32 mode)
{
	return (mode & S_IFMT) == S_IFREG || (mode & S_IFMT) == S_IFDIR || (mode & S_IFMT) == S_IFBLK;
}

/* Whether the call reads or writes a file or a socket, and returns how many bytes it did. */
static __always_inline bool moves_bytes(long number)
{
	switch (number) {
	case 0: /* read */
	case 1: /* write */
	case 17: /* pread64 */
	case 18: /* pwrite64 */
	case 19: /* readv */
	case 20: /* writev */
	case 44: /* sendto */
	case 45: /* recvfrom */
	case 46: /* sendmsg */
	case 47: /* recvmsg */
	case SYSCALL_SENDFILE:
	case 295: /* preadv */
	case 296: /* pwritev */
	case SYSCALL_COPY_FILE_RANGE:
	case 327: /* preadv2 */
	case 328: /* pwritev2 */
		return true;
	}
	return false;
}

/* Whether the call's first argument is an open file; that of sendfile is the second, as it reads that one. */
static __always_inline bool takes_file(long number)
{
	switch (number) {
	case 3: /* close */
	case 5: /* fstat */
	case 8: /* lseek */
	case 73: /* flock */
	case 74: /* fsync */
	case 75: /* fdatasync */
	case 77: /* ftruncate */
	case 78: /* getdents */
	case 187: /* readahead */
	case 217: /* getdents64 */
	case 221: /* fadvise64 */
	case 277: /* sync_file_range */
	case 285: /* fallocate */
	case 306: /* syncfs */
		return true;
	}
	return moves_bytes(number);
}

static __always_inline bool opens_file(long number)
{
	return number == 2 || number == 85 || number == 257 || number == 437; /* open, creat, openat, openat2 */
}

static __always_inline bool is_of_network(struct file *file)
{
	struct socket *socket = BPF_CORE_READ(file, private_data);
	__u16 family = BPF_CORE_READ(socket, sk, __sk_common.skc_family);

	return family == AF_INET || family == AF_INET6;
}

/* The running task's system call is of this open file or socket. */
static __always_inline void emit_call_file(struct task_struct *task, __u64 fd)
{
	struct fdtable *table = BPF_CORE_READ((struct task_struct___files *)task, files, fdt);
	struct file *file = NULL;
	struct inode___files *inode;
	struct file **all;
	__u32 mode;

	if (!table || fd >= BPF_CORE_READ(table, max_fds))
		return;
	all = BPF_CORE_READ(table, fd);
	if (bpf_probe_read_kernel(&file, sizeof(file), all + fd) || !file)
		return;
	inode = (void *)BPF_CORE_READ(file, f_inode);
	if (!inode)
		return;
	mode = BPF_CORE_READ(inode, i_mode);
	if (is_on_disk(mode))
		emit(TRACE_CALL_FILE, halves(file_number(inode, (void *)BPF_CORE_READ(file, f_path.dentry)), task->pid));
	else if ((mode & S_IFMT) == S_IFSOCK)
		emit(TRACE_CALL_SOCKET, halves(is_of_network(file), task->pid));
}

/* Before the call's end, which ends what is known of its file. */
static __always_inline void emit_call_result(struct task_struct *task, long number, long result)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(task);

	if (opens_file(number) && result >= 0)
		emit_call_file(task, result);
	if (!moves_bytes(number) || result <= 0)
		return;
	emit(TRACE_CALL_BYTES, halves(result, task->pid));
	if (number != SYSCALL_SENDFILE && number != SYSCALL_COPY_FILE_RANGE)
		return;
	/* Where to. */
	emit_call_file(task, number == SYSCALL_SENDFILE ? BPF_CORE_READ(regs, di) : BPF_CORE_READ(regs, dx));
	emit(TRACE_CALL_BYTES, halves(result, task->pid));
}

/* The page cache. */

static __always_inline __u32 pages_of(struct folio *folio)
{
	unsigned long flags = 0; /* the first word of each page */
	struct folio___6_15 *newer = (void *)folio;

	bpf_probe_read_kernel(&flags, sizeof(flags), folio);
	if (!(flags >> bpf_core_enum_value(enum pageflags, PG_head) & 1))
		return 1;
	if (bpf_core_field_exists(newer->_nr_pages))
		return BPF_CORE_READ(newer, _nr_pages);
	return BPF_CORE_READ(folio, _folio_nr_pages);
}

SEC("tp_btf/mm_filemap_add_to_page_cache")
int BPF_PROG(mm_filemap_add_to_page_cache, struct folio *folio)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct inode___files *inode;
	__u32 pages;

	if (!config.files_mask || is_passed_over(task))
		return 0;
	inode = (void *)BPF_CORE_READ(folio, mapping, host);
	if (!inode)
		return 0;
	pages = pages_of(folio);
	if (pages > TRACE_MAX_PAGES)
		pages = TRACE_MAX_PAGES;
	return emit(TRACE_PAGE_ADDED, halves(pages << TRACE_FILE_BITS | file_number(inode, NULL), task->pid));
}

/* Locks. */

/* The file whose inode has this at `offset`, if it is one: its own pages' owner is itself. */
static __always_inline struct inode___files *inode_around(void *lock, __u32 offset)
{
	struct inode___files *inode = lock - offset;
	void *host = NULL;

	if (bpf_core_read(&host, sizeof(host), &inode->i_data.host))
		return NULL;
	return host == (void *)inode ? inode : NULL;
}

/* After TRACE_LOCK_BEGIN: the semaphore is a file's, for its content or for what its pages hold. */
static __always_inline void emit_lock_file(struct task_struct *task, void *lock)
{
	struct inode___files *inode = inode_around(lock, bpf_core_field_offset(struct inode___files, i_rwsem));

	if (!inode)
		inode = inode_around(lock, bpf_core_field_offset(struct inode___files, i_data) +
						   bpf_core_field_offset(struct address_space, invalidate_lock));
	if (inode)
		emit(TRACE_LOCK_FILE, halves(file_number(inode, NULL), task->pid));
}

/* Requests. */

#define REQ_META (1 << 12)
#define PAGE_MAPPING_FLAGS 3UL /* not a file's: anonymous memory, or movable */

static __always_inline struct inode___files *inode_of_page(struct page *page)
{
	unsigned long head = BPF_CORE_READ(page, compound_head);
	struct address_space *mapping;

	if (head & 1)
		page = (void *)(head - 1);
	mapping = BPF_CORE_READ(page, mapping);
	if (!mapping || (unsigned long)mapping & PAGE_MAPPING_FLAGS)
		return NULL;
	return (void *)BPF_CORE_READ(mapping, host);
}

/* After TRACE_BLOCK_ISSUE: whose pages its first one is. */
static __always_inline void emit_request_file(struct request *request)
{
	__u32 content = TRACE_CONTENT_MEMORY, number = 0;
	struct page *page = BPF_CORE_READ(request, bio, bi_io_vec, bv_page);
	struct inode___files *inode;

	if (!page)
		return;
	inode = inode_of_page(page);
	if (request->cmd_flags & REQ_META) {
		content = TRACE_CONTENT_METADATA;
	} else if (inode && (BPF_CORE_READ(inode, i_mode) & S_IFMT) == S_IFBLK) {
		content = TRACE_CONTENT_DISK;
	} else if (inode) {
		content = TRACE_CONTENT_FILE;
		number = file_number(inode, NULL);
	}
	emit_more(TRACE_BLOCK_FILE, (__u64)request, content, number);
}

#endif
