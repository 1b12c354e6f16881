/* Attacks on a recorder of this host, run as an unprivileged user; each goes on until it is killed.
 *
 *   attack fifos DIR       programs whose paths lead to FIFOs and devices when they are looked up
 *   attack truncate DIR    code in a file that is cut short and restored all the time
 *   attack symbols DIR     code in an ELF file of 1 MB whose symbols' names take 1.5 GB when they are copied
 *   attack notes DIR       code in an ELF file whose note says that its name has 4 GiB
 *   attack forks           20,000 mappings, copied by a fork 100 times a second
 *   attack execs DIR       programs that live for a millisecond, one after the other
 *   attack locks           every lock file of /run
 *   attack perfmap         a list of JIT code of 64 MB, each line over all memory
 *   attack vm [SOCKET silent|endless|lies] ...   a VM without a VMM; `...` is what a VMM's command line would say
 *   attack asleep [SOCKET ...] ...               the same, whose guest halted at once
 *   attack crowd DIR COUNT                       so many of those, each with a silent socket
 *   attack hand ...                              a VM whose vCPU another process holds, too
 *   attack files DIR ...                         a pipe, a folder and a file with the names of KVM's files
 *   attack fuse DIR ...                          a file system with a file of such a name; as root, as fusermount3 is
 *   attack vhost PID                             a process that calls itself like the vhost thread of process PID
 *   attack links DIR NAME TARGET                 whatever is made as DIR/NAME.partial becomes a link to TARGET
 *   attack measure FILE COMMAND...               runs COMMAND; its exit code, peak memory (KiB), CPU time and time (ms) to FILE
 */
#define _GNU_SOURCE
#include <elf.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <linux/fuse.h>
#include <linux/kvm.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CODE_OFFSET 0x1000
#define PAGE 4096

/* A loop of 2^24 turns: mov ecx, 1 << 24; dec ecx; jnz; ret. */
static const uint8_t CODE[] = { 0xb9, 0, 0, 0, 1, 0xff, 0xc9, 0x75, 0xfc, 0xc3 };

static sigjmp_buf retry;

static void on_fault(int signal)
{
	(void)signal;
	siglongjmp(retry, 1);
}

static void child_dies_with_us(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static void write_all(int fd, const void *bytes, size_t n)
{
	for (const char *at = bytes; n;) {
		ssize_t written = write(fd, at, n);

		if (written <= 0)
			return;
		at += written;
		n -= written;
	}
}

static void write_file(const char *path, const void *bytes, size_t n)
{
	int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0755);

	if (fd < 0)
		err(1, "%s", path);
	write_all(fd, bytes, n);
	close(fd);
}

static void copy_self(const char *path)
{
	static char bytes[1 << 20];
	int self = open("/proc/self/exe", O_RDONLY);
	ssize_t n = read(self, bytes, sizeof(bytes));

	if (n < 0)
		err(1, "/proc/self/exe");
	close(self);
	write_file(path, bytes, n);
}

/* Runs the code of a file, for ever. */
static void run_mapped(const char *path)
{
	int fd = open(path, O_RDONLY);
	void *mapped = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, CODE_OFFSET);

	if (fd < 0 || mapped == MAP_FAILED)
		err(1, "%s", path);
	signal(SIGBUS, on_fault);
	signal(SIGSEGV, on_fault);
	signal(SIGILL, on_fault);
	sigsetjmp(retry, 1);
	for (;;)
		((void (*)(void))mapped)();
}

