"""Values for the tests of the gate's judgements: recordings, completions, process lists."""

import json
from pathlib import Path
from typing import Any

from ops.model.gate import Completion

RECORDINGS = Path(__file__).parents[1] / "recordings"
CPU = RECORDINGS / "sglang-0.5.23-cpu"
GPU = RECORDINGS / "sglang-0.5.17-h200"
RELEASE = "eagle3-2step-0123456789ab"
PROSE = "The survey was made on foot, and each wall appears twice in it, once from either side of the field."


def recorded(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def answer(text: str = PROSE, tokens: int = 64, **changes: Any) -> Completion:
    values: dict[str, Any] = {
        "status": 200,
        "error": "",
        "text": text,
        "output_ids": tuple(range(tokens)),
        "prompt_tokens": 80,
        "completion_tokens": tokens,
        "cached_tokens": 0,
        "finish_reason": "length",
        "started_s": 0.0,
        "first_token_s": 0.18,
        "ended_s": 0.9,
        "meta": {},
    }
    return Completion(**{**values, **changes})


def from_recording(body: dict[str, Any]) -> Completion:
    meta = body["meta_info"]
    return answer(
        body["text"],
        meta["completion_tokens"],
        output_ids=tuple(body["output_ids"]),
        prompt_tokens=meta["prompt_tokens"],
        meta=meta,
    )


def process(pid: int, ppid: int, title: str, environ: dict[str, str] | None, release: str = RELEASE) -> dict[str, Any]:
    return {
        "pid": pid,
        "ppid": ppid,
        "title": title,
        "environ": environ,
        "release": release,
        "starttime": 1,
        "user": "u",
    }


def facts(ranks: int = 2, environ: dict[str, str] | None = None, **changes: Any) -> dict[str, Any]:
    held = {"OPS_RELEASE": RELEASE, **(environ or {})}
    own = [process(100, 1, "python -m sglang.launch_server", held)]
    own += [process(101 + i, 100, f"sglang::scheduler_TP{i}", held) for i in range(ranks)]
    found = {
        "engine": {"state": "running", "pid": 100, "started_at": 1000.0, "detail": ""},
        "processes": own,
        "listeners": [{"port": 8000, "address": "127.0.77.1", "pid": 100, "title": "python", "user": "u"}],
        "nccl_files": [],
        "journal": [],
        "models": {},
    }
    return {**found, **changes}
