/* A libibverbs that lists HCAs which do not exist: what NCCL asks of one while it looks for NICs, and no transfer.
 *
 * FAKE_HCAS="mlx5_0 mlx5_1" names them, one ACTIVE Ethernet port each. The functions are those that NCCL demands
 * (src/misc/ibvsymbols.cc:108 in 2.30.7), and those of newer releases. Layouts are libibverbs-dev's.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_get_device_list

enum { MOST = 64, ROOM = 4096 };

/* A provider such as libmlx5 reads past the end of the public structures. */
static union { struct ibv_device device; char room[ROOM]; } devices[MOST];
static union { struct ibv_context context; char room[ROOM]; } contexts[MOST];
static struct ibv_pd domains[MOST];

struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list = calloc(MOST + 1, sizeof *list);
	const char *wanted = getenv("FAKE_HCAS");
	char *names = strdup(wanted ? wanted : ""), *rest = names, *name;
	int n = 0;

	while (list && n < MOST && (name = strtok_r(rest, " ,", &rest))) {
		struct ibv_device *device = &devices[n].device;

		device->node_type = IBV_NODE_CA;
		device->transport_type = IBV_TRANSPORT_IB;
		snprintf(device->name, sizeof device->name, "%s", name);
		snprintf(device->dev_name, sizeof device->dev_name, "uverbs%d", n);
		snprintf(device->ibdev_path, sizeof device->ibdev_path, "/sys/class/infiniband/%s", name);
		snprintf(device->dev_path, sizeof device->dev_path, "/sys/class/infiniband_verbs/uverbs%d", n);
		list[n++] = device;
	}
	free(names);
	if (count)
		*count = n;
	return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }

const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }

static int number(struct ibv_device *device) { return (int)((char *)device - (char *)devices) / ROOM; }

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct ibv_context *context = &contexts[number(device)].context;

	context->device = device;
	context->cmd_fd = context->async_fd = -1;
	context->num_comp_vectors = 1;
	pthread_mutex_init(&context->mutex, NULL);
	return context;
}

int ibv_close_device(struct ibv_context *context) { (void)context; return 0; }

/* No event ever comes: a thread of NCCL's waits here. */
int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	(void)context, (void)event;
	for (;;)
		pause();
}

void ibv_ack_async_event(struct ibv_async_event *event) { (void)event; }

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	memset(attr, 0, sizeof *attr);
	attr->sys_image_guid = attr->node_guid = 0x0200000000000000 | (uint64_t)(number(context->device) + 1);
	attr->vendor_id = 0x02c9;
	attr->max_qp = attr->max_cq = attr->max_mr = attr->max_pd = 1 << 16;
	attr->max_qp_wr = attr->max_cqe = 1 << 15;
	attr->max_sge = 30;
	attr->phys_port_cnt = 1;
	return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *compat)
{
	struct ibv_port_attr *attr = (struct ibv_port_attr *)compat;

	(void)context, (void)port;
	memset(attr, 0, sizeof *attr);
	attr->state = IBV_PORT_ACTIVE;
	attr->max_mtu = attr->active_mtu = IBV_MTU_4096;
	attr->gid_tbl_len = 4;
	attr->link_layer = IBV_LINK_LAYER_ETHERNET;
	/* 4 lanes of NDR: 400 Gb/s. */
	attr->active_width = 2;
	attr->active_speed = 128;
	attr->phys_state = 5;
	return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
	(void)port, (void)index;
	memset(gid, 0, sizeof *gid);
	gid->raw[10] = gid->raw[11] = 0xff;
	gid->raw[12] = 192, gid->raw[14] = 2, gid->raw[15] = number(context->device) + 1;
	return 0;
}

int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
	(void)context, (void)port, (void)index;
	*pkey = 0xffff;
	return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = &domains[number(context->device)];

	pd->context = context;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd) { (void)pd; return 0; }

/* A driver with DMA-BUF support answers so for a bad descriptor: NCCL takes this for GPUDirect support. */
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	(void)pd, (void)offset, (void)length, (void)iova, (void)fd, (void)access;
	errno = EBADF;
	return NULL;
}

/* A transfer ends here, and says so. */
static void *none(const char *what)
{
	fprintf(stderr, "fake verbs: %s: there is no NIC\n", what);
	errno = EOPNOTSUPP;
	return NULL;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	(void)pd, (void)addr, (void)length, (void)access;
	return none("ibv_reg_mr");
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	(void)pd, (void)addr, (void)length, (void)iova, (void)access;
	return none("ibv_reg_mr_iova2");
}

int ibv_dereg_mr(struct ibv_mr *mr) { (void)mr; return 0; }

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *own, struct ibv_comp_channel *channel, int vector)
{
	(void)context, (void)cqe, (void)own, (void)channel, (void)vector;
	return none("ibv_create_cq");
}

int ibv_destroy_cq(struct ibv_cq *cq) { (void)cq; return 0; }

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	(void)pd, (void)attr;
	return none("ibv_create_qp");
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	(void)qp, (void)attr, (void)mask;
	return EOPNOTSUPP;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	(void)qp, (void)attr, (void)mask, (void)init;
	return EOPNOTSUPP;
}

int ibv_destroy_qp(struct ibv_qp *qp) { (void)qp; return 0; }

int ibv_fork_init(void) { return 0; }

const char *ibv_event_type_str(enum ibv_event_type event) { (void)event; return "none"; }
