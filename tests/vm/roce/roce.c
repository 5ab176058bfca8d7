// SPDX-License-Identifier: GPL-2.0
/*
 * RDMA devices without a data path, for tests, with the habits that soft-RoCE lacks and mlx5 has: they sit on a PCI
 * function, pin the memory that is registered, outlive their netdev's move into another network namespace, letting go of it at NETDEV_UNREGISTER and
 * taking it back at NETDEV_REGISTER, wherever that is, and can be moved themselves in the exclusive RDMA namespace
 * mode. ib_core keeps their RoCE v1 and v2 GID tables as it does for hardware.
 *
 *   modprobe roce netdevs=eth4,eth5+eth6 [names=roce%d] [link_layers=ethernet,infiniband] [down=0,1] [gids=16]
 *                [driver=mlx5_core driver_id=1]
 *
 * One device for each entry of netdevs (names in the initial network namespace, each on a PCI function), with one
 * port for each netdev joined by "+"; its PCI function is the first one's. names, link_layers and down have an entry for
 * each device, too; the last entry given goes on for those that follow. driver is what the uevent file of their PCI
 * functions names as DRIVER while the module is loaded; the functions keep theirs.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/etherdevice.h>
#include <linux/inetdevice.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/rtnetlink.h>
#include <linux/version.h>
#include <net/addrconf.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>

#define MAX_DEVICES 64
#define MAX_PORTS 4

static char *netdevs[MAX_DEVICES];
static int devices;
module_param_array(netdevs, charp, &devices, 0444);
MODULE_PARM_DESC(netdevs, "netdevs of the devices; a + joins those of several ports");

static char *names[MAX_DEVICES] = { "roce%d" };
static int names_given = 1;
module_param_array(names, charp, &names_given, 0444);
MODULE_PARM_DESC(names, "their names; %d counts");

static char *link_layers[MAX_DEVICES] = { "ethernet" };
static int link_layers_given = 1;
module_param_array(link_layers, charp, &link_layers_given, 0444);
MODULE_PARM_DESC(link_layers, "ethernet or infiniband");

static bool inert[MAX_DEVICES];
static int inert_given = 1;
module_param_array_named(down, inert, bool, &inert_given, 0444);
MODULE_PARM_DESC(down, "1: no port ever becomes ACTIVE");

static unsigned int gids = 16;
module_param(gids, uint, 0444);
MODULE_PARM_DESC(gids, "length of each port's GID table");

/*
 * libibverbs picks the provider by this number. RDMA_DRIVER_HFI1's sends no message of its own when it opens a device,
 * and has ibv_devinfo work; RDMA_DRIVER_RXE's does, too, but everyone takes the device for soft-RoCE then.
 */
static unsigned int driver_id = RDMA_DRIVER_HFI1;
module_param(driver_id, uint, 0444);
MODULE_PARM_DESC(driver_id, "enum rdma_driver_id");

static unsigned int abi = 1;
module_param(abi, uint, 0444);
MODULE_PARM_DESC(abi, "version of the provider's ABI");

static char *driver;
module_param(driver, charp, 0444);
MODULE_PARM_DESC(driver, "DRIVER in the uevent of the PCI functions");

struct roce_port {
	struct device *parent;		/* with dev_port what the netdev is recognised by */
	unsigned short dev_port;
	spinlock_t lock;		/* of netdev */
	struct net_device *netdev;	/* held; changes under RTNL */
	bool active;			/* as last reported; under RTNL */
};

struct roce_device {
	struct ib_device ib;
	struct list_head list;		/* under RTNL */
	bool registered;		/* under RTNL */
	bool infiniband;
	bool inert;
	__be64 card;			/* system image GUID: one for all functions of a card */
	struct device_driver *driver;	/* of the PCI function, while it shows the copy; under its lock */
	struct pci_driver copy;
	unsigned int ports;
	struct roce_port port[MAX_PORTS];
};

struct roce_ucontext {
	struct ib_ucontext ib;
};

struct roce_pd {
	struct ib_pd ib;
};

