"""deploy/prometheus against the real Prometheus of Debian: rules, and a dashboard whose every query has data."""

import contextlib
import json
import math
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import grpc
import pytest

import wire
from aftermath import computes, good_call, long_request, random_request
from attnd.v1 import attention_pb2 as pb
from attnd_server import CALL_SECONDS_MAX, ROOT, AttndServer, eventually
from prometheus_page import PROMETHEUS, Page, promtool

FOLDER = ROOT / "deploy" / "prometheus"
RULES = (FOLDER / "rules.yml").read_text()
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]


def test_rules_hold_what_their_tests_say():
    assert "SUCCESS" in promtool("check", "rules", FOLDER / "rules.yml")
    assert "SUCCESS" in promtool("test", "rules", FOLDER / "rules_test.yml")
    promtool("check", "config", FOLDER / "prometheus.yml")


def test_every_alert_says_what_to_do_and_is_tested():
    tests = (FOLDER / "rules_test.yml").read_text()
    alerts = re.split(r"\n +- alert: ", RULES)[1:]
    assert len(alerts) > 10
    for alert in alerts:
        name = alert.split("\n", 1)[0]
        assert f"runbook: deploy/OPERATIONS.md#{name.lower()}\n" in alert + "\n", name
        for key in ("summary: ", "description: ", "severity: "):
            assert key in alert, (name, key)
        assert f'"{name}"' in tests or f"alertname: {name}\n" in tests, name


def test_every_metric_that_is_asked_for_is_there():
    with AttndServer(admin=True) as server:
        there = {name for name, _, _ in Page(server).samples}
    rules = re.findall(r"expr: ((?:.|\n)*?)\n+ +(?:for|labels|- record|annotations|- name)", RULES)
    expressions = "\n".join(QUERIES + rules)
    asked = set(re.findall(r"(?<![:\w])(?:attnd|process)_\w+(?![:\w])", expressions))
    assert len(asked) > 30
    assert not asked - there
    # And nothing is counted that neither an alert nor a panel shows.
    shown = {name.removesuffix("_bucket").removesuffix("_sum") for name in asked}
    assert not {re.sub("_(bucket|sum|count)$", "", name) for name in there} - shown


class Prometheus:
    """The real one, on a loopback port that it chooses, reading one attnd every second."""

    def __init__(self, folder, server):
        config = folder / "prometheus.yml"
        example = (FOLDER / "prometheus.yml").read_text()
        config.write_text(
            example.replace("15s", "1s")
            .replace("[rules.yml]", f"[{FOLDER}/rules.yml]")
            .replace("127.0.0.1:9090", f"127.0.0.1:{server.admin_port}")
        )
        self.log = folder / "prometheus.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [
                    PROMETHEUS / "prometheus",
                    f"--config.file={config}",
                    f"--storage.tsdb.path={folder}/data",
                    "--web.listen-address=127.0.0.1:0",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
            )

    def address(self):
        assert self.process.poll() is None, self.log.read_text()
        found = re.search(r"Listening on.* address=(127\.0\.0\.1:\d+)", self.log.read_text())
        return found and found[1]

    def get(self, path, **query):
        url = f"http://{self.address()}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(url, timeout=CALL_SECONDS_MAX) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"{query}: {refused.read().decode()}") from None

    def values(self, query):
        """The finite values of an instant query."""
        found = [float(each["value"][1]) for each in self.get("query", query=query)["result"]]
        return [value for value in found if math.isfinite(value)]

    def close(self):
        self.process.terminate()
        self.process.wait(CALL_SECONDS_MAX)


def concrete(query, interval="30s"):
    """As Grafana would ask it."""
    return query.replace("$__rate_interval", interval).replace("$instance", ".*").replace("$job", "attnd")


def some_of_everything(server):
    good_call(server)
    for rows in (5, 300, 1000):
        wire.attend(server.stub(), random_request(2, rows, 64))
    with pytest.raises(grpc.RpcError):
        wire.attend(server.stub(), pb.AttendRequest())
    with computes(server, 0.05):
        call = server.stub().Attend.future(long_request(16384), timeout=CALL_SECONDS_MAX)
    call.cancel()
    assert server.admin("/readyz") == (200, "ok\n")
    server.close_channels()


def test_every_query_of_the_dashboard_has_data(tmp_path):
    assert len(QUERIES) > 40
    with AttndServer(admin=True) as server, contextlib.closing(Prometheus(tmp_path, server)) as prometheus:
        eventually("it listens", prometheus.address)
        some_of_everything(server)

        def without_data():
            some_of_everything(server)  # a rate needs a change between two samples
            return [query for query in QUERIES if not prometheus.values(concrete(query))]

        eventually("every query has data", lambda: not without_data(), seconds_max=300)
        # What it read is what the server says.
        counted = "sum(attnd_requests_total)"
        eventually("all is read", lambda: prometheus.values(counted) == [Page(server).sum("attnd_requests_total")])
        rules = prometheus.get("rules")["groups"]
        unhealthy = [rule for group in rules for rule in group["rules"] if rule["health"] == "err"]
        assert rules and not unhealthy
        good_call(server)
