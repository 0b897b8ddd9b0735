"""Does the engine run what was asked for? It changes some settings with a warning, or with nothing."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ops.gates import wanted
from ops.model.gate import Gate, Learned, Server
from ops.model.profile import Profile
from ops.model.verdict import Question, Verdict

ASK = Question("effective-config", "Are the settings in force those of the profile?")
FAKED = ("SGLANG_SIMULATE_",)
"""Source: SGLang 0.5.23 srt/environ.py (SGLANG_SIMULATE_ACC_LEN, _METHOD, _TOKEN_MODE): fakes acceptance."""
WHY = {
    "version": " (another engine is installed than the profile's stack pins)",
    "speculative_num_draft_tokens": " (with topk 1 the engine forces steps + 1)",
    "speculative_adaptive": " (dropped with only a warning where it is not supported)",
    "max_running_requests": " (left out, speculation caps it at 48)",
}
"""Source: SGLang 0.5.23 srt/arg_groups/speculative_hook.py, srt/speculative/adaptive_spec_params.py."""


def judge(server: Server, learned: Learned) -> Verdict:
    reply = server.http("GET", "/server_info", timeout_s=30.0)
    if reply.status != 200 or not isinstance(reply.body, dict):
        return ASK.inconclusive(f"/server_info answered {reply.status or reply.error}", "`ops logs`, then `ops gate`")
    processes = wanted.own(server.facts(), wanted.release(server))
    return ruling(expected(server.manifest, server.profile), reply.body, faked(processes))


def expected(manifest: Mapping[str, Any], profile: Profile) -> dict[str, Any]:
    """Return the settings asked for, by their names in `/server_info`."""
    settings = dict((manifest.get("expect") or {}).get("server_info") or {})
    stack = manifest.get("stack") or {}
    if settings and stack.get("engine_version") and not stack.get("engine_commit"):
        settings["version"] = stack["engine_version"]  # one that was built from a commit names itself as it likes
    if profile.speculation is not None:
        for threshold in ("accept_threshold_single", "accept_threshold_acc"):
            asked = getattr(profile.speculation, threshold)
            settings[f"speculative_{threshold}"] = 1.0 if asked is None else asked
    return settings


def faked(processes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the variables that fake the acceptance, in any process's environment."""
    return sorted({n for p in processes for n in (p.get("environ") or {}) if n.startswith(FAKED)})


def ruling(settings: Mapping[str, Any], info: Mapping[str, Any], fakes: list[str]) -> Verdict:
    """Judge `/server_info` against the settings asked for."""
    changes = [
        f"{key} is {info.get(key)!r}, asked for {asked!r}{WHY.get(key, '')}"
        for key, asked in settings.items()
        if not _same(asked, info.get(key))
    ]
    changes += list(_capped(settings, info))
    changes += [f"{name} is set: the acceptance would be faked" for name in fakes]
    evidence = {"compared": sorted(settings), "changes": changes, "version": info.get("version")}
    if not settings:
        return ASK.inconclusive(
            "the release's manifest names no settings", "deploy again: it is an old one", **evidence
        )
    if changes:
        return ASK.failed(
            "; ".join(changes),
            "ask for a value that the engine keeps (its log has a warning at the start), then deploy again",
            **evidence,
        )
    return ASK.passed(f"{len(settings)} settings as asked for", **evidence)


def _capped(settings: Mapping[str, Any], info: Mapping[str, Any]) -> Iterator[str]:
    """Name schedulers that take fewer requests at once than asked for (memory too small, or a cap)."""
    asked = settings.get("max_running_requests")
    for state in info.get("internal_states") or []:
        limit = state.get("effective_max_running_requests_per_dp")
        if asked is not None and limit is not None and limit < asked // int(info.get("dp_size") or 1):
            yield f"effective_max_running_requests_per_dp is {limit}, asked for {asked}"


def _same(asked: Any, seen: Any) -> bool:
    if isinstance(asked, float) and isinstance(seen, int | float):
        return math.isclose(asked, seen, abs_tol=1e-6)
    return bool(asked == seen) or (asked is False and seen is None)


GATE = Gate(ASK.name, ASK.question, 60, judge, needs=("alive", "itself"))