struct roce_mr {
	struct ib_mr ib;
	struct ib_umem *umem;
};

static LIST_HEAD(roce_devices);

static struct roce_device *to_roce(struct ib_device *ib)
{
	return container_of(ib, struct roce_device, ib);
}

static struct net_device *roce_get_netdev(struct ib_device *ib, u32 number)
{
	struct roce_port *port = &to_roce(ib)->port[number - 1];
	struct net_device *netdev;

	spin_lock(&port->lock);
	netdev = port->netdev;
	if (netdev)
		dev_hold(netdev);
	spin_unlock(&port->lock);
	return netdev;
}

/* Whether a port is ACTIVE, and the netdev's MTU. */
static bool roce_active(struct roce_device *dev, u32 number, unsigned int *mtu)
{
	struct net_device *netdev = roce_get_netdev(&dev->ib, number);
	bool active;

	*mtu = netdev ? netdev->mtu : ETH_DATA_LEN;
	active = netdev && netif_running(netdev) && netif_carrier_ok(netdev) && !dev->inert;
	if (netdev)
		dev_put(netdev);
	return active;
}

static int roce_query_device(struct ib_device *ib, struct ib_device_attr *attr, struct ib_udata *udata)
{
	struct pci_dev *pci = to_pci_dev(ib->dev.parent);

	memset(attr, 0, sizeof(*attr));
	attr->fw_ver = 1ULL << 32;
	attr->sys_image_guid = to_roce(ib)->card;
	attr->vendor_id = pci->vendor;
	attr->vendor_part_id = pci->device;
	attr->hw_ver = pci->revision;
	attr->max_mr_size = U64_MAX;
	attr->page_size_cap = PAGE_SIZE;
	attr->max_pd = 1024;
	attr->max_pkeys = 1;
	return 0;
}

static int roce_query_port(struct ib_device *ib, u32 number, struct ib_port_attr *attr)
{
	struct roce_device *dev = to_roce(ib);
	unsigned int mtu;
	bool active = roce_active(dev, number, &mtu);

	attr->state = active ? IB_PORT_ACTIVE : IB_PORT_DOWN;
	attr->phys_state = active ? IB_PORT_PHYS_STATE_LINK_UP : IB_PORT_PHYS_STATE_DISABLED;
	attr->max_mtu = IB_MTU_4096;
	attr->active_mtu = dev->infiniband ? IB_MTU_4096 : iboe_get_mtu(mtu);
	attr->gid_tbl_len = gids;
	attr->pkey_tbl_len = 1;
	attr->max_msg_sz = 1 << 30;
	attr->ip_gids = !dev->infiniband;
	attr->lid = dev->infiniband ? number : 0;
	attr->max_vl_num = 1;
	/* 100 Gb/s. What the NIC below has would need RTNL. */
	attr->active_width = IB_WIDTH_4X;
	attr->active_speed = IB_SPEED_EDR;
	return 0;
}

static enum rdma_link_layer roce_link_layer(struct ib_device *ib, u32 number)
{
	return to_roce(ib)->infiniband ? IB_LINK_LAYER_INFINIBAND : IB_LINK_LAYER_ETHERNET;
}

/* No management datagrams: they would need queue pairs. */
static int roce_port_immutable(struct ib_device *ib, u32 number, struct ib_port_immutable *immutable)
{
	immutable->gid_tbl_len = gids;
	immutable->pkey_tbl_len = 1;
	immutable->core_cap_flags = to_roce(ib)->infiniband ?
		RDMA_CORE_CAP_PROT_IB : RDMA_CORE_CAP_PROT_ROCE | RDMA_CORE_CAP_PROT_ROCE_UDP_ENCAP;
	return 0;
}

/* RoCE: not asked, the table is ib_core's. */
static int roce_query_gid(struct ib_device *ib, u32 number, int index, union ib_gid *gid)
{
	memset(gid, 0, sizeof(*gid));
	if (to_roce(ib)->infiniband) {
		gid->global.subnet_prefix = cpu_to_be64(0xfe80000000000000ULL);
		gid->global.interface_id = index ? 0 : ib->node_guid;
	}
	return 0;
}

