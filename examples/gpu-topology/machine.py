#!/usr/bin/env python3
"""machine.py [--data-direct] DIR BUSID...: a made-up /sys around real GPUs.

Two sockets, each with a root port and a PCIe switch. The GPUs hang below the first switch, beside mlx5_0; mlx5_1 and mlx5_2
are below the second one. What decides a bus's place is /sys/class/pci_bus/BUS, so that a GPU goes where its bus is said to be.

--data-direct: mlx5_0 alone, below the second switch, and its Data Direct function beside the GPUs. Its path is printed.
"""
import os
import sys


def main(top, gpus, data_direct=False):
    def write(path, text):
        os.makedirs(os.path.dirname(f"{top}/{path}"), exist_ok=True)
        with open(f"{top}/{path}", "w") as file:
            file.write(text + "\n")

    def link(path, to):
        os.makedirs(os.path.dirname(f"{top}/{path}"), exist_ok=True)
        os.symlink(os.path.relpath(to, os.path.dirname(path)), f"{top}/{path}")

    def bus(name, place):
        os.makedirs(f"{top}/{place}/pci_bus/{name}", exist_ok=True)
        link(f"class/pci_bus/{name}", f"{place}/pci_bus/{name}")

    def function(place, kind, ids, numa, driver, below=None):
        """One PCI function in the directory of its bridge; `below`: the bus that it is the bridge of."""
        name = os.path.basename(place)
        vendor, device = ids
        files = {
            "class": kind, "vendor": vendor, "device": device, "subsystem_vendor": vendor, "subsystem_device": device,
            "revision": "0x00", "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16",
            "current_link_speed": "32.0 GT/s PCIe", "current_link_width": "16", "numa_node": str(numa),
            "local_cpus": "1", "local_cpulist": "0",
        }
        for file, text in files.items():
            write(f"{place}/{file}", text)
        os.makedirs(f"{top}/bus/pci/drivers/{driver}", exist_ok=True)
        link(f"{place}/subsystem", "bus/pci")
        link(f"{place}/driver", f"bus/pci/drivers/{driver}")
        link(f"bus/pci/devices/{name}", place)
        link(f"bus/pci/drivers/{driver}/{name}", place)
        if below:
            bus(below, place)

    def bridge(place, numa, below, device="0x1979"):
        function(place, "0x060400", ("0x15b3", device), numa, "pcieport", below)

    def hca(number, place, numa):
        name, node = f"mlx5_{number}", f"uverbs{number}"
        function(place, "0x020000", ("0x15b3", "0x1021"), numa, "mlx5_core")
        home = f"{place}/infiniband/{name}"
        guid = f"0200:0000:0000:000{number + 1}"
        for file, text in {"node_type": "1: CA", "node_guid": guid, "sys_image_guid": guid, "fw_ver": "28.39.1002",
                           "hca_type": "MT4129"}.items():
            write(f"{home}/{file}", text)
        port = f"{home}/ports/1"
        for file, text in {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)",
                           "link_layer": "Ethernet", "lid": "0x0", "sm_lid": "0x0", "cap_mask": "0x00010000"}.items():
            write(f"{port}/{file}", text)
        gid = f"0000:0000:0000:0000:0000:ffff:c000:02{number + 1:02x}"
        for index, kind in enumerate(["IB/RoCE v1", "RoCE v2"]):
            write(f"{port}/gids/{index}", gid)
            write(f"{port}/gid_attrs/types/{index}", kind)
            write(f"{port}/gid_attrs/ndevs/{index}", f"rdma{number}")
        link(f"{home}/device", place)
        link(f"class/infiniband/{name}", home)
        verbs = f"{place}/infiniband_verbs/{node}"
        for file, text in {"ibdev": name, "dev": f"231:{192 + number}", "abi_version": "1"}.items():
            write(f"{verbs}/{file}", text)
        link(f"{verbs}/device", place)
        link(f"class/infiniband_verbs/{node}", verbs)

    def switch(socket, high):
        """The place of a switch's upstream port; its downstream ports are on bus HIGH2."""
        root, port, up = f"devices/pci0000:{high}0", f"0000:{high}0:01.0", f"0000:{high}1:00.0"
        bus(f"0000:{high}0", root)
        bridge(f"{root}/{port}", socket, f"0000:{high}1", "0x1978")
        bridge(f"{root}/{port}/{up}", socket, f"0000:{high}2")
        return f"{root}/{port}/{up}"

    first, second = switch(0, "e"), switch(1, "f")
    buses = sorted({gpu.rsplit(":", 1)[0] for gpu in gpus})
    for slot, name in enumerate(buses):
        place = f"{first}/0000:e2:{slot + 1:02x}.0"
        bridge(place, 0, name)
        for gpu in (gpu for gpu in gpus if gpu.startswith(name + ":")):
            function(f"{place}/{gpu}", "0x030200", ("0x10de", "0x2335"), 0, "nvidia")
    hcas = [(first, "e", 0, 0), (second, "f", 1, 0), (second, "f", 1, 1)]
    if data_direct:
        hcas = hcas[1:2]
        down = f"{first}/0000:e2:10.0"
        bridge(down, 0, "0000:e3")
        function(f"{down}/0000:e3:00.0", "0x020000", ("0x15b3", "0x2100"), 0, "mlx5_ib")
        print(f"/{down}/0000:e3:00.0")
    for number, (up, high, socket, slot) in enumerate(hcas):
        down = f"{up}/0000:{high}2:{slot + 16:02x}.0"
        bridge(down, socket, f"0000:{high}{slot + 3}")
        hca(number, f"{down}/0000:{high}{slot + 3}:00.0", socket)
    write("class/infiniband_verbs/abi_version", "6")
    for node in ("node0", "node1"):
        write(f"devices/system/node/{node}/cpumap", "1")
        write(f"devices/system/node/{node}/cpulist", "0")
    write("devices/system/node/online", "0-1")


if __name__ == "__main__":
    flag = sys.argv[1] == "--data-direct"
    words = sys.argv[2:] if flag else sys.argv[1:]
    main(words[0], words[1:], flag)
