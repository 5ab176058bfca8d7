"""Attaches BPF programs that let everything pass, and lists what is attached, with nothing but bpf(2) and route netlink.

bpf.py tcx NIC ingress|egress...   as BPF_PROG_ATTACH does: there until someone detaches it or the link goes
bpf.py detach NIC ingress|egress   what is attached there, one by one
bpf.py xdp NIC generic|native      IFLA_XDP
bpf.py query                       one line for each program at each link's tcx
"""

import ctypes
import os
import platform
import socket
import struct
import sys

BPF = {"x86_64": 321, "aarch64": 280}[platform.machine()]
LIBC = ctypes.CDLL(None, use_errno=True)
PROG_LOAD, PROG_ATTACH, PROG_DETACH, PROG_QUERY = 5, 8, 9, 16
SCHED_CLS, XDP = 3, 6
TCX = {"ingress": 46, "egress": 47}


def bpf(command, attr):
    buffer = ctypes.create_string_buffer(attr.ljust(144, b"\0"), 144)
    result = LIBC.syscall(BPF, command, buffer, 144)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result, buffer.raw


def load(kind, verdict):
    """Returns a program that ends with `verdict`."""
    insns = struct.pack("<BBhi", 0xB7, 0, 0, verdict) + struct.pack("<BBhi", 0x95, 0, 0, 0)
    text, licence = ctypes.create_string_buffer(insns), ctypes.create_string_buffer(b"GPL")
    attr = struct.pack("=IIQQ", kind, 2, ctypes.addressof(text), ctypes.addressof(licence))
    return bpf(PROG_LOAD, attr)[0]


def tcx(nic, *sides):
    for side in sides:
        attr = struct.pack("=IIII", socket.if_nametoindex(nic), load(SCHED_CLS, -1), TCX[side], 0)
        bpf(PROG_ATTACH, attr)


def detach(nic, side):
    for _ in attached(socket.if_nametoindex(nic), TCX[side]):
        bpf(PROG_DETACH, struct.pack("=IIII", socket.if_nametoindex(nic), 0, TCX[side], 0))


def xdp(nic, mode):
    flags = {"generic": 2, "native": 4}[mode]
    inner = struct.pack("=HHi", 8, 1, load(XDP, 2)) + struct.pack("=HHI", 8, 3, flags)
    body = struct.pack("=BxHiII", 0, 0, socket.if_nametoindex(nic), 0, 0) + struct.pack("=HH", 4 + len(inner), 43 | 0x8000) + inner
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.send(struct.pack("=IHHII", 16 + len(body), 19, 5, 1, 0) + body)
        error = struct.unpack_from("=i", sock.recv(4096), 16)[0]
    if error:
        raise OSError(-error, os.strerror(-error))


def attached(index, kind):
    """Returns the numbers of the programs."""
    ids = (ctypes.c_uint32 * 64)()
    raw = bpf(PROG_QUERY, struct.pack("=IIIIQI", index, kind, 0, 0, ctypes.addressof(ids), 64))[1]
    return list(ids)[: struct.unpack_from("=I", raw, 24)[0]]


def query():
    for index, name in socket.if_nameindex():
        for side, kind in TCX.items():
            for number in attached(index, kind):
                print(f"{name} tcx {side} program {number}")


{"tcx": tcx, "detach": detach, "xdp": xdp, "query": query}[sys.argv[1]](*sys.argv[2:])
