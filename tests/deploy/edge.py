"""The real Envoy with deploy/envoy's own configuration, in front of servers on the loopback.

Only places change: addresses, ports, folders of certificates, and servers as fixed addresses instead of a name. Limits,
retries, balancing, health checks and ejection are those that are deployed.
"""

import collections
import contextlib
import json
import pathlib
import shutil
import subprocess
import tempfile
import threading
import urllib.request
import uuid

import grpc
import yaml

import wire
from aftermath import random_request
from attnd.v1 import attention_pb2_grpc
from attnd_server import CALL_SECONDS_MAX, MESSAGE_BYTES_MAX, ROOT, AttndServer, eventually
from certificates import Authority

CONFIG = ROOT / "deploy" / "envoy"
NAME = "edge.example"  # in the edge's certificate
EDGE_NAME = "edge.attnd"  # in the certificate that it shows to servers


def envoy_binary():
    (found,) = (ROOT / "build" / "venv" / "lib").glob("python3*/site-packages/envoy/_bin/envoy")
    return found


def mounted_secret(folder, write):
    """What `write` puts into a folder of its own, seen in `folder` as Kubernetes shows a secret; anew by one rename."""
    folder.mkdir(exist_ok=True)
    version = folder / f"..{len(list(folder.iterdir()))}"
    write(version)
    for file in version.iterdir():
        if not (folder / file.name).is_symlink():
            (folder / file.name).symlink_to(f"..data/{file.name}")
    fresh = folder / "..fresh"
    fresh.symlink_to(version.name)
    fresh.rename(folder / "..data")


class Edge:
    """One Envoy; stopped at the end of a `with`.

    It speaks TLS with servers where an authority `upstream` signed theirs and its own certificate, and plaintext else.
    It is ready when `healthy` servers are; all of them unless told otherwise.
    """

    def __init__(self, ports, upstream=None, healthy=None):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="attnd-edge-"))
        self._channels = []
        self.authority = Authority(self.folder)
        mounted_secret(self.folder / "tls", lambda folder: self.authority.issue(folder, NAME))
        for file in CONFIG.glob("*.yaml"):
            moved = file.read_text().replace("/etc/envoy/", f"{self.folder}/")
            (self.folder / file.name).write_text(moved)
        config = self.folder / "envoy.yaml"
        config.write_text(yaml.safe_dump(self._placed(yaml.safe_load(config.read_text()), ports, upstream)))
        if upstream is not None:
            mounted_secret(self.folder / "upstream", lambda folder: upstream.issue(folder, EDGE_NAME))
        self._admin_file, self.log_path = self.folder / "admin", self.folder / "log"
        with open(self.folder / "access", "wb") as access, open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [envoy_binary(), "-c", config, "--admin-address-path", self._admin_file]
                + ["--disable-hot-restart", "--concurrency", "2", "--log-level", "warning"]
                # The access log is written out as soon as there is a line.
                + ["--file-flush-interval-msec", "20", "--drain-time-s", "1", "--parent-shutdown-time-s", "2"],
                stdin=subprocess.DEVNULL,
                stdout=access,
                stderr=log,
            )
        try:
            self.port = eventually("Envoy listens", self._listening)
            self.address = f"127.0.0.1:{self.port}"
            eventually("servers are healthy", lambda: len(self.healthy()) == (healthy or len(ports)))
        except BaseException:
            self.stop()
            print(self.log_path.read_text())
            raise

    @staticmethod
    def _placed(config, ports, upstream):
        config["admin"]["address"]["socket_address"]["port_value"] = 0
        (listener,) = config["static_resources"]["listeners"]
        listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": 0}
        (cluster,) = config["static_resources"]["clusters"]
        del cluster["cluster_type"]
        cluster["type"] = "STATIC"
        (group,) = cluster["load_assignment"]["endpoints"]
        group["lb_endpoints"] = [
            {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}
            for port in ports
        ]
        if upstream is None:
            del cluster["transport_socket"]
        return config

    def admin(self, path):
        address = self._admin_file.read_text()
        with urllib.request.urlopen(f"http://{address}/{path}", timeout=CALL_SECONDS_MAX) as reply:
            return reply.read().decode()

    def _listening(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"Envoy ended with {self.process.returncode}:\n{self.log_path.read_text()}")
        if not self._admin_file.exists():
            return None
        with contextlib.suppress(OSError):
            statuses = json.loads(self.admin("listeners?format=json")).get("listener_statuses", [])
            return statuses[0]["local_address"]["socket_address"]["port_value"] if statuses else None
        return None

    def hosts(self):
        """Port -> (why it gets no calls, its counters)."""
        (cluster,) = json.loads(self.admin("clusters?format=json"))["cluster_statuses"]
        found = {}
        for host in cluster["host_statuses"]:
            health = dict(host["health_status"])
            health.pop("eds_health_status", None)
            counters = {each["name"]: int(each.get("value", 0)) for each in host["stats"]}
            found[host["address"]["socket_address"]["port_value"]] = (health, counters)
        return found

    def healthy(self):
        return {port for port, (health, _) in self.hosts().items() if not any(health.values())}

    def counter(self, name):
        return int(self.admin(f"stats?filter=^{name}$").split(":")[1])

    def access_log(self):
        """Whole lines, in the order in which calls ended."""
        lines = (self.folder / "access").read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def ended(self, request_ids):
        """The access log's line of each of these calls; waits until each has one."""
        wanted = set(request_ids)

        def lines():
            found = {line["request_id"]: line for line in self.access_log() if line["request_id"] in wanted}
            return found if len(found) == len(wanted) else None

        return eventually("each call is in the access log", lines) if wanted else {}

    def channel(self, *options, root=None):
        channel = grpc.secure_channel(
            self.address,
            grpc.ssl_channel_credentials((root or self.authority.path).read_bytes()),
            options=[
                ("grpc.ssl_target_name_override", NAME),
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
                ("grpc.enable_http_proxy", 0),
                ("grpc.enable_retries", 0),  # what Envoy does is looked at
                *options,
            ],
        )
        self._channels.append(channel)
        return channel

    def stub(self, *options):
        return attention_pb2_grpc.AttentionServiceStub(self.channel(*options))

    def stop(self):
        for channel in self._channels:
            channel.close()
        self.process.terminate()
        try:
            self.process.wait(CALL_SECONDS_MAX)
        finally:
            self.process.kill()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.stop()
        if kind is not None:
            print(f"Envoy's log:\n{self.log_path.read_text()[-8000:]}")
            print("\n".join(str(line) for line in self.access_log()[-40:]))
        else:
            assert self.process.returncode == 0, self.log_path.read_text()
            shutil.rmtree(self.folder, ignore_errors=True)


