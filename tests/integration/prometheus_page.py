"""/metrics as numbers, and Debian's Prometheus tools, which deploy/setup.sh unpacks under build/debian."""

import re
import subprocess

from attnd_server import ROOT

PROMETHEUS = ROOT / "build" / "debian" / "prometheus" / "usr" / "bin"
SAMPLE = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Page:
    """The samples of one scrape."""

    def __init__(self, server):
        status, self.text = server.admin("/metrics")
        assert status == 200
        self.samples = []
        for line in self.text.splitlines():
            if not line.startswith("#"):
                found = SAMPLE.match(line)
                labels = dict(LABEL.findall(found["labels"] or ""))
                self.samples.append((found["name"], labels, float(found["value"])))

    def sum(self, name, **labels):
        """Over all samples of that name that have these labels; a name that is not there at all is a mistake."""
        named = [(have, value) for sample, have, value in self.samples if sample == name]
        assert named, f"no {name} in:\n{self.text}"
        return sum(value for have, value in named if labels.items() <= have.items())


def promtool(*arguments, text=None):
    """Its output; what it complains of is an error."""
    command = [PROMETHEUS / "promtool", *map(str, arguments)]
    ended = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0 and not ended.stderr.strip(), ended.stdout + ended.stderr
    return ended.stdout