/* An ELF file with `n` symbols of the code, whose names end where the string table does, and a note that lies. */
static size_t elf(uint8_t **file, uint32_t n, uint32_t names)
{
	enum { NOTE = 0x800, STRINGS = 0x2000 };
	uint64_t symbols = STRINGS + names + 16, sections = symbols + (n + 1) * sizeof(Elf64_Sym);
	size_t size = sections + 5 * sizeof(Elf64_Shdr);
	uint8_t *bytes = calloc(1, size);
	Elf64_Ehdr *head = (Elf64_Ehdr *)bytes;
	Elf64_Phdr *load = (Elf64_Phdr *)(head + 1), *note = load + 1;
	Elf64_Shdr *section = (Elf64_Shdr *)(bytes + sections);
	Elf64_Sym *symbol = (Elf64_Sym *)(bytes + symbols);
	Elf64_Nhdr *lie = (Elf64_Nhdr *)(bytes + NOTE);

	if (!bytes)
		err(1, "calloc");
	memcpy(head->e_ident, ELFMAG "\2\1\1", 7);
	head->e_type = ET_DYN;
	head->e_machine = EM_X86_64;
	head->e_version = 1;
	head->e_phoff = sizeof(*head);
	head->e_shoff = sections;
	head->e_ehsize = sizeof(*head);
	head->e_phentsize = sizeof(*load);
	head->e_phnum = 2;
	head->e_shentsize = sizeof(*section);
	head->e_shnum = 5;
	*load = (Elf64_Phdr){ .p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_offset = 0, .p_filesz = STRINGS, .p_memsz = STRINGS };
	*note = (Elf64_Phdr){ .p_type = PT_NOTE, .p_offset = NOTE, .p_filesz = 64, .p_memsz = 64 };
	*lie = (Elf64_Nhdr){ .n_namesz = names ? 4 : UINT32_MAX, .n_descsz = 20, .n_type = NT_GNU_BUILD_ID };
	memcpy(lie + 1, "GNU", 4);
	memcpy(bytes + CODE_OFFSET, CODE, sizeof(CODE));
	memset(bytes + STRINGS, 'n', names);
	for (uint32_t i = 1; i <= n; i++)
		symbol[i] = (Elf64_Sym){ .st_name = names ? i % names : 0,
					 .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
					 .st_shndx = 1,
					 .st_value = CODE_OFFSET,
					 .st_size = PAGE };
	section[1] = (Elf64_Shdr){ .sh_type = SHT_PROGBITS, .sh_flags = SHF_ALLOC | SHF_EXECINSTR, .sh_addr = CODE_OFFSET,
				   .sh_offset = CODE_OFFSET, .sh_size = PAGE };
	section[2] = (Elf64_Shdr){ .sh_type = SHT_SYMTAB, .sh_offset = symbols, .sh_size = (n + 1) * sizeof(*symbol),
				   .sh_link = 3, .sh_info = 1, .sh_entsize = sizeof(*symbol) };
	section[3] = (Elf64_Shdr){ .sh_type = SHT_STRTAB, .sh_offset = STRINGS, .sh_size = names + 1 };
	section[4] = (Elf64_Shdr){ .sh_type = SHT_NOTE, .sh_offset = NOTE, .sh_size = 64 };
	*file = bytes;
	return size;
}

static void run_elf(const char *folder, const char *name, uint32_t symbols, uint32_t names)
{
	char path[512];
	uint8_t *file;
	size_t size = elf(&file, symbols, names);

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	write_file(path, file, size);
	run_mapped(path);
}

static void truncate_and_restore(const char *folder)
{
	char path[512];
	uint8_t *file;
	size_t size = elf(&file, 1000, 1000);

	snprintf(path, sizeof(path), "%s/cut", folder);
	write_file(path, file, size);
	if (fork() == 0) {
		child_dies_with_us();
		run_mapped(path);
	}
	for (;;) {
		truncate(path, 0);
		usleep(300);
		write_file(path, file, size);
		usleep(300);
	}
}

/* `DIR/here/N` are programs that run. The folder is exchanged all the time with one in which they are FIFOs and links. */
static void exchange_with_fifos(const char *folder)
{
	enum { PROGRAMS = 16 };
	static const char *const devices[] = { "/dev/zero", "/dev/watchdog", "/dev/ttyS0" };
	char here[400], there[400], path[512];

	snprintf(here, sizeof(here), "%s/here", folder);
	snprintf(there, sizeof(there), "%s/there", folder);
	mkdir(here, 0755);
	mkdir(there, 0755);
	for (int i = 0; i < PROGRAMS; i++) {
		snprintf(path, sizeof(path), "%s/%d", there, i);
		if (i % 2)
			mkfifo(path, 0644);
		else
			symlink(devices[i / 2 % 3], path);
		snprintf(path, sizeof(path), "%s/%d", here, i);
		copy_self(path);
		if (fork() == 0) {
			child_dies_with_us();
			execl(path, "attack", "spin", NULL);
			_exit(1);
		}
	}
	for (;;) {
		renameat2(AT_FDCWD, here, AT_FDCWD, there, RENAME_EXCHANGE);
		usleep(1000);
	}
}

