"""Threads and memory by the cgroups of the process: v1 and v2, limits of its own group and of groups around it.

The server sees files of the test's in place of /sys/fs/cgroup and its own /proc/PID/cgroup, in a mount namespace of its
own. tests/container.sh has real groups.
"""

import ctypes
import os
import re

import pytest

from aftermath import good_call
from attnd_server import AttndServer

GIB = 1 << 30
NO_LIMIT_V1 = "9223372036854771712\n"
NEW_MOUNTS, NEW_USER, BIND, PRIVATE = 0x20000, 0x10000000, 4096, (1 << 18) | 16384


def instead(of_cgroups, of_own):
    """For a child, before it becomes the server."""
    library = ctypes.CDLL(None, use_errno=True)

    def must(result):
        if result != 0:
            raise OSError(ctypes.get_errno(), "cannot make a mount namespace")

    def mount():
        must(library.unshare(NEW_MOUNTS | (0 if os.geteuid() == 0 else NEW_USER)))
        must(library.mount(b"none", b"/", None, PRIVATE, None))
        must(library.mount(bytes(of_cgroups), b"/sys/fs/cgroup", None, BIND, None))
        must(library.mount(bytes(of_own), f"/proc/{os.getpid()}/cgroup".encode(), None, BIND, None))

    return mount


V1 = "4:memory:/a/b\n1:cpu,cpuacct:/a/b\n0::/\n"
V1_OPEN = {
    "memory/a/b/memory.limit_in_bytes": NO_LIMIT_V1,
    "memory/a/memory.limit_in_bytes": NO_LIMIT_V1,
    "memory/memory.limit_in_bytes": NO_LIMIT_V1,
    "cpu/a/b/cpu.cfs_quota_us": "-1\n",
    "cpu/a/b/cpu.cfs_period_us": "100000\n",
}
V2 = "0::/a/b\n"
V2_OPEN = {"a/b/memory.max": "max\n", "a/b/cpu.max": "max 100000\n"}
CASES = {
    # name: (/proc/self/cgroup, files, CPUs that are left, bytes that are left); None: the machine's
    "v1, no limit": (V1, V1_OPEN, None, None),
    "v1, its own group": (
        V1,
        V1_OPEN | {"memory/a/b/memory.limit_in_bytes": f"{GIB}\n", "cpu/a/b/cpu.cfs_quota_us": "90000\n"},
        1,
        GIB,
    ),
    "v1, a group around it": (
        V1,
        V1_OPEN
        | {
            "memory/a/memory.limit_in_bytes": f"{GIB}\n",
            "cpu/a/cpu.cfs_quota_us": "100000\n",
            "cpu/a/cpu.cfs_period_us": "100000\n",
        },
        1,
        GIB,
    ),
    "v1, a container that sees its group as the mount": (
        "4:memory:/docker/0123\n1:cpu:/docker/0123\n",
        {
            "memory/memory.limit_in_bytes": f"{GIB}\n",
            "cpu/cpu.cfs_quota_us": "50000\n",
            "cpu/cpu.cfs_period_us": "100000\n",
        },
        1,
        GIB,
    ),
    "v2, no limit": (V2, V2_OPEN, None, None),
    "v2, its own group": (V2, {"a/b/memory.max": f"{GIB}\n", "a/b/cpu.max": "100000 100000\n"}, 1, GIB),
    "v2, a group around it": (V2, V2_OPEN | {"a/memory.max": f"{GIB}\n", "a/cpu.max": "20000 50000\n"}, 1, GIB),
    "v2, the smallest counts": (V2, {"a/b/memory.max": f"{2 * GIB}\n", "a/memory.max": f"{GIB}\n"}, None, GIB),
    "v2, a container with a namespace": ("0::/\n", {"memory.max": f"{GIB}\n", "cpu.max": "100000 100000\n"}, 1, GIB),
    "v2, more CPUs than there are": (V2, {"a/b/cpu.max": "9900000 100000\n"}, None, None),
    "no cgroups": ("", {}, None, None),
}


@pytest.mark.parametrize("case", CASES)
def test_limits(tmp_path, case):
    own, files, cpus, bytes_left = CASES[case]
    (tmp_path / "own").write_text(own)
    for name, content in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    (tmp_path / "cgroup").mkdir(exist_ok=True)
    with AttndServer(preexec=instead(tmp_path / "cgroup", tmp_path / "own")) as server:
        good_call(server)
        threads, memory = map(int, re.search(r" threads=(\d+) memory_bytes_max=(\d+) ", server.log()).groups())
    assert threads == min(cpus or 1 << 20, len(os.sched_getaffinity(0)))
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory == min(bytes_left or 1 << 60, machine_bytes) // 2
