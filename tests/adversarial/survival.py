"""What a server must be after every attack: alive, answering, back at its memory and descriptors, and not exhausted.

CPU is held to what honest calls cost: an attack may not be dearer than so many of them.
"""

import contextlib

from aftermath import is_served, leaves_nothing
from attnd.v1 import attention_pb2 as pb
from attnd_server import CALL_SECONDS_MAX, eventually

CALIBRATION_CALLS = 2000
CPU_SECONDS_FLOOR = 0.1  # below, the system's clock of CPU time says nothing
_cpu_of_a_call = []


def cpu_of_a_call(server):
    """CPU seconds of a server for one small honest call over an open connection; measured once a session."""
    if not _cpu_of_a_call:
        stub = server.stub()
        stub.Info(pb.InfoRequest(), timeout=CALL_SECONDS_MAX)
        before = server.cpu_seconds()
        for _ in range(CALIBRATION_CALLS):
            stub.Info(pb.InfoRequest(), timeout=CALL_SECONDS_MAX)
        _cpu_of_a_call.append((server.cpu_seconds() - before) / CALIBRATION_CALLS)
    return _cpu_of_a_call[0]


@contextlib.contextmanager
def survives(server, name, calls_max, growth_bytes_max):
    """Around an attack.

    calls_max: what it may cost the server in CPU, in honest calls. growth_bytes_max: how far resident memory may grow
    at most meanwhile; afterwards nearly all of that must be back.
    """
    with leaves_nothing(server):
        call = cpu_of_a_call(server)
        server.close_channels()
        idle, spent = server.resident_bytes(), server.cpu_seconds()
        server.forget_peak_resident_bytes()
        yield
        spent = server.cpu_seconds() - spent
        peak = server.peak_resident_bytes()
        print(f"{name}: {spent:.2f} s of CPU, a call {1e6 * call:.0f} us; {(peak - idle) >> 20} MiB more at most")
        assert spent <= CPU_SECONDS_FLOOR + calls_max * call
        eventually("calls find a place again", lambda: is_served(server))
        if server.memory_is_its_own():
            assert peak - idle <= growth_bytes_max
            kept = max(growth_bytes_max // 4, 8 << 20)
            eventually("resident memory is back", lambda: server.resident_bytes() <= idle + kept)
