"""The models on the host are the ones the profile pins: checked in a second, instead of found out after a load."""

from typing import Any

from ops.checks import Check, Question, Verdict
from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.state import Facts


def judge(ask: Question, facts: Facts, profile: Profile, spec: HostSpec) -> Verdict:
    problems = _problems(facts, profile, spec)
    if problems:
        return ask.failed(
            "; ".join(problems),
            "put the pinned models there, or change the pins in the profile on purpose",
            problems=problems,
        )
    return ask.passed("target and draft are the pinned ones" if profile.speculation else "the target is the pinned one")


def _problems(facts: Facts, profile: Profile, spec: HostSpec) -> list[str]:
    target = facts["models"].get("target")
    if target is None:
        return [f"there is no model at {spec.path(profile.engine.model_path)} (no config.json)"]
    text = target["config"].get("text_config") or target["config"]
    pins = profile.target
    problems = _differ(
        "target",
        (
            ("num_hidden_layers", pins.layers, text.get("num_hidden_layers")),
            ("hidden_size", pins.hidden_size, text.get("hidden_size")),
            ("vocab_size", pins.vocab_size, text.get("vocab_size")),
            ("config.json sha256", pins.config_sha256, target["config_sha256"] if pins.config_sha256 else None),
        ),
    )
    if profile.speculation is None:
        return problems
    draft = facts["models"].get("draft")
    if draft is None:
        return [*problems, f"there is no draft at {spec.path(profile.speculation.draft_path)} (no config.json)"]
    config, draft_pins = draft["config"], profile.speculation.draft
    ids = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    return problems + _differ(
        "draft",
        (
            ("layer ids", list(draft_pins.layer_ids), ids),
            ("hidden_size", draft_pins.hidden_size, config.get("hidden_size")),
            ("vocab_size", draft_pins.vocab_size, config.get("vocab_size")),
            (
                "config.json sha256",
                draft_pins.config_sha256,
                draft["config_sha256"] if draft_pins.config_sha256 else None,
            ),
        ),
    )


def _differ(role: str, rows: tuple[tuple[str, Any, Any], ...]) -> list[str]:
    return [f"{role} {name}: the profile pins {want}, the host has {seen}" for name, want, seen in rows if want != seen]


CHECK = Check("models", "Are target and draft on the host the pinned ones?", 40, judge)
