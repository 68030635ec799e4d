"""Fakes of kind and k3d, which cannot run without Docker: programs that store clusters as small files.

Nothing answers at such a cluster's address, unless `reach` gives them all that of a real one.
"""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

PROGRAM = """#!{python}
import json, pathlib, sys
state = pathlib.Path({state!r})
words, kind = sys.argv[1:], pathlib.Path(sys.argv[0]).name
given = "" if sys.stdin.isatty() else sys.stdin.read()
with (state / "calls.jsonl").open("a") as file:
    file.write(json.dumps({{"words": words, "given": given}}) + "\\n")
failing = state / "failing"
if failing.exists() and "create" in words:
    sys.stderr.write("ERROR: failed to create cluster: " + failing.read_text() + "\\nStack trace: ...\\n")
    sys.exit(1)
clusters = state / "clusters"
clusters.mkdir(exist_ok=True)

def named():
    return words[words.index("--name") + 1] if "--name" in words else next(w for w in words[2:] if w[0] != "-")

def config(name):
    authority = (clusters / name).read_text()
    real = state / "real.json"
    if real.exists():
        content = json.loads(real.read_text())
        content["current-context"] = content["contexts"][0]["name"] = kind + "-" + name
        return json.dumps(content)
    return json.dumps({{"current-context": kind + "-" + name, "contexts": [{{"name": kind + "-" + name, "context": {{
        "cluster": "c", "user": "u"}}}}], "clusters": [{{"name": "c", "cluster": {{"server": "https://127.0.0.1:1",
        "certificate-authority-data": authority}}}}], "users": [{{"name": "u", "user": {{}}}}]}})

if "create" in words:
    (clusters / named()).write_text("authority-" + str(len((state / "calls.jsonl").read_text())))
    if "--kubeconfig" in words:
        pathlib.Path(words[words.index("--kubeconfig") + 1]).write_text(config(named()))
elif "delete" in words:
    (clusters / named()).unlink(missing_ok=True)
elif words[:2] == ["get", "clusters"]:
    print("\\n".join(path.name for path in clusters.iterdir()))
elif words[:2] == ["cluster", "list"]:
    print(json.dumps([{{"name": path.name, "serversCount": 1, "agentsCount": 1}} for path in clusters.iterdir()]))
else:
    print(config(named()))
"""


class Programs:
    """The folder on PATH with the fake programs, and their calls."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder.with_name("containers")
        self.folder.mkdir()
        self.state.mkdir()

    def install(self, name: str) -> None:
        """Puts a program on PATH."""
        path = self.folder / name
        path.write_text(PROGRAM.format(python=sys.executable, state=str(self.state)))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def reach(self, kubeconfig: dict[str, Any]) -> None:
        """Gives every cluster the address and the keys of a real one."""
        (self.state / "real.json").write_text(json.dumps(kubeconfig))

    def calls(self, verb: str) -> list[dict[str, Any]]:
        """Words and input of each call with that word."""
        lines = (self.state / "calls.jsonl").read_text().splitlines()
        return [call for call in map(json.loads, lines) if verb in call["words"]]

    @property
    def clusters(self) -> list[str]:
        """The names of all clusters."""
        return sorted(path.name for path in (self.state / "clusters").iterdir())
