"""`ops` as an operator uses it on lab hosts: a throw-away project, the command line as a process, and outside evidence.

Everything that proves something is read from outside `ops`: over `docker exec`, or by asking the engine from here.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .hosts import Host
from .login import Inventory
from .machine import REPOSITORY
from .vm import Vm

PROFILE = "eagle3-2step"
PORT = 8000
INSTANCE_DIR = "/opt/ops/default"
UNIT = "/etc/systemd/system/sglang-default.service"

LEFT_OUT = {
    "agreement": "proved by the gate's own tests; the lab tests what a host does to a release",
    "long-context": "proved by the gate's own tests; the lab tests what a host does to a release",
    "soak": "proved by the gate's own tests; the lab tests what a host does to a release",
    "speed": "measured by the test itself, before and after",
}
"""Checks that take long and say nothing about the host."""


@dataclass(frozen=True)
class Answer:
    """How one `ops` command ended."""

    code: int
    document: Mapping[str, Any]
    stderr: str

    @property
    def host(self) -> Mapping[str, Any]:
        """Return the result of the only host, or say what came instead."""
        hosts = self.document["hosts"]
        assert len(hosts) == 1, f"{len(hosts)} hosts in the answer: {self.document}\n{self.stderr}"
        found: Mapping[str, Any] = hosts[0]
        return found

    def outcome_of(self, check: str) -> str:
        """Return how `ops verify` answered one of its questions."""
        return str(self.check(check)["outcome"])

    def check(self, name: str) -> Mapping[str, Any]:
        """Return one verdict of `ops verify` or of the gate."""
        checks: Sequence[Mapping[str, Any]] = self.host["gate"]["checks"]
        return next(check for check in checks if check["name"] == name)

    def wanting(self) -> set[str]:
        """Return the names of the checks that failed."""
        return {check["name"] for check in self.host["gate"]["checks"] if check["outcome"] == "fail"}

    def __str__(self) -> str:
        return f"exit {self.code}\n{json.dumps(self.document, indent=1)[:6000]}\n{self.stderr[-4000:]}"


class Operator:
    """A project folder with lab hosts in its inventory, and the `ops` command in it."""

    def __init__(self, folder: Path, hosts: Mapping[str, Inventory]) -> None:
        self.folder = folder
        shutil.copytree(REPOSITORY / "envs", folder / "envs")
        self.hosts = dict(hosts)
        self._write_inventory()
        self.change_profile("baseline", gates={"skip": LEFT_OUT})

    @classmethod
    def of(cls, folder: Path, *hosts: Host | Vm, **variables: str | int | float | bool) -> "Operator":
        """Return an operator of these hosts; `variables` are added to each of their inventory entries."""
        return cls(folder, {host.name: {**host.inventory_entry(), **variables} for host in hosts})

    def _write_inventory(self) -> None:
        inventory = {"all": {"hosts": self.hosts}}
        (self.folder / "envs/hosts.yml").write_text(yaml.safe_dump(inventory), encoding="utf-8")

    def set_variables(self, host: str, **variables: str | int | float | bool) -> None:
        """Change a host's inventory entry."""
        self.hosts[host] |= variables
        self._write_inventory()

    def change_profile(self, profile: str, **keys: Any) -> None:
        """Merge `keys` into a profile's file, one level deep."""
        file = self.folder / "envs/profiles" / f"{profile}.yaml"
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        for key, value in keys.items():
            merged = isinstance(value, dict) and isinstance(content.get(key), dict)
            content[key] = {**content[key], **value} if merged else value
        file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")

    def process(self, *words: str) -> "subprocess.Popen[str]":
        """Start `ops` with `words` and return the process; its own session, so that a test may kill it alone."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("OPS_", "NCCL_", "SGLANG_"))}
        return subprocess.Popen(
            [sys.executable, "-m", "ops", *words],
            cwd=self.folder,
            env=environment | {"PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ops(self, *words: str, timeout_s: float = 240) -> Answer:
        """Run `ops` with `words` and `--json`."""
        return self.finished(self.process(*words, "--json"), timeout_s)

    @staticmethod
    def finished(process: "subprocess.Popen[str]", timeout_s: float = 240) -> Answer:
        """Wait for a started `ops` and return how it ended."""
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate()
            raise AssertionError(f"ops did not end within {timeout_s} s\n{stdout[-2000:]}\n{stderr[-4000:]}") from None
        return Answer(process.returncode, json.loads(stdout) if stdout.strip() else {}, stderr)

    def deploy(self, host: Host | Vm, profile: str = PROFILE, timeout_s: float = 240) -> str:
        """Deploy `profile`, which must work, and return the release's id."""
        answer = self.ops("deploy", "--profile", profile, "--host", host.name, timeout_s=timeout_s)
        assert answer.code == 0, answer
        return str(answer.host["release"])


