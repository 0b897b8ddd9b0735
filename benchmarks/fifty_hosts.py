"""How long it takes to look at fifty hosts, and how much memory: `ops` beside Ansible and plain SSH, in one run.

    python benchmarks/fifty_hosts.py [--hosts 50] [--rounds 3]      (root, Debian: light hosts in namespaces)

The contenders take turns in every round, so that a busy moment of the machine hits all of them. Hosts have an SSH
server and a release whose engine does not run: the figures are those of reaching hosts and reading a release. Writes
fifty_hosts.json and fifty_hosts.md beside this file. Memory is the proportional set size of the whole process tree,
sampled every 50 ms; clients only.
"""

import argparse
import base64
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

import yaml  # noqa: E402

from ops.fleet.parallel import each  # noqa: E402
from ops.flows.hosts import Project, connected  # noqa: E402
from ops.model.inventory import HostSpec  # noqa: E402
from tests.lab.fleet import FleetHost, fleet  # noqa: E402
from tests.lab.machine import prepare  # noqa: E402

AT_ONCE = 32


@dataclass(frozen=True)
class Measured:
    """One command: wall seconds, processor seconds of its whole tree, its largest memory, how many hosts answered."""

    name: str
    wall_s: float
    cpu_s: float
    memory_mib: float
    answered: int


def main() -> None:
    """Run the rounds and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    wanted = parser.parse_args()
    prepare()
    write(play(wanted.hosts, wanted.rounds), wanted.hosts, wanted.rounds)


def play(how_many: int, rounds: int) -> list[Measured]:
    """Measure every contender `rounds` times on as many hosts. Raises: SystemExit when a host did not answer."""
    found: list[Measured] = []
    with fleet(how_many, init="supervisord") as hosts, tempfile.TemporaryDirectory() as folder:
        project = lay_down(Path(folder), hosts)
        for turn in range(rounds):
            contenders = commands(project, hosts)
            names = list(contenders)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                found.append(measure(name, contenders[name], project, len(hosts)))
                print(found[-1], file=sys.stderr, flush=True)
    return found


def lay_down(folder: Path, hosts: Sequence[FleetHost]) -> Path:
    """A project whose inventory has the hosts in the group `gpu`."""
    shutil.copytree(REPOSITORY / "envs", folder / "envs")
    entries = {host.name: {**host.inventory_entry(), "ops_supervisor": "supervisord"} for host in hosts}
    groups = {"gpu": {"hosts": dict.fromkeys(entries)}}
    (folder / "envs" / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": entries, "children": groups}}))
    project = Project(folder)
    each(project.hosts("gpu"), lambda spec: put_release(project, spec))
    return folder


def put_release(project: Project, spec: HostSpec) -> None:
    """Upload a release and make it current, without a server."""
    release = project.release(project.profile("eagle3-2step"), spec)
    with connected(spec) as host:
        files = [
            {
                "name": file.name,
                "mode": file.mode,
                "owner": None,
                "content": base64.b64encode(file.content).decode(),
                "sha256": hashlib.sha256(file.content).hexdigest(),
            }
            for file in release.files
        ]
        host.call("store.stage", instance_dir=spec.instance_dir, release=release.id, files=files, wait_s=120)
        for link in ("current", "last-good"):
            host.call("store.set_link", instance_dir=spec.instance_dir, link=link, release=release.id)


def commands(project: Path, hosts: Sequence[FleetHost]) -> dict[str, list[str]]:
    """The contenders. Each is as fast as its own options make it: forks and pipelining for Ansible."""
    addresses = "\n".join(f"{host.login().user}@{host.address} {host.login().known_hosts}" for host in hosts)
    (project / "addresses").write_text(addresses + "\n")
    options = " ".join(hosts[0].login().options()).replace(str(hosts[0].login().known_hosts), '"$1"')
    one = f'ssh {options} "$0" true && echo ok'
    return {
        "ops status --group": [sys.executable, "-m", "ops", "status", "--group", "gpu", "--json"],
        "ops verify --group": [sys.executable, "-m", "ops", "verify", "--group", "gpu", "--json"],
        "ansible -m ping": [sys.executable, "-m", "ansible", "adhoc", "-i", "envs/hosts.yml", "gpu", "-m", "ping"],
        "ssh true, in parallel": ["xargs", "-a", "addresses", "-P", str(AT_ONCE), "-n", "2", "sh", "-c", one],
    }


def measure(name: str, command: Sequence[str], project: Path, hosts: int) -> Measured:
    """Run one contender and watch it. Raises: SystemExit when a host did not answer: no figure for half a job."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(project), "PYTHONPATH": str(REPOSITORY)}
    environment |= {"ANSIBLE_FORKS": str(AT_ONCE), "ANSIBLE_PIPELINING": "1", "LANG": "C.UTF-8"}
    begun, before = time.monotonic(), os.times()
    with (project / "out").open("w+") as out, (project / "err").open("w+") as error:
        process = subprocess.Popen(command, cwd=project, env=environment, stdout=out, stderr=error)
        watcher = Memory(process.pid)
        process.wait()
        wall_s, after = time.monotonic() - begun, os.times()
        watcher.stop()
        out.seek(0)
        error.seek(0)
        answered = count(name, out.read())
        if answered != hosts:
            out.seek(0)
            said = f"{error.read()[-2000:]}\n{out.read()[:2000]}"
            raise SystemExit(f"{name}: {answered} of {hosts} hosts answered\n{said}")
    cpu_s = after.children_user - before.children_user + after.children_system - before.children_system
    return Measured(name, round(wall_s, 2), round(cpu_s, 2), round(watcher.largest_kib / 1024, 1), answered)


