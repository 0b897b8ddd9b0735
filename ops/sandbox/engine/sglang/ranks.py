"""The launcher's side of its children: start, ask, order, watch, kill.

Children are separate exec'd processes in the launcher's own process group, as the real engine's are.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from . import logs


@dataclass(frozen=True)
class Child:
    name: str
    process: "subprocess.Popen[str]"


def setproctitle_folder() -> str:
    spec = find_spec("setproctitle")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the simulated engine needs the package setproctitle in its environment")
    return str(Path(spec.origin).parent.parent)


class Ranks:
    """The scheduler ranks and the detokenizer of one server."""

    def __init__(
        self,
        ranks: int,
        folder: Path,
        base_gpu: int,
        withheld: Any,
        orphan_s: float | None,
        *,
        local: range | None = None,
    ) -> None:
        """``local``: which of the ranks run on this node, when not all do; only rank 0's node has a detokenizer."""
        self._withheld = withheld
        mine = local if local is not None else range(ranks)
        titles = ["sglang::scheduler"] if ranks == 1 else [f"sglang::scheduler_TP{i}" for i in mine]
        package = setproctitle_folder()
        self.schedulers = [
            self._start(f"scheduler_{rank}", title, package, folder / "gpu" / str(base_gpu + place), orphan_s)
            for place, (rank, title) in enumerate(zip(mine, titles, strict=True))
        ]
        self._others = [self._start("detokenizer", "sglang::detokenizer", package, None, orphan_s)] if 0 in mine else []

    def _start(self, name: str, title: str, package: str, gpu: Path | None, orphan_s: float | None) -> Child:
        options = {
            "title": title,
            "setproctitle": package,
            "gpu_folder": str(gpu) if gpu is not None else None,
            "orphan_s": orphan_s,
        }
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("rank.py")), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment(),
            text=True,
        )
        return Child(name, process)

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        if self._withheld:
            everything = self._withheld is True
            for name in list(environment):
                if name.startswith("NCCL_") if everything else name in self._withheld:
                    del environment[name]
        return environment

    @property
    def children(self) -> list[Child]:
        return [*self.schedulers, *self._others]

    def environments(self) -> Sequence[Mapping[str, str]]:
        """Return each rank's NCCL settings, as the rank itself sees them."""
        self._order("env")
        answers: list[Mapping[str, str]] = []
        for child in self.schedulers:
            assert child.process.stdout is not None
            answers.append(json.loads(child.process.stdout.readline() or "{}"))
        return answers

    def hold_memory(self, mib: int) -> None:
        self._order(f"mem {mib}")

    def fail(self) -> None:
        """Let rank 0 do what a scheduler does after an exception: send SIGQUIT to the launcher."""
        self._tell(self.schedulers[0], "fail")

    def kill_one(self) -> None:
        self.schedulers[-1].process.kill()

    def first_dead(self) -> tuple[Child, int] | None:
        """Return the first child that ended and its exit status."""
        for child in self.children:
            status = child.process.poll()
            if status is not None:
                return child, status
        return None

    def stop_schedulers(self, timeout_s: float) -> None:
        """Ask the schedulers to leave; SIGKILL what is left after ``timeout_s`` wall seconds."""
        self._order("exit")
        deadline = time.monotonic() + timeout_s
        for child in self.schedulers:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()

    def kill_tree(self, include_parent: bool) -> None:
        """SIGKILL all children, and this process last when asked.  Source: srt/utils/common.py."""
        pid = os.getpid()
        logs.line(f"kill_process_tree called: parent_pid={pid}, include_parent={include_parent}, pid={pid}")
        for child in self.children:
            if child.process.poll() is None:
                child.process.kill()
        for child in self.children:
            child.process.wait()
        if include_parent:
            os.kill(pid, signal.SIGKILL)

    def _order(self, order: str) -> None:
        for child in self.schedulers:
            self._tell(child, order)

    def _tell(self, child: Child, order: str) -> None:
        assert child.process.stdin is not None
        try:
            child.process.stdin.write(order + "\n")
            child.process.stdin.flush()
        except BrokenPipeError:
            # A rank that just died: the watchdog reports it, an order to it has no meaning.
            return