static void fork_mappings(void)
{
	int self = open("/proc/self/exe", O_RDONLY);

	for (int i = 0; i < 20000; i++)
		/* With a gap, so that they do not merge. */
		mmap((void *)(0x100000000000 + 2L * i * PAGE), PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, self, 0);
	for (;;) {
		pid_t child = fork();

		if (child == 0)
			_exit(0);
		waitpid(child, NULL, 0);
		usleep(10000);
	}
}

static void exec_again_and_again(const char *folder)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/brief", folder);
	copy_self(path);
	for (;;) {
		pid_t child = fork();

		if (child == 0) {
			execl(path, "\033[31mattack", "exit", NULL);
			_exit(1);
		}
		waitpid(child, NULL, 0);
	}
}

static void lock_all(void)
{
	glob_t found;

	glob("/run/*vmscope*", 0, NULL, &found);
	glob("/run/vmscope/*", GLOB_APPEND, NULL, &found);
	for (size_t i = 0; i < found.gl_pathc; i++)
		flock(open(found.gl_pathv[i], O_RDONLY), LOCK_EX | LOCK_NB);
	pause();
}

static void write_perf_map(void)
{
	static const char line[] = "0 ffffffffffffffff over_all_memory\n";
	char path[64];
	FILE *map;
	void *code = mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	snprintf(path, sizeof(path), "/tmp/perf-%d.map", getpid());
	map = fopen(path, "w");
	if (!map || code == MAP_FAILED)
		err(1, "%s", path);
	for (size_t n = 0; n < 64 << 20; n += sizeof(line) - 1)
		fputs(line, map);
	fclose(map);
	memcpy(code, CODE, sizeof(CODE));
	for (;;)
		((void (*)(void))code)();
}

/* The vCPU of a VM that runs two bytes of code in real mode. */
static int make_vcpu(const char *code)
{
	int kvm = open("/dev/kvm", O_RDWR), vm = ioctl(kvm, KVM_CREATE_VM, 0), vcpu;
	uint8_t *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct kvm_userspace_memory_region region = { .memory_size = PAGE, .userspace_addr = (uintptr_t)memory };
	struct kvm_sregs special;
	struct kvm_regs general = { .rflags = 2 };

	if (vm < 0)
		err(1, "/dev/kvm");
	memcpy(memory, code, 2);
	ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region);
	vcpu = ioctl(vm, KVM_CREATE_VCPU, 0);
	mmap(NULL, ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0), PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
	ioctl(vcpu, KVM_GET_SREGS, &special);
	special.cs.base = special.cs.selector = 0;
	ioctl(vcpu, KVM_SET_SREGS, &special);
	ioctl(vcpu, KVM_SET_REGS, &general);
	return vcpu;
}

/* jmp to itself */
static void *run_busy(void *unused)
{
	for (int vcpu = make_vcpu("\xeb\xfe");;)
		ioctl(vcpu, KVM_RUN, 0);
	return unused;
}

/* hlt; jmp to itself. A halt ends KVM_RUN. */
static void *run_asleep(void *unused)
{
	ioctl(make_vcpu("\xf4\xeb"), KVM_RUN, 0);
	pause();
	return unused;
}

static void answer(int connection, const char *how)
{
	char requested[4096], bytes[4096] = { 0 };

	while (read(connection, requested, sizeof(requested)) > 0) {
		if (!strcmp(how, "silent"))
			pause();
		if (!strcmp(how, "lies")) {
			/* The head of the requested frame, 16 MiB to come, of ones. */
			memcpy(bytes, requested, 16);
			memcpy(bytes + 16, &(uint32_t){ 16 << 20 }, 4);
			memset(bytes + 20, 1, sizeof(bytes) - 20);
		}
		for (;;)
			if (write(connection, bytes, sizeof(bytes)) <= 0)
				break;
	}
	close(connection);
}