static int roce_add_gid(const struct ib_gid_attr *attr, void **context)
{
	return 0;
}

static int roce_del_gid(const struct ib_gid_attr *attr, void **context)
{
	return 0;
}

static int roce_query_pkey(struct ib_device *ib, u32 number, u16 index, u16 *pkey)
{
	*pkey = 0xffff;
	return index ? -EINVAL : 0;
}

static void roce_fw_str(struct ib_device *ib, char *text)
{
	snprintf(text, IB_FW_VERSION_NAME_MAX, "1.0.0");
}

static int roce_alloc_ucontext(struct ib_ucontext *context, struct ib_udata *udata)
{
	return 0;
}

static void roce_dealloc_ucontext(struct ib_ucontext *context)
{
}

/* Without it ib_core moves no device to another namespace: see ib_device_set_netns_put(). */
static void roce_disassociate_ucontext(struct ib_ucontext *context)
{
}

static int roce_alloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return 0;
}

static int roce_dealloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return 0;
}

/* Pins the memory, within RLIMIT_MEMLOCK: all that a device without a data path can do with it. */
static struct ib_mr *roce_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 virt, int access,
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 17, 0)
				      struct ib_dmah *dmah,
#endif
				      struct ib_udata *udata)
{
	static atomic_t keys;
	struct roce_mr *mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	struct ib_umem *umem;

	if (!mr)
		return ERR_PTR(-ENOMEM);
	umem = ib_umem_get(pd->device, start, length, access);
	if (IS_ERR(umem)) {
		kfree(mr);
		return ERR_CAST(umem);
	}
	mr->umem = umem;
	mr->ib.lkey = mr->ib.rkey = atomic_inc_return(&keys) << 8;
	return &mr->ib;
}

static int roce_dereg_mr(struct ib_mr *ib, struct ib_udata *udata)
{
	struct roce_mr *mr = container_of(ib, struct roce_mr, ib);

	ib_umem_release(mr->umem);
	kfree(mr);
	return 0;
}

static ssize_t hw_rev_show(struct device *dev, struct device_attribute *attr, char *text)
{
	return sysfs_emit(text, "0\n");
}
static DEVICE_ATTR_RO(hw_rev);

static ssize_t hca_type_show(struct device *dev, struct device_attribute *attr, char *text)
{
	return sysfs_emit(text, "TEST\n");
}
static DEVICE_ATTR_RO(hca_type);

static ssize_t board_id_show(struct device *dev, struct device_attribute *attr, char *text)
{
	return sysfs_emit(text, "TEST_ROCE\n");
}
static DEVICE_ATTR_RO(board_id);

static struct attribute *roce_attributes[] = {
	&dev_attr_hw_rev.attr,
	&dev_attr_hca_type.attr,
	&dev_attr_board_id.attr,
	NULL,
};

static const struct attribute_group roce_group = { .attrs = roce_attributes };

/* Not constant: driver_id and uverbs_abi_ver are parameters. */
static struct ib_device_ops roce_ops = {
	.owner = THIS_MODULE,
	.device_group = &roce_group,
	.query_device = roce_query_device,
	.query_port = roce_query_port,
	.get_port_immutable = roce_port_immutable,
	.get_link_layer = roce_link_layer,
	.get_netdev = roce_get_netdev,
	.query_gid = roce_query_gid,
	.add_gid = roce_add_gid,
	.del_gid = roce_del_gid,
	.query_pkey = roce_query_pkey,
	.get_dev_fw_str = roce_fw_str,
	.alloc_ucontext = roce_alloc_ucontext,
	.dealloc_ucontext = roce_dealloc_ucontext,
	.disassociate_ucontext = roce_disassociate_ucontext,
	.alloc_pd = roce_alloc_pd,
	.dealloc_pd = roce_dealloc_pd,
	.reg_user_mr = roce_reg_user_mr,
	.dereg_mr = roce_dereg_mr,
	INIT_RDMA_OBJ_SIZE(ib_ucontext, roce_ucontext, ib),
	INIT_RDMA_OBJ_SIZE(ib_pd, roce_pd, ib),
};

