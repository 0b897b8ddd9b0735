"""The yardstick of a host: measured once, kept with what it depends on, refused when any of that changed."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ops.bench.measure import METHOD, measure
from ops.gates import agreement, prompt_set
from ops.gates import wanted as wanted_release
from ops.model.gate import BaselineKey, BaselineRecord, Completion, Run, Server

RUNS = 40
"""Runs of the baseline arm a concurrency; a multiple of the number of speed prompts, so that all count alike."""
TOKENS_ALONE = 256
TOKENS_TOGETHER = 128


class NotMeasured(Exception):
    """The baseline could not be measured; says which request failed and how."""


def tokens_a_run(concurrency: int) -> int:
    """Return how many tokens each request of a measured run generates."""
    return TOKENS_ALONE if concurrency == 1 else TOKENS_TOGETHER


def prompt_set_digest(own: Mapping[str, str] | None = None) -> str:
    """Return the digest of everything about a run that the two arms must have in common."""
    return prompt_set.digest(METHOD, TOKENS_ALONE, TOKENS_TOGETHER, agreement.TOKENS, own=own)


def key(facts: Mapping[str, Any], manifest: Mapping[str, Any], release: str, concurrency: Sequence[int]) -> BaselineKey:
    """Return what a measurement on this host would depend on now.

    Args: facts: with `gpus` and the target's model folder. release: of the baseline profile, rendered for this host.
    """
    devices = (facts.get("gpus") or {}).get("devices") or []
    target = (facts.get("models") or {}).get("target") or {}
    return BaselineKey(
        gpu_uuids=tuple(sorted(str(device["uuid"]) for device in devices)),
        driver=",".join(sorted({str(device["driver"]) for device in devices})),
        stack_lock_sha256=wanted_release.stack_digest(manifest),
        target_sha256=str(target.get("weights_sha256") or target.get("config_sha256") or ""),
        release=release,
        prompt_set_sha256=prompt_set_digest(wanted_release.prompts(manifest)),
        concurrency=tuple(sorted(concurrency)),
    )


def problem(record: BaselineRecord | None, wanted: BaselineKey) -> str:
    """Say why `record` is no yardstick for a host and stack with key `wanted`; empty when it is one."""
    if record is None:
        return "the baseline was never measured on this host"
    for name in ("gpu_uuids", "driver", "stack_lock_sha256", "target_sha256", "release", "prompt_set_sha256"):
        before, now = getattr(record.key, name), getattr(wanted, name)
        if before != now:
            return f"{name} changed since the baseline was measured: {_short(before)} -> {_short(now)}"
    missing = [c for c in wanted.concurrency if len(record.runs.get(c, ())) < RUNS]
    if missing:
        return f"the baseline was not measured with {RUNS} runs at concurrency {', '.join(map(str, missing))}"
    return ""


def measure_baseline(
    server: Server,
    wanted: BaselineKey,
    *,
    greedy: Mapping[str, Completion] | None = None,
    today: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> BaselineRecord:
    """Measure the running non-speculative server: 40 runs at each concurrency, and its greedy answers.

    Raises: RunFailed, NotCold, NotMeasured.
    """
    answers = greedy if greedy is not None else agreement.answers(server)
    broken = {name: c.error or "no token ids" for name, c in answers.items() if not c.ok or not c.output_ids}
    if broken:
        raise NotMeasured(f"reference answers failed: {broken}")
    runs: dict[int, tuple[Run, ...]] = {}
    for concurrency in wanted.concurrency:
        server.say(f"measuring the baseline: {RUNS} runs at concurrency {concurrency}")
        measured(server, concurrency, 1)  # warm-up, not counted
        runs[concurrency] = tuple(measured(server, concurrency, RUNS))
    return BaselineRecord(
        key=wanted,
        profile=server.profile.name,
        measured_at=today().isoformat(timespec="seconds"),
        runs=runs,
        reference_ids={name: c.output_ids for name, c in answers.items()},
    )


def measured(server: Server, concurrency: int, runs: int, first: int = 0) -> list[Run]:
    """Measure runs of one arm in the project's own setting (the same for candidate and baseline).

    Raises: RunFailed, NotCold.
    """
    return measure(
        server,
        prompt_set.speed_prompts(server.profile.traffic.prompts),
        concurrency=concurrency,
        runs=runs,
        tokens=tokens_a_run(concurrency),
        timeout_s=2 * server.profile.gates.generation.timeout_s,
        first=first,
        temperature=server.profile.traffic.temperature,
        nonce=f"{secrets.randbelow(10**9):09d}",
    )


def _short(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def to_json(record: BaselineRecord) -> str:
    """Return the record as `baseline.json` holds it."""
    return record.model_dump_json(indent=1) + "\n"


def from_json(text: str) -> BaselineRecord:
    """Read `baseline.json`. Raises: ValueError naming what is wrong with it."""
    return BaselineRecord.model_validate_json(text)
