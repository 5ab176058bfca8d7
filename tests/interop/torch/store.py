"""Stores of the real PyTorch for scripts/peers-interop: a TCPStore server, or a FileStore beside ours.

store.py tcp yes|no [COUNT]  serves with or without libuv, COUNT keys of others in it; prints the port; ends with its stdin
store.py file PATH COUNT     adds COUNT times to a counter, and reads what rdmaprep published
"""
import datetime
import sys

import torch
import torch.distributed as dist

patience = datetime.timedelta(seconds=60)
if sys.argv[1] == "tcp":
    kwargs = {"use_libuv": sys.argv[2] == "yes"}
    store = dist.TCPStore("127.0.0.1", 0, None, True, patience, wait_for_workers=False, **kwargs)
    count, step = int(sys.argv[3]) if len(sys.argv) > 3 else 0, 500
    for first in range(0, count, step):
        keys = [f"rdmaprep/v1/{key}" for key in range(first, first + step)]
        store.multi_set(keys, ["garbage"] * step)
    assert store.num_keys() >= count
    print(torch.__version__, store.port, flush=True)
    sys.stdin.read()
else:
    store = dist.FileStore(sys.argv[2], -1)
    store.set_timeout(patience)
    print(torch.__version__, flush=True)
    for _ in range(int(sys.argv[3])):
        store.add("counter", 1)
    offer = store.get("rdmaprep/v1/file/in/0")
    store.set("read", offer)
    print(store.add("counter", 0), offer.decode(), flush=True)
    sys.stdin.read()
    print(store.add("counter", 0), store.get("read") == offer, flush=True)