def count(name: str, text: str) -> int:
    """How many hosts really answered."""
    if name.startswith("ops status"):
        return sum(row["state"] != "unknown" for row in json.loads(text)["hosts"])
    if name.startswith("ops verify"):
        return sum(row["gate"] is not None for row in json.loads(text)["hosts"])
    return text.count("| SUCCESS =>") if name.startswith("ansible") else text.count("ok\n")


class Memory:
    """Samples the memory of a process and all below it."""

    def __init__(self, pid: int) -> None:
        self.largest_kib = 0
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the sampling."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.is_set():
            self.largest_kib = max(self.largest_kib, sum(map(_pss_kib, _tree(self._pid))))
            self._ended.wait(0.05)


def _tree(pid: int) -> list[int]:
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        for tasks in Path(f"/proc/{found[-1]}/task").glob("*/children"):
            try:
                todo += [int(child) for child in tasks.read_text().split()]
            except OSError:
                continue
    return found


def _pss_kib(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)


def write(found: Sequence[Measured], hosts: int, rounds: int) -> None:
    """Write all figures as JSON and their medians as a table."""
    machine: dict[str, Any] = {
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
    machine["load_average_at_end"] = os.getloadavg()
    document: Mapping[str, Any] = {
        "hosts": hosts,
        "rounds": rounds,
        "machine": machine,
        "runs": list(map(asdict, found)),
    }
    here = Path(__file__).resolve().parent
    (here / "fifty_hosts.json").write_text(json.dumps(document, indent=1) + "\n")
    lines = [
        "# Looking at fifty hosts\n",
        f"Written by `python benchmarks/fifty_hosts.py`: {hosts} light hosts on one machine ({os.cpu_count()} cores, "
        f"load average {os.getloadavg()[0]:.1f} at the end), medians of {rounds} rounds, contenders in turn. "
        "The hosts' own work is on the same cores.\n\n",
        "| command | wall s | processor s | memory MiB |\n|---|---|---|---|\n",
    ]
    for name in dict.fromkeys(run.name for run in found):
        runs = [run for run in found if run.name == name]
        figures = (statistics.median(getattr(run, key) for run in runs) for key in ("wall_s", "cpu_s", "memory_mib"))
        lines.append(f"| `{name}` | " + " | ".join(f"{figure:.1f}" for figure in figures) + " |\n")
    (here / "fifty_hosts.md").write_text("".join(lines))


if __name__ == "__main__":
    main()
