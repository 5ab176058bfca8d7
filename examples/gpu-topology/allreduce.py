#!/usr/bin/env python3
"""allreduce.py RANKS FILE: one all-reduce over that many GPUs of this machine; the ranks meet over FILE."""
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as processes


def rank(number, ranks, file):
    torch.cuda.set_device(number)
    dist.init_process_group("nccl", init_method=f"file://{file}", rank=number, world_size=ranks)
    value = torch.full((1 << 20,), float(number + 1), device="cuda")
    dist.all_reduce(value)
    assert value.eq(ranks * (ranks + 1) / 2).all().item(), "a wrong sum"
    if number == 0:
        version = ".".join(map(str, torch.cuda.nccl.version()))
        print(f"all-reduce over {ranks} GPU(s) is right, NCCL {version}, {torch.cuda.get_device_name()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    count = int(sys.argv[1])
    if os.path.exists(sys.argv[2]):
        os.remove(sys.argv[2])
    processes.spawn(rank, (count, sys.argv[2]), nprocs=count)
