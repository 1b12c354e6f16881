/* Gives a guest that was cloned an identity of its own: waits at a port for one line from its host, as
 *   NAME MAC ADDRESS/PREFIX UNIX_NS SEED
 * and sets host name, machine id, the clock, the first network device's addresses, and stirs the 32 bytes of SEED (hexadecimal)
 * into the kernel's random numbers. Answers "ok", or what failed. May be PID 1; sleeps all the time.
 * Usage: identity */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PORT "/dev/virtio-ports/org.vmscope.identity.0"
#define SEED_BYTES 32

struct identity {
	char name[65];
	unsigned char mac[6];
	struct in_addr address;
	int prefix;
	long long unix_ns;
	unsigned char seed[SEED_BYTES];
};

/* The first Ethernet device: Debian's kernels call it eth0 or ens2. */
static int find_device(char *name)
{
	DIR *folder = opendir("/sys/class/net");
	struct dirent *entry;
	int found = 0;

	while (folder && !found && (entry = readdir(folder)))
		if (entry->d_name[0] == 'e') {
			snprintf(name, IFNAMSIZ, "%.*s", IFNAMSIZ - 1, entry->d_name);
			found = 1;
		}
	if (folder)
		closedir(folder);
	return found;
}

static int set_flags(int fd, struct ifreq *request, int up)
{
	if (ioctl(fd, SIOCGIFFLAGS, request))
		return -1;
	request->ifr_flags = (short)(up ? request->ifr_flags | IFF_UP : request->ifr_flags & ~IFF_UP);
	return ioctl(fd, SIOCSIFFLAGS, request);
}

static void put_address(struct ifreq *request, in_addr_t address)
{
	struct sockaddr_in *to = (struct sockaddr_in *)&request->ifr_addr;

	memset(to, 0, sizeof(*to));
	to->sin_family = AF_INET;
	to->sin_addr.s_addr = address;
}

static const char *set_network(const struct identity *identity)
{
	in_addr_t mask = htonl(identity->prefix ? ~0u << (32 - identity->prefix) : 0);
	struct ifreq request = { 0 };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	const char *failed = NULL;

	if (!find_device(request.ifr_name))
		failed = "no network device";
	/* The MAC address can't be changed while the device is up. */
	else if (set_flags(fd, &request, 0))
		failed = "device down";
	else {
		request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
		memcpy(request.ifr_hwaddr.sa_data, identity->mac, sizeof(identity->mac));
		if (ioctl(fd, SIOCSIFHWADDR, &request))
			failed = "MAC address";
	}
	if (!failed) {
		put_address(&request, identity->address.s_addr);
		if (ioctl(fd, SIOCSIFADDR, &request))
			failed = "address";
		put_address(&request, mask);
		if (!failed && ioctl(fd, SIOCSIFNETMASK, &request))
			failed = "netmask";
		if (!failed && set_flags(fd, &request, 1))
			failed = "device up";
	}
	close(fd);
	return failed;
}

static const char *set_random(const struct identity *identity)
{
	struct {
		struct rand_pool_info info;
		unsigned char bytes[SEED_BYTES];
	} pool = { .info = { .entropy_count = 8 * SEED_BYTES, .buf_size = SEED_BYTES } };
	int fd = open("/dev/urandom", O_RDWR);
	const char *failed = NULL;

	memcpy(pool.info.buf, identity->seed, SEED_BYTES);
	if (ioctl(fd, RNDADDENTROPY, &pool.info) || ioctl(fd, RNDRESEEDCRNG))
		failed = "random seed";
	close(fd);
	return failed;
}

static const char *set_machine_id(const struct identity *identity)
{
	int fd = open("/etc/machine-id", O_WRONLY | O_CREAT | O_TRUNC, 0444);
	char text[34];

	for (int i = 0; i < 16; i++)
		snprintf(text + 2 * i, 3, "%02x", identity->seed[i]);
	text[32] = '\n';
	if (fd < 0 || write(fd, text, 33) != 33)
		return "machine id";
	close(fd);
	return NULL;
}

static const char *set_clock_and_name(const struct identity *identity)
{
	struct timespec now = { .tv_sec = (time_t)(identity->unix_ns / 1000000000), .tv_nsec = (long)(identity->unix_ns % 1000000000) };

	if (clock_settime(CLOCK_REALTIME, &now))
		return "clock";
	return sethostname(identity->name, strlen(identity->name)) ? "host name" : NULL;
}

static int parse(const char *line, struct identity *identity)
{
	char address[16], seed[2 * SEED_BYTES + 1];
	unsigned int mac[6];

	if (sscanf(line, "%64s %2x:%2x:%2x:%2x:%2x:%2x %15[0-9.]/%d %lld %64[0-9a-f]", identity->name, &mac[0], &mac[1], &mac[2],
		   &mac[3], &mac[4], &mac[5], address, &identity->prefix, &identity->unix_ns, seed) != 11)
		return 0;
	for (int i = 0; i < 6; i++)
		identity->mac[i] = (unsigned char)mac[i];
	for (int i = 0; i < SEED_BYTES; i++)
		if (sscanf(seed + 2 * i, "%2hhx", &identity->seed[i]) != 1)
			return 0;
	return inet_aton(address, &identity->address) && 0 <= identity->prefix && identity->prefix <= 32;
}

static const char *become(const char *line)
{
	struct identity identity = { 0 };
	const char *failed;

	if (!parse(line, &identity))
		return "the line is not understood";
	failed = set_clock_and_name(&identity);
	if (!failed)
		failed = set_machine_id(&identity);
	if (!failed)
		failed = set_random(&identity);
	return failed ? failed : set_network(&identity);
}

static void answer(int fd, const char *line)
{
	char text[128];
	const char *failed;
	int n;

	errno = 0;
	failed = become(line);
	if (failed)
		n = snprintf(text, sizeof(text), "failed: %s: %s\n", failed, strerror(errno));
	else
		n = snprintf(text, sizeof(text), "ok\n");
	if (write(fd, text, (size_t)n) != n)
		perror("identity: answer");
}

int main(void)
{
	char line[512];
	size_t length = 0;
	int fd = open(PORT, O_RDWR);

	/* Children of PID 1 leave nothing behind. */
	signal(SIGCHLD, SIG_IGN);
	if (fd < 0) {
		perror("identity: " PORT);
		return 1;
	}
	for (;;) {
		ssize_t n = read(fd, line + length, sizeof(line) - 1 - length);

		if (n <= 0) {
			/* No host is at the other end, as while a clone starts. */
			usleep(100000);
			continue;
		}
		length += (size_t)n;
		line[length] = 0;
		if (line[length - 1] == '\n' || length + 1 == sizeof(line)) {
			answer(fd, line);
			length = 0;
		}
	}
}