/* Puts a netdev behind a port, or none. The reference is the caller's gift. */
static void roce_put_behind(struct roce_port *port, struct net_device *netdev)
{
	struct net_device *before;

	spin_lock(&port->lock);
	before = port->netdev;
	port->netdev = netdev;
	spin_unlock(&port->lock);
	if (before)
		dev_put(before);
}

/* Tells of a change of state. */
static void roce_tell(struct roce_device *dev, u32 number)
{
	struct ib_event event = { .device = &dev->ib, .element.port_num = number };
	struct roce_port *port = &dev->port[number - 1];
	unsigned int mtu;
	bool active = roce_active(dev, number, &mtu);

	if (active == port->active || !dev->registered)
		return;
	port->active = active;
	event.event = active ? IB_EVENT_PORT_ACTIVE : IB_EVENT_PORT_ERR;
	ib_dispatch_event(&event);
}

static void roce_port_event(struct roce_device *dev, u32 number, struct net_device *netdev, unsigned long event)
{
	struct roce_port *port = &dev->port[number - 1];

	if (event == NETDEV_REGISTER && !port->netdev &&
	    netdev->dev.parent == port->parent && netdev->dev_port == port->dev_port) {
		dev_hold(netdev);
		roce_put_behind(port, netdev);
	} else if (port->netdev != netdev) {
		return;
	}
	if (event == NETDEV_UNREGISTER)
		roce_put_behind(port, NULL);
	roce_tell(dev, number);
}

/* Of every network namespace, under RTNL. */
static int roce_event(struct notifier_block *block, unsigned long event, void *info)
{
	struct net_device *netdev = netdev_notifier_info_to_dev(info);
	struct roce_device *dev;
	u32 number;

	switch (event) {
	case NETDEV_REGISTER:
	case NETDEV_UNREGISTER:
	case NETDEV_UP:
	case NETDEV_DOWN:
	case NETDEV_CHANGE:
		list_for_each_entry(dev, &roce_devices, list)
			for (number = 1; number <= dev->ports; number++)
				roce_port_event(dev, number, netdev, event);
	}
	return NOTIFY_DONE;
}

/* Before ib_core's own, whose work for NETDEV_REGISTER asks for the netdev of each port. */
static struct notifier_block roce_notifier = { .notifier_call = roce_event, .priority = 1 };

/*
 * dev_uevent() prints the name of the function's driver: it gets a copy of that, with another name. Functions that are
 * not ours keep theirs.
 */
static void roce_show_driver(struct roce_device *dev)
{
	struct device *parent = dev->ib.dev.parent;

	device_lock(parent);
	if (parent->driver) {
		dev->driver = parent->driver;
		dev->copy = *to_pci_driver(parent->driver);
		dev->copy.driver.name = driver;
		parent->driver = &dev->copy.driver;
	}
	device_unlock(parent);
}

static void roce_put_driver_back(struct roce_device *dev)
{
	struct device *parent = dev->ib.dev.parent;

	if (!dev->driver)
		return;
	device_lock(parent);
	if (parent->driver == &dev->copy.driver)
		parent->driver = dev->driver;
	device_unlock(parent);
}

static void roce_free(struct roce_device *dev)
{
	struct device *parent = dev->ib.dev.parent;
	u32 i;

	roce_put_driver_back(dev);
	for (i = 0; i < dev->ports; i++) {
		roce_put_behind(&dev->port[i], NULL);
		put_device(dev->port[i].parent);
	}
	ib_dealloc_device(&dev->ib);
	put_device(parent);
}

static void roce_remove(struct roce_device *dev)
{
	rtnl_lock();
	list_del(&dev->list);
	rtnl_unlock();
	if (dev->registered)
		ib_unregister_device(&dev->ib);
	roce_free(dev);
}

