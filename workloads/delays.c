/* The kernel's own account of delays (taskstats), as a witness for traces: prints a line for each task that ends,
 *   TID NAME CPU_DELAY_NS BLOCK_IO_DELAY_NS CPU_NS
 * until it is ended. Needs root, and kernel.task_delayacct = 1 when the tasks begin.
 * Usage: delays [CPUS], CPUS as "0-1" */
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <linux/taskstats.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ATTRIBUTE(message) ((struct nlattr *)((char *)NLMSG_DATA(message) + GENL_HDRLEN))
#define INSIDE(attribute) ((struct nlattr *)((char *)(attribute) + NLA_HDRLEN))
#define AFTER(attribute) ((struct nlattr *)((char *)(attribute) + NLA_ALIGN((attribute)->nla_len)))

union packet {
	struct nlmsghdr header;
	char bytes[16384];
};

static int ask(int fd, int family, int command, int attribute, const char *text)
{
	union packet packet = { 0 };
	struct genlmsghdr *generic = NLMSG_DATA(&packet.header);
	struct nlattr *requested = ATTRIBUTE(&packet.header);

	generic->cmd = command;
	generic->version = 1;
	requested->nla_type = attribute;
	requested->nla_len = NLA_HDRLEN + strlen(text) + 1;
	strcpy((char *)INSIDE(requested), text);
	packet.header.nlmsg_type = family;
	packet.header.nlmsg_flags = NLM_F_REQUEST;
	packet.header.nlmsg_len = NLMSG_LENGTH(GENL_HDRLEN) + NLA_ALIGN(requested->nla_len);
	return send(fd, &packet, packet.header.nlmsg_len, 0);
}

static int hear(int fd, union packet *packet)
{
	int n = recv(fd, packet, sizeof(*packet), 0);

	return 0 < n && NLMSG_OK(&packet->header, (unsigned)n) && packet->header.nlmsg_type != NLMSG_ERROR;
}

static int find_family(int fd)
{
	union packet packet;
	struct nlattr *attribute;

	if (ask(fd, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME, TASKSTATS_GENL_NAME) < 0 ||
	    !hear(fd, &packet))
		return 0;
	for (attribute = ATTRIBUTE(&packet.header); (char *)attribute < packet.bytes + packet.header.nlmsg_len;
	     attribute = AFTER(attribute))
		if (attribute->nla_type == CTRL_ATTR_FAMILY_ID)
			return *(unsigned short *)INSIDE(attribute);
	return 0;
}

static void print(struct nlattr *of_task)
{
	struct nlattr *stats = AFTER(INSIDE(of_task));
	struct taskstats *of;

	if (stats->nla_type != TASKSTATS_TYPE_STATS)
		return;
	of = (struct taskstats *)INSIDE(stats);
	printf("%u %s %llu %llu %llu\n", of->ac_pid, of->ac_comm, (unsigned long long)of->cpu_delay_total,
	       (unsigned long long)of->blkio_delay_total, (unsigned long long)of->cpu_run_virtual_total);
	fflush(stdout);
}

int main(int n, char **words)
{
	int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_GENERIC), size = 4 << 20, family;
	struct sockaddr_nl address = { .nl_family = AF_NETLINK };
	union packet packet;

	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size));
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address))) {
		perror("delays: netlink");
		return 1;
	}
	family = find_family(fd);
	if (!family ||
	    ask(fd, family, TASKSTATS_CMD_GET, TASKSTATS_CMD_ATTR_REGISTER_CPUMASK, 1 < n ? words[1] : "0") < 0) {
		fprintf(stderr, "delays: this kernel has no taskstats\n");
		return 1;
	}
	for (;;) {
		if (!hear(fd, &packet))
			continue;
		struct nlattr *attribute = ATTRIBUTE(&packet.header);

		if (attribute->nla_type == TASKSTATS_TYPE_AGGR_PID)
			print(attribute);
	}
}
