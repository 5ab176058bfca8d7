#!/usr/bin/env python3
"""judge.py DUMP TOPOLOGY [NET...]: does NCCL's dump put every GPU and these NICs below the bridges that our file says?

DUMP is NCCL's (NCCL_TOPO_DUMP_FILE), TOPOLOGY that of `rdmaprep topo --nccl-xml`. One line for each; exits with 1 where they differ.
"""
import sys
import xml.etree.ElementTree as tree


def places(file):
    """What is where: the addresses of all PCI elements from its CPU down to it."""
    found = {}

    def walk(element, above):
        if element.tag == "cpu":
            above = [f"node {element.get('numaid')}"]
        if element.tag == "pci":
            above = above + [element.get("busid")]
            if element.get("class", "").startswith("0x03"):
                found[f"GPU {above[-1]}"] = above
        if element.tag == "net":
            found[element.get("name")] = above
        for child in element:
            walk(child, above)

    walk(tree.parse(file).getroot(), [])
    return found


def main(dump, topology, wanted):
    theirs, ours = places(dump), places(topology)
    wrong = 0
    for name in [n for n in sorted(theirs) if n.startswith("GPU ")] + wanted:
        if theirs.get(name) and theirs.get(name) == ours.get(name):
            print(f"same  {name}: {' > '.join(theirs[name])}")
        else:
            wrong += 1
            print(f"OTHER {name}: NCCL says {theirs.get(name)}, we say {ours.get(name)}")
    extra = [n for n in theirs if not n.startswith("GPU ") and n not in wanted]
    for name in extra:
        print(f"OTHER {name}: NCCL has it, and should not")
    gpus = sum(n.startswith("GPU ") for n in theirs)
    print(f"{gpus} GPUs, {len(wanted)} NICs, {wrong + len(extra)} differences")
    return 1 if wrong or extra or not gpus else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