static void serve(const char *path, const char *how)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int listening = socket(AF_UNIX, SOCK_STREAM, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	unlink(path);
	if (bind(listening, (struct sockaddr *)&address, sizeof(address)) || listen(listening, 5))
		err(1, "%s", path);
	chmod(path, 0777);
	signal(SIGPIPE, SIG_IGN);
	for (;;)
		answer(accept(listening, NULL, NULL), how);
}

static void vm(void *(*run)(void *), char **arguments)
{
	pthread_t thread;

	pthread_create(&thread, NULL, run, NULL);
	if (arguments[0] && arguments[0][0] == '/')
		serve(arguments[0], arguments[1]);
	pause();
}

static void crowd(const char *folder, int count)
{
	char place[512], name[32], chardev[600];

	for (int n = 0; n < count; n++) {
		snprintf(place, sizeof(place), "%s/%d", folder, n);
		snprintf(name, sizeof(name), "crowd%d", n);
		snprintf(chardev, sizeof(chardev), "socket,id=c,path=%s,server=on", place);
		if (fork() == 0) {
			child_dies_with_us();
			execl("/proc/self/exe", "attack", "asleep", place, "silent", "-name", name, "-chardev", chardev, "-device",
			      "virtserialport,chardev=c,name=org.vmscope.guest.0", NULL);
			_exit(1);
		}
	}
	pause();
}

static void hand_over(void)
{
	/* Not closed by exec. The other one's command line is of a VM, too. */
	int vcpu = dup(make_vcpu("\xeb\xfe"));

	if (fork() == 0) {
		child_dies_with_us();
		execl("/proc/self/exe", "attack", "hold", "-name", "innocent", NULL);
		_exit(1);
	}
	for (;;)
		ioctl(vcpu, KVM_RUN, 0);
}

static void hold_files(const char *folder)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/kvm-vcpu:0", folder);
	mkfifo(path, 0644);
	open(path, O_RDWR);
	snprintf(path, sizeof(path), "%s/kvm-vcpu:1", folder);
	mkdir(path, 0755);
	open(path, O_RDONLY);
	snprintf(path, sizeof(path), "%s/kvm-vcpu:2", folder);
	open(path, O_CREAT | O_RDWR, 0644);
	snprintf(path, sizeof(path), "%s/kvm-vm", folder);
	mkfifo(path, 0644);
	open(path, O_RDWR);
	pause();
}

static void reply(int fuse, const struct fuse_in_header *requested, const void *answer, size_t n, int error)
{
	struct fuse_out_header head = { .len = sizeof(head) + n, .error = error, .unique = requested->unique };
	struct iovec parts[] = { { &head, sizeof(head) }, { (void *)answer, n } };

	writev(fuse, parts, 2);
}

static void serve_fuse(int fuse)
{
	static char bytes[1 << 17];
	const struct fuse_in_header *requested = (void *)bytes;
	struct fuse_init_out init = { .major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = PAGE };
	struct fuse_attr folder = { .ino = 1, .mode = S_IFDIR | 0755, .nlink = 2 };
	struct fuse_attr file = { .ino = 2, .mode = S_IFREG | 0644, .nlink = 1 };
	struct fuse_entry_out entry = { .nodeid = 2, .entry_valid = 3600, .attr_valid = 3600, .attr = file };
	struct fuse_attr_out attributes = { .attr_valid = 3600 };
	struct fuse_open_out opened = { .fh = 1 };

	while (read(fuse, bytes, sizeof(bytes)) > 0) {
		attributes.attr = requested->nodeid == 1 ? folder : file;
		if (requested->opcode == FUSE_INIT)
			reply(fuse, requested, &init, sizeof(init), 0);
		else if (requested->opcode == FUSE_LOOKUP)
			reply(fuse, requested, &entry, sizeof(entry), 0);
		else if (requested->opcode == FUSE_GETATTR)
			reply(fuse, requested, &attributes, sizeof(attributes), 0);
		else if (requested->opcode == FUSE_OPEN)
			reply(fuse, requested, &opened, sizeof(opened), 0);
		else if (requested->opcode != FUSE_FORGET && requested->opcode != FUSE_BATCH_FORGET)
			reply(fuse, requested, NULL, 0, -ENOSYS);
	}
}

