"""Two sandboxes that serve one model together (`ops_nodes: 2`), and `ops --group pair` as a process."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from fleet_rig import Fleet
from rig import Client, Done, lay_down_project, until

from ops.sandbox.host import Sandbox

TIME_SCALE = 25.0
LOAD_S = 25.0


class Pair(Fleet):
    """`first` has rank 0, `second` rank 1; two ranks run on each."""

    def start(self, *words: str) -> Client:
        client = Client([*words, "--group", "pair", "--json"], self.project)
        self.clients.append(client)
        return client

    def deploy(self, profile: str, *words: str) -> Done:
        return self.ops("deploy", "--profile", profile, *words)

    def rows(self, *words: str) -> dict[str, dict[str, Any]]:
        """Each host's row of a command's document."""
        return {row["host"]: row for row in self.ops(*words).document["hosts"]}

    def wait_for(self, name: str, event: str, kind: str, since: int, within_s: float = 90.0) -> None:
        """Until the host's journal has a step's line after its `since`-th."""
        until(
            lambda: any(
                e["event"] == event and e.get("step", {}).get("kind") == kind for e in self.journal(name)[since:]
            ),
            f"{name}: {event} {kind}",
            within_s,
        )

    def everything_of(self, client: Client) -> list[int]:
        """The pids of a running command: its own, and one for each host."""
        leader = client.process.pid
        children = Path(f"/proc/{leader}/task/{leader}/children").read_text().split()
        return [leader, *map(int, children)]

    def kill_everything_of(self, client: Client) -> None:
        """As if the machine that `ops` runs on lost its power."""
        pids = self.everything_of(client)
        assert len(pids) == 1 + len(self.boxes), pids
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)  # nobody gets to notice that another one is gone
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert client.wait().code == -signal.SIGKILL

    def engine_titles(self, name: str) -> list[str]:
        """Launchers and ranks that live on a host."""
        titles = [process.title for process in self.boxes[name].processes()]
        return [title for title in titles if "sglang.launch_server" in title or "sglang::" in title]


@contextmanager
def pair(folder: Path, **timeouts: float) -> Iterator[Pair]:
    """A project whose group `pair` is two fresh sandboxes; everything is brought down at the end."""
    project = lay_down_project(folder, timeouts=timeouts)
    found = Pair(project, {})
    engine = yaml.safe_load((project / "envs" / "profiles" / "baseline.yaml").read_text())["engine"]
    found.change_profile("baseline", engine={**engine, "tensor_parallel": 4})
    hosts: dict[str, Any] = {}
    try:
        for name in ("first", "second"):
            box = Sandbox.up(name, project=project, time_scale=TIME_SCALE, noise="off", load_s=LOAD_S)
            found.boxes[name] = box
            hosts |= yaml.safe_load(box.inventory.read_text())["all"]["hosts"]
        groups = {"pair": {"hosts": dict.fromkeys(hosts), "vars": {"ops_nodes": 2}}}
        (project / "envs" / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts, "children": groups}}))
        yield found
    finally:
        found.close()
