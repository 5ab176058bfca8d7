/*
 * A libibverbs whose devices are the lines of $VERBS: a name, the GUID of its card, and for each port its state (ACTIVE is 4)
 * and its link layer (1 InfiniBand, 2 Ethernet), all separated by blanks. A GUID of - is a device that cannot be opened. A line of $GIDS
 * is a device, how long the table of its ports is, and for each GID its index and its 32 digits.
 *
 * The structs have rdma-core's layout (libibverbs/verbs.h) as far as NCCL reads them.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct device {
	void *ops[2];
	int node_type, transport_type;
	char name[64], dev_name[64], dev_path[256], ibdev_path[256];
	/* Providers read on behind it. */
	char more[512];
	uint64_t guid;
	int openable, ports, state[256], layer[256], places;
	uint8_t gids[64][16];
};

struct context {
	struct device *device;
	char ops[4096];
};

struct device_attr {
	char fw_ver[64];
	uint64_t node_guid, sys_image_guid, max_mr_size, page_size_cap;
	uint32_t vendor_id, vendor_part_id, hw_ver;
	int32_t max_qp, more[28];
	uint16_t max_pkeys;
	uint8_t local_ca_ack_delay, phys_port_cnt;
};
_Static_assert(sizeof(struct device_attr) == 232, "libibverbs/verbs.h");

struct port_attr {
	uint32_t state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
	uint16_t pkey_tbl_len, lid, sm_lid;
	uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer;
};

/* Without $GIDS a table has one place, for a link-local GID, as each port has: 2.32 reads GIDs at its start. */
static void read_gids(struct device *device)
{
	FILE *file = getenv("GIDS") ? fopen(getenv("GIDS"), "r") : NULL;
	char line[8192], name[64], digits[33];
	int at, byte, index, n;

	device->places = 1;
	device->gids[0][0] = 0xfe;
	device->gids[0][1] = 0x80;
	device->gids[0][15] = 1;
	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%63s %d%n", name, &n, &at) != 2 || strcmp(name, device->name))
			continue;
		memset(device->gids, 0, sizeof(device->gids));
		device->places = n;
		while (sscanf(line + at, "%d %32s%n", &index, digits, &n) == 2) {
			for (byte = 0; byte < 16; byte++)
				sscanf(digits + 2 * byte, "%2hhx", &device->gids[index][byte]);
			at += n;
		}
	}
	if (file)
		fclose(file);
}

struct device **ibv_get_device_list(int *count)
{
	struct device **list = calloc(257, sizeof(*list));
	FILE *file = fopen(getenv("VERBS"), "r");
	char line[4096], guid[32];
	int at, n;

	*count = 0;
	while (file && *count < 256 && fgets(line, sizeof(line), file)) {
		struct device *device = calloc(1, sizeof(*device));

		if (sscanf(line, "%63s %31s%n", device->name, guid, &at) != 2)
			break;
		snprintf(device->dev_name, sizeof(device->dev_name), "uverbs%d", *count);
		device->node_type = 1;
		device->openable = strcmp(guid, "-") != 0;
		device->guid = strtoull(guid, NULL, 16);
		while (sscanf(line + at, "%d %d%n", &device->state[device->ports], &device->layer[device->ports], &n) == 2) {
			device->ports++;
			at += n;
		}
		read_gids(device);
		list[(*count)++] = device;
	}
	return list;
}

void ibv_free_device_list(struct device **list)
{
}

const char *ibv_get_device_name(struct device *device)
{
	return device->name;
}

struct context *ibv_open_device(struct device *device)
{
	struct context *context = calloc(1, sizeof(*context));

	context->device = device;
	return device->openable ? context : NULL;
}

int ibv_close_device(struct context *context)
{
	return 0;
}

int ibv_query_device(struct context *context, struct device_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->sys_image_guid = context->device->guid;
	attr->max_qp = 1024;
	attr->phys_port_cnt = context->device->ports;
	return 0;
}

int ibv_query_port(struct context *context, uint8_t port, struct port_attr *attr)
{
	attr->state = context->device->state[port - 1];
	attr->link_layer = context->device->layer[port - 1];
	attr->gid_tbl_len = context->device->places;
	attr->active_width = 2;
	attr->active_speed = 32;
	return 0;
}

int ibv_query_gid(struct context *context, uint8_t port, int index, uint8_t gid[16])
{
	if (index < 0 || index >= context->device->places) {
		errno = EINVAL;
		return -1;
	}
	memcpy(gid, context->device->gids[index], 16);
	return 0;
}

int ibv_get_async_event(struct context *context, void *event)
{
	for (;;)
		pause();
}

void *ibv_alloc_pd(struct context *context)
{
	static int pd;

	return &pd;
}

int ibv_dealloc_pd(void *pd)
{
	return 0;
}

const char *ibv_event_type_str(int type)
{
	return "event";
}

int ibv_fork_init(void)
{
	return 0;
}

/* What NCCL wants to find, and does not call while it looks for devices. */
#define UNUSED(name) int name(void) { return ENOSYS; }
UNUSED(ibv_ack_async_event)
UNUSED(ibv_query_pkey)
UNUSED(ibv_query_qp)
UNUSED(ibv_reg_mr)
UNUSED(ibv_dereg_mr)
UNUSED(ibv_create_cq)
UNUSED(ibv_destroy_cq)
UNUSED(ibv_create_qp)
UNUSED(ibv_modify_qp)
UNUSED(ibv_destroy_qp)
