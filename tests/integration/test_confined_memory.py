"""A memory limit that the system holds: the server finds it, keeps within it under more than it can take, and lives.

The limit is a cgroup's, v2 or v1; where none can be made it is the address space's, of which the server is told.
"""

import os
import pathlib
import resource
import threading

import grpc

import wire
from aftermath import NO_ROOM, code_of, good_call, random_request
from attnd.v1 import attention_pb2 as pb
from attnd_server import AttndServer, CALL_SECONDS_MAX, eventually

MIB = 1 << 20
LIMIT_BYTES = 512 * MIB
CGROUPS = pathlib.Path("/sys/fs/cgroup")


class Confinement:
    """A limit for the processes that enter it; `flags` say it to a server that cannot see it."""

    def __init__(self):
        self.flags, self._group, self._peak = [], None, None
        for folder, limit, peak in (
            (CGROUPS, "memory.max", "memory.peak"),
            (CGROUPS / "memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
        ):
            group = folder / f"attnd-test-{os.getpid()}"
            try:
                group.mkdir()
                # A folder of no cgroup file system is empty.
                with open(group / limit, "r+", encoding="ascii") as file:
                    file.write(str(LIMIT_BYTES))
            except OSError:
                if group.is_dir():
                    group.rmdir()
                continue
            self._group, self._peak = group, group / peak
            return
        self.flags = [f"--memory_bytes_max={LIMIT_BYTES // 2}"]

    def enter(self):
        if self._group is not None:
            (self._group / "cgroup.procs").write_text(str(os.getpid()))
        else:  # code, stacks and what allocators map ahead take address space without memory
            resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES + 2048 * MIB,) * 2)

    def bytes_used_at_most(self, server):
        has_peak = self._peak is not None and self._peak.exists()
        return int(self._peak.read_text()) if has_peak else server.peak_resident_bytes()

    def close(self):
        if self._group is not None:
            eventually("the group is empty", lambda: not (self._group / "cgroup.procs").read_text())
            self._group.rmdir()


def test_it_lives_within_its_limit():
    confinement = Confinement()
    try:
        with AttndServer(*confinement.flags, preexec=confinement.enter) as server:
            info = server.stub().Info(pb.InfoRequest(), timeout=CALL_SECONDS_MAX)
            limits = {limit.flag: limit.value for limit in info.limits}
            assert limits["memory_bytes_max"] == LIMIT_BYTES // 2  # half of what it may use
            outcomes = overload(server)
            assert server.is_alive()
            assert outcomes["good"] > 0 and outcomes["refused"] > 0 and outcomes["other"] == 0
            assert confinement.bytes_used_at_most(server) <= LIMIT_BYTES
            good_call(server)
    finally:
        confinement.close()


def overload(server):
    """Twelve callers, each for about 70 MiB, all at once, twice."""
    outcomes = dict.fromkeys(("good", "refused", "other"), 0)
    lock, together, request = threading.Lock(), threading.Barrier(12), random_request(1, 1 << 17, 32)
    request.q.CopyFrom(random_request(1, 8, 32).q)

    def call(by):
        for _ in range(2):
            together.wait()
            try:
                by(server.stub(), request)
                outcome = "good"
            except (grpc.RpcError, wire.ProblemFailed) as error:
                outcome = "refused" if code_of(error) in NO_ROOM else "other"
            with lock:
                outcomes[outcome] += 1

    callers = [threading.Thread(target=call, args=(list(wire.CALLS.values())[n % 2],)) for n in range(12)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    server.close_channels()
    return outcomes
