"""without_cuda.py LIB: makes empty stand-ins for the libraries that PyTorch's own in LIB lack.

PyPI's PyTorch for x86-64 is linked to 5 GB of CUDA, which neither of its stores ever calls. Each function of a stand-in returns 0.
"""
import collections
import ctypes
import pathlib
import re
import subprocess
import sys

lib = pathlib.Path(sys.argv[1])


def lines(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()


def here(name):
    if (lib / name).exists():
        return True
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


own = [str(f) for f in lib.glob("*.so*")]
needed = {m[1] for line in lines("readelf", "-dW", *own) if (m := re.search(r"\(NEEDED\).*\[(.*)\]", line))}
absent = sorted(name for name in needed if not here(name))
# The version nodes of each library that a file needs.
versions, file = collections.defaultdict(set), None
for line in lines("readelf", "-VW", *own):
    if m := re.search(r"File: (\S+)", line):
        file = m[1]
    elif file in absent and (m := re.search(r"Name: (\S+) ", line)):
        versions[file].add(m[1])
symbols = lambda kind: {line.split()[0] for line in lines("nm", "-DP", f"--{kind}-only", *own) if " " in line}
wanted = symbols("undefined")
defined = {s.split("@")[0] for s in symbols("defined")}
for name in absent:
    nodes = {v: {s.split("@")[0] for s in wanted if s.endswith("@" + v)} for v in versions[name]}
    # A symbol without a version may be of any library without versions: the system's libraries all have versions.
    loose = {s for s in wanted if "@" not in s and s not in defined and not s.startswith(("Py", "_Py"))} if name == absent[0] else set()
    code, script = lib / "absent.c", lib / "absent.map"
    code.write_text("".join(f"long {s}(void) {{ return 0; }}\n" for s in sorted(set().union(loose, *nodes.values()))))
    script.write_text("".join(f"{v} {{ global: {' '.join(f'{s};' for s in sorted(n))} }};\n" for v, n in sorted(nodes.items())))
    version = [f"-Wl,--version-script={script}"] if nodes else []
    subprocess.run(["gcc", "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{name}", *version, "-o", lib / name, code], check=True)
print(f"stand-ins for {', '.join(absent)}")
