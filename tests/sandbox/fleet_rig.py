"""Three sandboxes in one inventory as a cheap fleet: `ops` and `ansible-playbook` as processes, seen from outside."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rig import REPOSITORY, Client, Done, bring_down, journal_of, lay_down_project

from ops.sandbox.host import Sandbox

NAMES = ("alpha", "beta", "gamma")
TIME_SCALE = 20.0
PLAYBOOKS = REPOSITORY / "playbooks"


@dataclass(frozen=True)
class Played:
    """An `ansible-playbook` that ended."""

    code: int
    stdout: str
    stderr: str

    def recap(self, key: str) -> dict[str, int]:
        """One column of the recap by host, for example `changed`."""
        found = re.findall(rf"^(\S+)\s+: .*\b{key}=(\d+)", self.stdout, re.MULTILINE)
        return {host: int(count) for host, count in found}

    def __str__(self) -> str:
        return f"exit {self.code}\n{self.stdout[-6000:]}\n{self.stderr[-2000:]}"


@dataclass
class Fleet:
    """A project and its three hosts."""

    project: Path
    boxes: dict[str, Sandbox]
    clients: list[Client] = field(default_factory=list)

    def play(self, playbook: str, *words: str, environment: Mapping[str, str] | None = None) -> Played:
        """Run a playbook by hand, as a person does."""
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        done = subprocess.run(
            [sys.executable, "-m", "ansible", "playbook", "-i", "envs/hosts.yml", str(PLAYBOOKS / playbook), *words],
            cwd=self.project,
            env={**kept, "PYTHONPATH": str(REPOSITORY), "ANSIBLE_NOCOLOR": "1", **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=420,
            check=False,
        )
        return Played(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str) -> Client:
        client = Client([*words, "--group", "gpu", "--json"], self.project)
        self.clients.append(client)
        return client

    def ops(self, *words: str, within_s: float = 420) -> Done:
        return self.start(*words).wait(within_s)

    def alone(self, *words: str, within_s: float = 120) -> Done:
        """Run an `ops` command without a group."""
        self.clients.append(Client([*words, "--json"], self.project))
        return self.clients[-1].wait(within_s)

    def change_profile(self, profile: str, **keys: Any) -> None:
        """Replace top-level keys of a profile's file."""
        file = self.project / "envs" / "profiles" / f"{profile}.yaml"
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | keys))

    def serving(self) -> dict[str, str | None]:
        """Profile of the release that each host's links and processes agree on; None where they do not."""
        return {name: self._serves(box) for name, box in self.boxes.items()}

    def _serves(self, box: Sandbox) -> str | None:
        current = self.link(box.name, "current")
        if current is None or self.link(box.name, "pending") is not None:
            return None
        marker = f"OPS_RELEASE={current}".encode()
        engines = [process for process in box.processes() if "sglang.launch_server" in process.title]
        held = [marker in Path(f"/proc/{p.pid}/environ").read_bytes().split(b"\0") for p in engines]
        return current.rpartition("-")[0] if held == [True] else None

    def link(self, name: str, link: str) -> str | None:
        path = self.boxes[name].root / "default" / link
        return path.readlink().name if path.is_symlink() else None

    def admitted(self, name: str) -> str | None:
        """The release that takes traffic there."""
        try:
            text = (self.boxes[name].root / "default" / "admitted").read_text()
        except FileNotFoundError:
            return None
        return str(json.loads(text)["release"])

    def journal(self, name: str) -> list[dict[str, Any]]:
        return journal_of(self.boxes[name].root / "default")

    def close(self) -> None:
        for client in self.clients:
            if client.running():
                client.process.kill()
                client.process.communicate()
        bring_down(self.project)


@contextmanager
def fleet(folder: Path, names: Sequence[str] = NAMES, **timeouts: float) -> Iterator[Fleet]:
    """A project whose inventory has fresh hosts in the group `gpu`; everything is brought down at the end."""
    project = lay_down_project(folder, timeouts=timeouts)
    found = Fleet(project, {})
    hosts: dict[str, Any] = {}
    try:
        for name in names:
            box = Sandbox.up(name, project=project, time_scale=TIME_SCALE, noise="off", load_s=10)
            found.boxes[name] = box
            hosts |= yaml.safe_load(box.inventory.read_text())["all"]["hosts"]
        groups = {"gpu": {"hosts": dict.fromkeys(hosts)}}
        (project / "envs" / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts, "children": groups}}))
        yield found
    finally:
        found.close()


def files(root: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes, links with their targets."""
    found: dict[str, bytes] = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(root))] = str(path.readlink()).encode()
        elif path.is_file():
            found[str(path.relative_to(root))] = path.read_bytes()
    return found
