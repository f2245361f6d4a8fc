"""deploy/OPERATIONS.md answers for every alert, and names what there is."""

import re

import yaml

from attnd_server import ROOT
from project import server_flags, text

MANUAL = text("deploy/OPERATIONS.md")


def anchor(heading):
    return re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")


def anchors(page):
    return {anchor(heading) for heading in re.findall(r"^#+ (.+)$", page, re.MULTILINE)}


def alerts():
    groups = yaml.safe_load(text("deploy/prometheus/rules.yml"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def test_every_alert_has_its_section():
    found = alerts()
    assert len(found) > 10
    assert set(re.findall(r"^### (.+)$", MANUAL, re.MULTILINE)) == set(found)
    for name, rule in found.items():
        assert rule["annotations"]["runbook"] == f"deploy/OPERATIONS.md#{anchor(name)}"
        assert len(MANUAL.split(f"\n### {name}\n")[1].split("\n#")[0]) > 100, name


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)]+)\)", MANUAL)
    assert len(links) > 10
    for link in links:
        file, _, section = link.partition("#")
        path = ROOT / "deploy" / (file or "OPERATIONS.md")
        assert path.exists(), link
        assert not section or section in anchors(path.read_text()), link


def test_flags_are_those_there_are():
    client = set(re.findall(r'"--(\w+)', "".join(path.read_text() for path in (ROOT / "client/cli").glob("*.cc"))))
    others = {"read", "health"}  # docker run's --read-only and --health-cmd
    used = set(re.findall(r"--(\w+)", MANUAL)) - others
    assert len(used) > 10
    assert not used - server_flags() - client, used - server_flags() - client
