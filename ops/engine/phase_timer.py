"""What share of the GPU's time drafting, verifying and extending take, from the engine's own timer. Pure.

The timer is SGLANG_ENABLE_METRICS_DEVICE_TIMER=1 with --enable-metrics. Source: SGLang 0.5.23, counter
`sglang:forward_execution_seconds_total{category}`; tests/recordings/sglang-0.5.17-h200/metrics_device_timer.txt.
"""

import re

COUNTER = "sglang:forward_execution_seconds_total"
PARTS = {
    "draft": ("eagle_draft", "eagle_draft_extend"),
    "verify": ("target_verify",),
    "decode": ("decode",),
    "extend": ("extend",),
}
"""Categories by part of a cycle. Source: SGLang 0.5.23 model_executor/runner (eager_runner.py, eagle_draft_*.py)."""
_LINE = re.compile(
    rf'^{COUNTER}\{{[^}}]*category="(?P<category>[^"]+)"[^}}]*\}} (?P<seconds>[0-9.eE+-]+)$', re.MULTILINE
)


def phase_shares(metrics: str) -> dict[str, float]:
    """Shares (they add up to 1) by part since the engine's start, summed over ranks; empty when there is no timer."""
    seconds: dict[str, float] = {}
    for found in _LINE.finditer(metrics):
        part = next((part for part, names in PARTS.items() if found["category"] in names), None)
        if part is not None:
            seconds[part] = seconds.get(part, 0.0) + float(found["seconds"])
    total = sum(seconds.values())
    return {part: round(seconds[part] / total, 4) for part in PARTS if seconds.get(part)} if total else {}


def shares_text(shares: dict[str, float]) -> str:
    """The shares as one phrase: `draft 24 %, verify 53 %, extend 23 %`."""
    return ", ".join(f"{part} {share:.0%}".replace("%", " %") for part, share in shares.items())