def ranks(host: Host | Vm) -> dict[int, dict[str, str]]:
    """Return each scheduler rank's pid and environment, as the kernel shows it."""
    script = (
        "for p in /proc/[0-9]*; do case $(tr -d '\\0' <$p/cmdline 2>/dev/null) in sglang::scheduler*) "
        "echo \"PID=${p#/proc/}\"; tr '\\0' '\\n' <$p/environ;; esac; done"
    )
    found: dict[int, dict[str, str]] = {}
    pid = 0
    for line in _root(host, "sh", "-c", script).splitlines():
        name, equals, value = line.partition("=")
        if name == "PID":
            pid = int(value)
            found[pid] = {}
        elif equals:
            found[pid][name] = value
    return found


def _root(host: Host | Vm, *command: str) -> str:
    # The engine's user has its processes to itself where root lacks SYS_PTRACE, so the evidence is taken as it.
    if isinstance(host, Vm):
        return host.ssh("sudo", *command)
    return host.exec(*command)


def gpu_holders(host: Host | Vm) -> set[int]:
    """Return the pids that hold GPU memory."""
    listed = _root(host, "nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader")
    return {int(line) for line in listed.split()}


def links(host: Host | Vm) -> dict[str, str]:
    """Return what current, last-good, baseline and pending point to; absent ones are left out."""
    script = f"cd {INSTANCE_DIR} && for l in current last-good baseline pending; do " + (
        'if t=$(readlink $l); then echo "$l ${t##*/}"; fi; done'
    )
    return dict(line.split() for line in _root(host, "sh", "-c", script).splitlines())


def events(host: Host | Vm) -> list[dict[str, Any]]:
    """Return the host's journal."""
    text = _root(host, "sh", "-c", f"cat {INSTANCE_DIR}/journal.jsonl 2>/dev/null || true")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def asked(
    address: str, path: str, body: Mapping[str, Any] | None = None, port: int = PORT, timeout_s: float = 10
) -> Any:
    """Ask the engine from this machine. Raises: OSError when it does not answer."""
    request = urllib.request.Request(f"http://{address}:{port}{path}")
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        text = answer.read().decode()
    return json.loads(text) if text.startswith(("{", "[")) else text


def wait_serving(host: Host, deadline_s: float = 90) -> float:
    """Wait until the engine answers a generation and return the seconds it took; no `ops` involved."""
    began = time.monotonic()
    while True:
        try:
            generate(host.address, tokens=4)
        except OSError as error:
            if time.monotonic() - began > deadline_s:
                raise AssertionError(f"{host.name} does not serve within {deadline_s} s: {error}") from error
            time.sleep(0.1)
        else:
            return time.monotonic() - began


def generate(address: str, *, tokens: int, port: int = PORT) -> Mapping[str, Any]:
    """Return the answer to one greedy request of exactly `tokens` tokens."""
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    found: Mapping[str, Any] = asked(address, "/generate", {"text": "Say it.", "sampling_params": sampling}, port)
    return found


def tokens_per_second(host: Host, runs: int = 3, tokens: int = 500) -> float:
    """Measure the decode rate at one user in the engine's own seconds: the median of `runs` after a warm-up."""
    scale = host.settings.simulation.time_scale
    generate(host.address, tokens=16)
    rates = []
    for _ in range(runs):
        began = time.monotonic()
        generate(host.address, tokens=tokens)
        rates.append(tokens / ((time.monotonic() - began) * scale))
    return sorted(rates)[len(rates) // 2]
