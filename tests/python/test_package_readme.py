"""The package's page: its programs run, one after another, and print what their comments say."""

import re

from attnd_server import ROOT

README = (ROOT / "client" / "python" / "README.md").read_text()
DEFAULT_ADDRESS = "127.0.0.1:50051"


def test_every_example_runs(server, capsys):
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    program = "\n".join(examples)
    assert len(examples) >= 5 and program.count(DEFAULT_ADDRESS) == 2
    names = {"__name__": "example"}
    exec(compile(program.replace(DEFAULT_ADDRESS, server.address), "README.md", "exec"), names)
    printed = capsys.readouterr().out
    promised = re.findall(r"print\(.*\)  # (.*)", program)
    assert promised and all(f"{line}\n" in printed for line in promised)
    assert names["output"].shape == (1, 8, 77, 64) and [o.shape[2] for o in names["outputs"]] == [1, 7, 77]
    names["client"].close()


def test_every_link_leads_somewhere():
    links = re.findall(r"\]\(([\w/.]+)\)", README)
    assert links and not [link for link in links if not (ROOT / "client" / "python" / link).exists()]