/* That of the card's first device, which has its node GUID. */
static __be64 roce_card(struct roce_device *dev)
{
	struct pci_dev *pci = to_pci_dev(dev->ib.dev.parent), *its;
	struct roce_device *other;

	list_for_each_entry(other, &roce_devices, list) {
		its = to_pci_dev(other->ib.dev.parent);
		if (its->bus == pci->bus && PCI_SLOT(its->devfn) == PCI_SLOT(pci->devfn))
			return other->card;
	}
	return dev->ib.node_guid;
}

/* The netdevs of an entry: "eth5+eth6". */
static int roce_add_ports(struct roce_device *dev, const char *entry)
{
	char name[IFNAMSIZ];
	size_t length;

	for (;; entry += length + 1) {
		struct roce_port *port = &dev->port[dev->ports];
		struct net_device *netdev;

		length = strcspn(entry, "+");
		if (length >= sizeof(name) || dev->ports == MAX_PORTS)
			return -EINVAL;
		memcpy(name, entry, length);
		name[length] = '\0';
		netdev = dev_get_by_name(&init_net, name);
		if (!netdev || !netdev->dev.parent || !dev_is_pci(netdev->dev.parent)) {
			pr_err("%s is no netdev of a PCI function\n", name);
			if (netdev)
				dev_put(netdev);
			return -ENODEV;
		}
		spin_lock_init(&port->lock);
		port->netdev = netdev;
		port->parent = get_device(netdev->dev.parent);
		port->dev_port = netdev->dev_port;
		if (!dev->ports++) {
			dev->ib.dev.parent = get_device(port->parent);
			addrconf_addr_eui48((u8 *)&dev->ib.node_guid, netdev->perm_addr);
		}
		if (!entry[length])
			return 0;
	}
}

/* Entry i of a list whose last one goes on. */
#define OF(list, i) ((list)[min_t(int, i, list##_given - 1)])

static int roce_add(int i)
{
	struct roce_device *dev = ib_alloc_device(roce_device, ib);
	u32 number;
	int err;

	if (!dev)
		return -ENOMEM;
	dev->infiniband = !strcmp(OF(link_layers, i), "infiniband");
	dev->inert = OF(inert, i);
	rtnl_lock();
	err = roce_add_ports(dev, netdevs[i]);
	if (!err) {
		dev->card = roce_card(dev);
		list_add_tail(&dev->list, &roce_devices);
	}
	rtnl_unlock();
	if (err) {
		roce_free(dev);
		return err;
	}
	if (driver)
		roce_show_driver(dev);
	ib_set_device_ops(&dev->ib, &roce_ops);
	dev->ib.node_type = RDMA_NODE_IB_CA;
	dev->ib.phys_port_cnt = dev->ports;
	dev->ib.num_comp_vectors = 1;
	snprintf(dev->ib.node_desc, sizeof(dev->ib.node_desc), "roce test device");
	err = ib_register_device(&dev->ib, OF(names, i), NULL);
	if (err) {
		pr_err("%s: registering it failed: %d\n", netdevs[i], err);
		return err;
	}
	rtnl_lock();
	dev->registered = true;
	for (number = 1; number <= dev->ports; number++)
		roce_tell(dev, number);
	rtnl_unlock();
	return 0;
}

static void roce_exit(void)
{
	struct roce_device *dev, *next;

	/* With an empty list the replay of NETDEV_UNREGISTER for each netdev finds nothing to do. The last one first: of two on
	 * one function, the second has copied the first one's copy of its driver. */
	list_for_each_entry_safe_reverse(dev, next, &roce_devices, list)
		roce_remove(dev);
	unregister_netdevice_notifier(&roce_notifier);
}

static int __init roce_init(void)
{
	int i, err;

	roce_ops.driver_id = driver_id;
	roce_ops.uverbs_abi_ver = abi;
	err = register_netdevice_notifier(&roce_notifier);
	for (i = 0; !err && i < devices; i++) {
		err = roce_add(i);
		if (err)
			roce_exit();
	}
	return err;
}

module_init(roce_init);
module_exit(roce_exit);
MODULE_DESCRIPTION("RDMA devices without a data path, for tests");
MODULE_LICENSE("GPL");