class Named:
    """A stub whose every call carries this metadata."""

    def __init__(self, stub, **metadata):
        self._stub, self._metadata = stub, [(key.replace("_", "-"), value) for key, value in metadata.items()]

    def __getattr__(self, method):
        call = getattr(self._stub, method)
        return lambda *arguments, **named: call(*arguments, metadata=self._metadata, **named)


# Behind an edge: its few connections are all that a server sees.
SERVER_FLAGS = ("--threads=1", "--connection_percent_max=100")


class DeployedServer(AttndServer):
    """With mutual TLS, as it is deployed. The test's own calls come by a Unix socket, which stays plain."""

    def __init__(self, certificate, port=0, **more):
        self._certificate = certificate
        self._sockets = tempfile.TemporaryDirectory(prefix="attnd-edge-")
        super().__init__(
            *SERVER_FLAGS,
            f"--tls_certificate={certificate / 'tls.crt'}",
            f"--tls_key={certificate / 'tls.key'}",
            f"--tls_client_ca={certificate / 'ca.crt'}",
            listen=f"127.0.0.1:{port},unix:{self._sockets.name}/socket",
            **more,
        )

    def channel(self, target=None, *options):
        return super().channel(target or f"unix:{self._sockets.name}/socket", *options)

    def again(self):
        """Another one on the same port, when this one has ended."""
        return DeployedServer(self._certificate, self.port)


@contextlib.contextmanager
def servers_with_an_edge(count=3):
    """([servers], edge). A test may end servers; one that it kills it takes from the list."""
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attnd-edge-")))
        authority = Authority(folder)
        authority.issue(folder / "attnd", "attnd")
        servers = []
        stack.push(lambda *failure: _end(servers, failure))
        for _ in range(count):
            servers.append(DeployedServer(folder / "attnd"))
        yield servers, stack.enter_context(Edge([server.port for server in servers], upstream=authority))


def _end(servers, failure):
    with contextlib.ExitStack() as ends:  # of each of them, whatever the others' ends say
        for server in servers:
            ends.callback(server.__exit__, *failure)


class Load:
    """Callers who ask again as soon as they are answered, each with one call at a time on a connection of its own."""

    def __init__(self, edge, unary=4, streams=2):
        self._edge, self._stop = edge, threading.Event()
        self._request = random_request(2, 40, 16)
        self._expected = wire.attend(edge.stub(), self._request).raw
        self.calls = collections.deque()  # (request id, "good" or what else came)
        kinds = [wire.attend] * unary + [wire.attend_stream] * streams
        self._threads = [threading.Thread(target=self._work, args=(kind,)) for kind in kinds]
        for thread in self._threads:
            thread.start()

    def _work(self, kind):
        stub = self._edge.stub()
        while not self._stop.is_set():
            name = str(uuid.uuid4())
            try:
                raw = kind(Named(stub, x_request_id=name), self._request).raw
                outcome = "good" if raw == self._expected else "wrong bytes"
            except grpc.RpcError as failed:
                outcome = f"{kind.__name__}: {failed.code().name}: {failed.details()}"
            except wire.ProblemFailed as failed:
                outcome = f"{kind.__name__}: {failed.code.name}: {failed.text}"
            self.calls.append((name, outcome))

    def goes_on(self, calls=60):
        """Waits until so many more calls have ended."""
        wanted = len(self.calls) + calls
        eventually(f"{calls} more calls end", lambda: len(self.calls) >= wanted)

    def end(self):
        self._stop.set()
        for thread in self._threads:
            thread.join(CALL_SECONDS_MAX)
            assert not thread.is_alive()

    def bad(self):
        return {name: outcome for name, outcome in list(self.calls) if outcome != "good"}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


__all__ = ["DeployedServer", "EDGE_NAME", "Edge", "Load", "Named", "SERVER_FLAGS", "servers_with_an_edge"]
