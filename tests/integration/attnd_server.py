"""A real attnd process on a loopback port of the system's choice, for tests. Stopped by its own pid, always."""

import contextlib
import http.client
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import grpc

from attnd.v1 import attention_pb2_grpc
import health_pb2
import health_pb2_grpc

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("ATTND_BIN", ROOT / "build" / "release" / "bin"))
# Bounds of hangs: a sanitized server on a busy machine is slow.
START_SECONDS_MAX = 180
STOP_SECONDS_MAX = 300
CALL_SECONDS_MAX = 300
MESSAGE_BYTES_MAX = 512 << 20
FOLDERS = tempfile.TemporaryDirectory(prefix="attnd-test-")  # of all servers; what is left of one that was killed too


class AttndServer:
    """Starts in the constructor, stops in stop() or at the end of a `with`; any end but a clean one is an error."""

    def __init__(self, *flags, listen="127.0.0.1:0", preexec=None, admin=False, stderr=None):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="server-", dir=FOLDERS.name))
        self.log_path = self.folder / "log"
        self._port_file = self.folder / "port"
        self._admin_port_file = self.folder / "admin_port"
        self._channels = []
        self.host = listen.rpartition(":")[0] if listen.count(":") == 1 else "127.0.0.1"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [
                    str(BIN / "attnd"),
                    f"--listen={listen}",
                    f"--port_file={self._port_file}",
                    f"--admin_listen={'127.0.0.1:0' if admin else ''}",
                    f"--admin_port_file={self._admin_port_file}",
                    *flags,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=stderr or subprocess.STDOUT,
                preexec_fn=preexec,
            )
        self.pid = self.process.pid
        try:
            self.port = self._wait_for_port()
        except BaseException:
            self.kill()
            raise
        self.address = f"{self.host}:{self.port}"

    def _wait_for_port(self):
        end = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"attnd ended with {self.process.returncode} at start:\n{self.log()}")
            text = self._port_file.read_text() if self._port_file.exists() else ""
            if text.endswith("\n"):
                return int(text.split()[0].rpartition(":")[2])
            time.sleep(0.02)
        raise RuntimeError(f"attnd wrote no port within {START_SECONDS_MAX} s:\n{self.log()}")

    # What a client needs.

    def channel(self, target=None, *options):
        """A channel of its own connection (not shared with other channels to the same address)."""
        channel = grpc.insecure_channel(
            target or self.address,
            options=[
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
                ("grpc.enable_http_proxy", 0),
                *options,
            ],
        )
        self._channels.append(channel)
        return channel

    def stub(self, *options):
        return attention_pb2_grpc.AttentionServiceStub(self.channel(None, *options))

    def admin(self, path, method="GET", body=None, headers=None):
        """(status, text) of a page of the admin port; for a server that was made with admin=True."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=CALL_SECONDS_MAX)
        with contextlib.closing(connection):
            connection.request(method, path, body=body, headers=headers or {})
            reply = connection.getresponse()
            return reply.status, reply.read().decode()

    @property
    def admin_port(self):
        return int(self._admin_port_file.read_text())

    def health(self):
        return health_pb2_grpc.HealthStub(self.channel())

    # What the system says about the process.

    def log(self):
        return self.log_path.read_text(errors="backslashreplace")

    def resident_bytes(self):
        fields = pathlib.Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def peak_resident_bytes(self):
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) << 10

    def forget_peak_resident_bytes(self):
        """From here on peak_resident_bytes counts afresh."""
        pathlib.Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def memory_is_its_own(self):
        """Not so under AddressSanitizer, which keeps what is freed, and a shadow of everything."""
        return "libasan" not in pathlib.Path(f"/proc/{self.pid}/maps").read_text()

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def rests(self):
        """Whether no thread of it runs or would run: what it had to do after its answers is done."""
        for task in pathlib.Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended
                if (task / "stat").read_text().rpartition(")")[2].split()[0] != "S":
                    return False
        return True

    def is_alive(self):
        return self.process.poll() is None

    # Its end.

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self):
        """The exit code; a server that does not end is killed and is an error."""
        try:
            return self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"attnd did not end within {STOP_SECONDS_MAX} s:\n{self.log()}") from None

    def close_channels(self):
        for channel in self._channels:
            channel.close()
        self._channels.clear()

    def stop(self):
        """Ends it as an operator would; returns the exit code."""
        self.close_channels()
        if self.is_alive():
            self.signal()
        return self.wait()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        try:
            if kind is not None:
                self.close_channels()
                self.kill()
                print(f"attnd's log:\n{self.log()[-8000:]}")
                return
            code, log = self.stop(), self.log()
            if code != 0:
                raise AssertionError(f"attnd ended with {code}:\n{log[-8000:]}")
            for sign in ("AddressSanitizer", "runtime error:", "LeakSanitizer", "ThreadSanitizer"):
                if sign in log:
                    raise AssertionError(f"{sign} in attnd's log:\n{log[-8000:]}")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def eventually(what, condition, seconds_max=180):
    """Waits until condition() is true, and gives what it gave; the bound is there for hangs only."""
    end = time.monotonic() + seconds_max
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"still not so after {seconds_max} s: {what}")
        time.sleep(0.02)
    return value


__all__ = ["AttndServer", "BIN", "CALL_SECONDS_MAX", "ROOT", "eventually", "health_pb2"]
