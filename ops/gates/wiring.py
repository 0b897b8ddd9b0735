"""Are target and draft the pinned ones, wired as pinned?

A draft that reads other layers serves without any error, and on some pairs accepts nearly as much (measured: 2.66
right, 2.66 wrong), so the configuration itself is compared; acceptance is only the second net.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ops.model.gate import Gate, Learned, Server
from ops.model.profile import Profile
from ops.model.verdict import Question, Verdict

ASK = Question("wiring", "Are target and draft on the host the pinned ones, with the pinned layer ids?")
IDS = "eagle_aux_hidden_state_layer_ids"


def judge(server: Server, learned: Learned) -> Verdict:
    models = server.facts().get("models") or {}
    stored = {k: v for k, v in server.stored.expectations.items() if k.startswith("digest/")}
    verdict = ruling(server.profile, models, stored)
    if verdict.passed:
        learned.expectations |= digests(server.profile, models)
    return verdict


def ruling(profile: Profile, models: Mapping[str, Any], stored: Mapping[str, Any]) -> Verdict:
    """Judge the folders' configurations against the profile's pins and the digests of the first good deploy."""
    roles = ["target", "draft"] if profile.speculation else ["target"]
    absent = [role for role in roles if not (models.get(role) or {}).get("config")]
    if absent:
        return ASK.inconclusive(
            f"config.json of the {' and the '.join(absent)} cannot be read on the host",
            "`ops doctor` shows the model folders; check path and permissions",
            models={role: (models.get(role) or {}).get("path") for role in roles},
        )
    unread = list(_unread(profile, models))
    problems = list(_target(profile, models["target"]))
    if profile.speculation:
        problems += _draft(profile, models["draft"])
    now = digests(profile, models)
    changed = [key for key in now if stored.get(key, now[key]) != now[key]]
    problems += [f"{key.removeprefix('digest/')} changed since it was first good" for key in changed]
    evidence = {
        "digests": now,
        "recorded_now": sorted(now.keys() - stored.keys()),
        "layer_ids": captured(models["draft"]["config"]) if profile.speculation else None,
        "problems": problems,
    }
    if problems:
        return ASK.failed(
            "; ".join(problems),
            "put the pinned model back on the host, or pin the new one in the profile after measuring it",
            **evidence,
        )
    if unread:
        return ASK.inconclusive(
            f"pinned, but not read on the host: {', '.join(unread)}",
            "`ops verify` computes the digests; or leave the pin out, then it is recorded at the first good deploy",
            **evidence,
        )
    first = " (digests recorded: first time on this host)" if evidence["recorded_now"] else ""
    return ASK.passed(f"as pinned{first}", **evidence)


def captured(config: Mapping[str, Any]) -> list[int] | None:
    """Return the layer ids that the engine reads from a draft's config.json; None: it would use its own default.

    Source: SGLang 0.5.23 srt/speculative/spec_aux_hidden_state.py:183-197: only `eagle_config`, silently.
    """
    eagle = config.get("eagle_config")
    ids = eagle.get(IDS) if isinstance(eagle, dict) else None
    return list(ids) if isinstance(ids, list) and ids else None


def digests(profile: Profile, models: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests seen on the host, by the key under which they are remembered."""
    found = {}
    for role in ("target", "draft") if profile.speculation else ("target",):
        for kind in ("config_sha256", "weights_sha256"):
            value = (models.get(role) or {}).get(kind)
            if value:
                found[f"digest/{role}/{kind}/{models[role].get('path')}"] = str(value)
    return found


def _target(profile: Profile, seen: Mapping[str, Any]) -> Iterator[str]:
    pins, config = profile.target, seen["config"]
    text = config.get("text_config") or config
    for key, pinned in (
        ("num_hidden_layers", pins.layers),
        ("hidden_size", pins.hidden_size),
        ("vocab_size", pins.vocab_size),
    ):
        if text.get(key) != pinned:
            yield f"target {key} is {text.get(key)}, pinned {pinned}"
    yield from _digests("target", pins, seen)


def _draft(profile: Profile, seen: Mapping[str, Any]) -> Iterator[str]:
    assert profile.speculation is not None
    pins, config = profile.speculation.draft, seen["config"]
    ids = captured(config)
    if profile.speculation.algorithm == "EAGLE3":
        if ids is None:
            elsewhere = " (the ids at the top level are not read for capture)" if IDS in config else ""
            yield f"the draft's eagle_config names no layer ids, so the engine takes its own default{elsewhere}"
        elif ids != list(pins.layer_ids):
            yield f"the draft's layer ids are {ids}, pinned {list(pins.layer_ids)}"
    for key, pinned in (
        ("hidden_size", pins.hidden_size),
        ("vocab_size", pins.vocab_size),
        ("target_hidden_size", pins.target_hidden_size),
        ("draft_vocab_size", pins.draft_vocab_size),
        ("max_position_embeddings", pins.max_position_embeddings),
    ):
        if pinned is not None and config.get(key) != pinned:
            yield f"draft {key} is {config.get(key)}, pinned {pinned}"
    yield from _digests("draft", pins, seen)


def _unread(profile: Profile, models: Mapping[str, Any]) -> Iterator[str]:
    roles: list[tuple[str, Any]] = [("target", profile.target)]
    if profile.speculation:
        roles.append(("draft", profile.speculation.draft))
    for role, pins in roles:
        for kind in ("config_sha256", "weights_sha256"):
            if getattr(pins, kind) and not models[role].get(kind):
                yield f"{role} {kind}"


def _digests(role: str, pins: Any, seen: Mapping[str, Any]) -> Iterator[str]:
    for kind in ("config_sha256", "weights_sha256"):
        pinned, found = getattr(pins, kind), seen.get(kind)
        if pinned and found and pinned != found:
            yield f"{role} {kind} is {found[:12]}…, pinned {pinned[:12]}…"


GATE = Gate(ASK.name, ASK.question, 50, judge, needs=("alive",))