static void hold_fuse_file(const char *folder)
{
	enum { UNPRIVILEGED = 65534 };
	char text[512];
	int fuse = open("/dev/fuse", O_RDWR);

	snprintf(text, sizeof(text), "fd=%d,rootmode=40000,user_id=%d,group_id=%d", fuse, UNPRIVILEGED, UNPRIVILEGED);
	if (fuse < 0 || mount("attack", folder, "fuse", MS_NOSUID | MS_NODEV, text))
		err(1, "fuse");
	if (setgid(UNPRIVILEGED) || setuid(UNPRIVILEGED))
		err(1, "setuid");
	if (fork() == 0) {
		child_dies_with_us();
		serve_fuse(fuse);
		_exit(0);
	}
	snprintf(text, sizeof(text), "%s/kvm-vcpu:0", folder);
	if (open(text, O_RDONLY) < 0)
		err(1, "%s", text);
	pause();
}

static void spin_as_vhost(const char *pid)
{
	char name[16];

	snprintf(name, sizeof(name), "vhost-%s", pid);
	prctl(PR_SET_NAME, name);
	for (volatile long turns = 0;; turns++)
		;
}

static void replace_by_link(const char *folder, const char *name, const char *target)
{
	char partial[512], moved[512];

	snprintf(partial, sizeof(partial), "%s/%s.partial", folder, name);
	snprintf(moved, sizeof(moved), "%s/moved", folder);
	for (;;) {
		if (rename(partial, moved) == 0)
			symlink(target, partial);
		usleep(100);
	}
}

static long milliseconds(struct timespec since)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (now.tv_sec - since.tv_sec) * 1000 + (now.tv_nsec - since.tv_nsec) / 1000000;
}

static int measure(const char *file, char **command)
{
	FILE *out = fopen(file, "w");
	struct timespec begun;
	struct rusage used;
	int status;
	pid_t child;

	clock_gettime(CLOCK_MONOTONIC, &begun);
	child = fork();
	if (child == 0) {
		execvp(command[0], command);
		_exit(127);
	}
	waitpid(child, &status, 0);
	getrusage(RUSAGE_CHILDREN, &used);
	fprintf(out, "%d %ld %ld %ld\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), used.ru_maxrss,
		(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000 + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000,
		milliseconds(begun));
	fclose(out);
	return 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "", *folder = argc > 2 ? argv[2] : ".";

	if (!strcmp(what, "measure"))
		return measure(argv[2], argv + 3);
	if (!strcmp(what, "exit"))
		return 0;
	for (volatile long turns = 0; !strcmp(what, "spin"); turns++)
		;
	if (!strcmp(what, "fifos"))
		exchange_with_fifos(folder);
	if (!strcmp(what, "truncate"))
		truncate_and_restore(folder);
	if (!strcmp(what, "symbols"))
		run_elf(folder, "symbols", 30000, 100000);
	if (!strcmp(what, "notes"))
		run_elf(folder, "notes", 0, 0);
	if (!strcmp(what, "forks"))
		fork_mappings();
	if (!strcmp(what, "execs"))
		exec_again_and_again(folder);
	if (!strcmp(what, "locks"))
		lock_all();
	if (!strcmp(what, "perfmap"))
		write_perf_map();
	if (!strcmp(what, "vm"))
		vm(run_busy, argv + 2);
	if (!strcmp(what, "asleep"))
		vm(run_asleep, argv + 2);
	if (!strcmp(what, "crowd"))
		crowd(folder, atoi(argv[3]));
	if (!strcmp(what, "hand"))
		hand_over();
	if (!strcmp(what, "hold"))
		pause();
	if (!strcmp(what, "files"))
		hold_files(folder);
	if (!strcmp(what, "fuse"))
		hold_fuse_file(folder);
	if (!strcmp(what, "vhost"))
		spin_as_vhost(folder);
	if (!strcmp(what, "links"))
		replace_by_link(folder, argv[3], argv[4]);
	errx(2, "no such attack: %s", what);
}
