"""Start the simulated engine for real: its own small environment, model folders, process and HTTP client."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from ops.sandbox.engine.install import Simulation, install_engine, write_simulation

RECORDINGS = Path(__file__).parents[1] / "recordings"
CPU = RECORDINGS / "sglang-0.5.23-cpu"
GPU = RECORDINGS / "sglang-0.5.17-h200"
TUNED = {
    "NCCL_PROTO": "LL",
    "NCCL_ALGO": "Ring",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_NTHREADS": "512",
}
KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "text_config": {
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "vocab_size": 163840,
        "max_position_embeddings": 131072,
    },
}
KIMI_DRAFT = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 7168,
    "max_position_embeddings": 4096,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]},
}


@dataclass
class Bench:
    """One prefix with an engine in it, and a target and a draft folder beside it."""

    prefix: Path
    python: Path
    target: Path
    draft: Path

    @property
    def simulation(self) -> Path:
        return self.prefix / "simulation"

    def settings(self, **changes: Any) -> None:
        write_simulation(self.simulation, Simulation(**{"time_scale": 100.0, "load_s": 0.5, **changes}))

    def draft_config(self, **changes: Any) -> None:
        (self.draft / "config.json").write_text(json.dumps({**KIMI_DRAFT, **changes}))

    def command(self, *flags: str) -> list[str]:
        return [str(self.python), "-m", "sglang.launch_server", *flags]


@dataclass
class Engine:
    process: subprocess.Popen[bytes]
    url: str
    log: Path
    headers: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def get(self, path: str, **options: Any) -> requests.Response:
        return requests.get(self.url + path, headers=self.headers, timeout=30, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> requests.Response:
        return requests.post(self.url + path, json=body, headers=self.headers, timeout=60, **options)

    def info(self) -> dict[str, Any]:
        loaded: dict[str, Any] = self.get("/server_info").json()
        return loaded

    def generate(self, prompt: str, tokens: int = 64, **sampling: Any) -> dict[str, Any]:
        params = {"temperature": 0, "max_new_tokens": tokens, **sampling}
        response = self.post("/generate", {"text": prompt, "sampling_params": params})
        assert response.status_code == 200, response.text
        loaded: dict[str, Any] = response.json()
        return loaded

    def wait_healthy(self, timeout_s: float = 20.0) -> None:
        wait_for(lambda: self.process.poll() is not None or self._up(), timeout_s, "the engine to serve")
        assert self.process.poll() is None, self.text()
        wait_for(lambda: "fired up and ready" in self.text(), timeout_s, "the end of the warm-up")

    def _up(self) -> bool:
        try:
            return self.get("/health").status_code == 200
        except requests.ConnectionError:
            return False

    def wait_for_exit(self, timeout_s: float = 20.0) -> int:
        return self.process.wait(timeout_s)

    def wait_for_line(self, words: str, timeout_s: float = 20.0) -> None:
        wait_for(lambda: words in self.text(), timeout_s, f"the log line {words!r}")

    def children(self) -> dict[int, str]:
        """Return pid -> title of the processes whose parent is the launcher."""
        return {pid: title(pid) for pid in child_pids(self.process.pid)}


def make_bench(folder: Path) -> Bench:
    prefix = folder / "venv"
    venv.EnvBuilder(symlinks=True, with_pip=False).create(prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = prefix / "lib" / version / "site-packages"
    install_engine(packages)
    dependencies = Path(requests.__file__).parents[1]
    (packages / "dependencies.pth").write_text(f"{dependencies}\n")
    bench = Bench(prefix, prefix / "bin" / "python", folder / "kimi-k2.5", folder / "kimi-k2.5-eagle3")
    for model in (bench.target, bench.draft):
        model.mkdir()
    (bench.target / "config.json").write_text(json.dumps(KIMI))
    bench.draft_config()
    bench.settings()
    return bench


def speculative_flags(bench: Bench, steps: int = 2, draft_tokens: int | None = None) -> list[str]:
    return [
        "--speculative-algorithm",
        "EAGLE3",
        "--speculative-draft-model-path",
        str(bench.draft),
        "--speculative-num-steps",
        str(steps),
        "--speculative-eagle-topk",
        "1",
        "--speculative-num-draft-tokens",
        str(draft_tokens if draft_tokens is not None else steps + 1),
    ]


@contextmanager
def start(
    bench: Bench,
    *flags: str,
    environment: Mapping[str, str] | None = None,
    tp: int = 2,
    port: int | None = None,
    headers: dict[str, str] | None = None,
) -> Iterator[Engine]:
    """Start an engine in a session of its own; whatever is left of it is killed at the end."""
    port = port or free_port()
    log = bench.prefix / f"engine-{port}.log"
    base = ["--model-path", str(bench.target), "--tp-size", str(tp), "--host", "127.0.0.1", "--port", str(port)]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "SGLANG_", "OPS_", "PYTHON"))}
    with log.open("wb") as out:
        process = subprocess.Popen(
            bench.command(*base, *flags),
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**clean, "SPT_NOENV": "1", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1", **(environment or TUNED)},
            start_new_session=True,
        )
    engine = Engine(process, f"http://127.0.0.1:{port}", log, headers or {})
    try:
        yield engine
    finally:
        for pid in session_pids(process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait(10)


def refused(bench: Bench, *flags: str, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a command line that must not start; return its exit status and everything it printed."""
    with start(bench, *flags, environment=environment) as engine:
        return engine.wait_for_exit(), engine.text()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(condition: Any, timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s} s for {what}")
        time.sleep(0.02)


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def alive(pid: int) -> bool:
    stat = _stat(pid)
    return bool(stat) and stat[0] != "Z"


def child_pids(pid: int) -> list[int]:
    return [p for p in _pids() if (stat := _stat(p)) and int(stat[1]) == pid]


def session_pids(session: int) -> list[int]:
    return [p for p in _pids() if (stat := _stat(p)) and int(stat[3]) == session and stat[0] != "Z"]


def title(pid: int) -> str:
    """Its command line; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def environ(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()
