"""`Profile`: what to run, as data, and the rules between its keys.

A profile that breaks a rule here would start an engine that is slower, silently different or dead after minutes of
loading; so it is refused before anything is touched.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ops.model.base import Data, Path, Problem, RulesBroken
from ops.model.env_values import env_problems
from ops.model.nccl import nccl_problems
from ops.model.profile_parts import CHECKS, Engine, Gates, Rollout, Speculation, Target, Timeouts, Traffic

Name = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=64)]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]

DRAFT_TP = re.compile(r"draft.*(^|[-_])(tp|tensor[-_]?parallel)|(^|[-_])(tp|tensor[-_]?parallel).*draft", re.IGNORECASE)
DRAFT_TP_REASON = (
    "there is no tensor-parallel size for the draft: SGLang has no such flag, an EAGLE-3 draft is always sharded over "
    "the target's own tensor-parallel group; remove the key"
)
"""Source: SGLang 0.5.23 srt/speculative/draft_parallel.py (SINGLE_GROUP) and the flag list."""

MODELLED_FLAGS = {
    "model-path": "engine.model_path",
    "model": "engine.model_path",
    "served-model-name": "engine.served_model_name",
    "tp-size": "engine.tensor_parallel",
    "tp": "engine.tensor_parallel",
    "tensor-parallel-size": "engine.tensor_parallel",
    "host": "engine.host",
    "port": "engine.port",
    "mem-fraction-static": "engine.mem_fraction_static",
    "context-length": "engine.context_length",
    "max-running-requests": "engine.max_running_requests",
    "trust-remote-code": "engine.trust_remote_code",
    "disable-custom-all-reduce": "engine.disable_custom_all_reduce",
    "attention-backend": "engine.attention_backend",
    "enable-metrics": "engine.enable_metrics",
    "speculative-algorithm": "speculation.algorithm",
    "speculative-draft-model-path": "speculation.draft_path",
    "speculative-draft-model": "speculation.draft_path",
    "speculative-num-steps": "speculation.steps",
    "speculative-eagle-topk": "speculation.topk",
    "speculative-num-draft-tokens": "speculation.draft_tokens",
    "speculative-adaptive": "speculation.adaptive",
    "speculative-accept-threshold-single": "speculation.accept_threshold_single",
    "speculative-accept-threshold-acc": "speculation.accept_threshold_acc",
}
DEAD_FLAGS = {"num-continuous-decode-steps": "does nothing on current engines and is going away; remove it"}
"""Flags the parser still takes. Source: SGLang 0.5.23 reads the value nowhere outside its argument classes."""

SECRET_FLAGS = {"api-key": "SGLANG_API_KEY", "admin-api-key": "SGLANG_ADMIN_API_KEY"}
"""Flags whose value is a secret: given by `secrets`, written to a 0600 file for the engine's `--config`."""

PROMPT_COUNTS = (1, 2, 4, 5, 8, 10)
"""Numbers of prompts of which the baseline's 40 runs hold whole rounds."""


class Profile(Data):
    """One resolved profile (`extends` applied). Immutable, and complete: nothing is looked up elsewhere later."""

    name: Name = Field(description="Name of the profile: the file's name without `.yaml`.")
    description: str = Field("", description="One sentence for `ops profile list`.")
    stack: Name = Field(description="Name of the pinned software stack (`envs/stacks/`).")
    runtime: Literal["native", "docker"] = Field("native", description="Start from a venv, or from an image by digest.")
    run_as: str | None = Field(
        None, pattern=r"^[a-z_][a-z0-9_-]*$", description="Unprivileged user the engine runs as."
    )
    nccl: Name = Field("default", description="Name of the NCCL set (`envs/nccl/`).")
    nccl_conf: bool = Field(False, description="Also write the set to /etc/nccl.conf (host-wide; backed up).")
    env: dict[EnvName, str] = Field(
        default_factory=dict, description="Environment of the engine beside the NCCL set; values are literal."
    )
    secrets: tuple[EnvName, ...] = Field(
        (),
        description="Names of environment variables, read where `ops` runs, that the engine needs; the values go to "
        "0600 files on the host only. SGLANG_API_KEY and SGLANG_ADMIN_API_KEY become the engine's keys.",
    )
    fallback: Name | None = Field(None, description="Non-speculative profile to fall back to; yardstick of the speed.")
    keep_releases: int = Field(
        5, ge=2, le=1000, description="Releases kept on a host; those that a link names always are."
    )
    engine: Engine = Field(description="The engine's command line.")
    target: Target = Field(description="Pins of the target model.")
    speculation: Speculation | None = Field(None, description="Speculative decoding; null: none.")
    traffic: Traffic = Field(default_factory=Traffic, description="The load the profile is meant for.")
    timeouts: Timeouts = Field(default_factory=Timeouts, description="Deadlines.")
    gates: Gates = Field(default_factory=Gates, description="Thresholds of the gate.")
    rollout: Rollout = Field(default_factory=Rollout, description="How a group of hosts is deployed.")

    @property
    def speculative(self) -> bool:
        """Whether the profile drafts at all."""
        return self.speculation is not None

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        problems = [*_speculation_rules(self), *_flag_rules(self), *_environment_rules(self), *_gate_rules(self)]
        if problems:
            raise RulesBroken(problems)
        return self


def _speculation_rules(profile: Profile) -> Iterator[Problem]:
    spec = profile.speculation
    if spec is None:
        return
    at: Path = ("speculation",)
    if profile.fallback is None:
        yield Problem(("fallback",), "a speculative profile needs a non-speculative fallback, for example `baseline`")
    if spec.topk == 1 and spec.draft_tokens != spec.steps + 1:
        yield Problem(
            (*at, "draft_tokens"),
            f"{spec.draft_tokens} with topk 1 and steps {spec.steps}: a chain verifies steps + 1 = {spec.steps + 1} "
            "tokens in total, and SGLang silently forces that number",
        )
    tree = 1 + spec.topk + (spec.steps - 1) * spec.topk**2
    if spec.topk > 1 and not spec.steps < spec.draft_tokens <= tree:
        yield Problem(
            (*at, "draft_tokens"),
            f"{spec.draft_tokens}: a tree of topk {spec.topk} and steps {spec.steps} has "
            f"{spec.steps + 1} to {tree} tokens",
        )
    if spec.adaptive and spec.topk != 1:
        yield Problem((*at, "adaptive"), f"needs topk 1, not {spec.topk}: SGLang would switch it off silently")
    yield from _draft_rules(profile, spec)


def _draft_rules(profile: Profile, spec: Speculation) -> Iterator[Problem]:
    draft, target, at = spec.draft, profile.target, ("speculation", "draft")
    ids = draft.layer_ids
    if not ids or list(ids) != sorted(set(ids)):
        yield Problem((*at, "layer_ids"), f"{list(ids)}: at least one layer, distinct and ascending")
    outside = [i for i in ids if not 0 <= i < target.layers]
    if outside:
        yield Problem(
            (*at, "layer_ids"), f"{outside} outside the target's layers 0 to {target.layers - 1}: never captured"
        )
    seen = draft.target_hidden_size or draft.hidden_size
    if spec.algorithm != "STANDALONE" and seen != target.hidden_size:
        yield Problem(
            (*at, "hidden_size"),
            f"the draft expects hidden states of width {seen}, the target's have {target.hidden_size}",
        )
    if draft.vocab_size != target.vocab_size:
        yield Problem((*at, "vocab_size"), f"{draft.vocab_size}, but the target has {target.vocab_size}")
    if draft.draft_vocab_size and draft.draft_vocab_size > draft.vocab_size:
        yield Problem((*at, "draft_vocab_size"), f"{draft.draft_vocab_size} is more than vocab_size {draft.vocab_size}")
    context, longest = profile.engine.context_length, draft.max_position_embeddings
    allowed = profile.env.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "").lower() in {"1", "true", "yes", "y"}
    if context and longest and context > longest and not allowed:
        yield Problem(
            ("engine", "context_length"),
            f"{context} is beyond the draft's {longest}; SGLang refuses to load it unless "
            "env.SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN is 1",
        )


def _flag_rules(profile: Profile) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for key in profile.engine.flags:
        at, flag = ("engine", "flags", key), key.replace("_", "-").removeprefix("--")
        if DRAFT_TP.search(flag):
            yield Problem(at, DRAFT_TP_REASON)
        elif flag in MODELLED_FLAGS:
            yield Problem(at, f"set it as `{MODELLED_FLAGS[flag]}`; a second way to say it could contradict the first")
        elif flag in SECRET_FLAGS:
            yield Problem(at, f"a secret would be readable in the process list; list {SECRET_FLAGS[flag]} in `secrets`")
        elif flag in DEAD_FLAGS:
            yield Problem(at, DEAD_FLAGS[flag])
        elif flag == "config":
            yield Problem(at, "ops writes the engine's --config file itself (for secrets); set flags in the profile")
        elif flag.startswith("speculative-") and profile.speculation is None:
            yield Problem(at, "a speculative flag without a draft: fill in `speculation` (with its draft_path)")
        elif flag in seen:
            yield Problem(at, f"the same flag as `{seen[flag]}`")
        seen.setdefault(flag, key)


def _environment_rules(profile: Profile) -> Iterator[Problem]:
    yield from env_problems(profile.env, ("env",))
    yield from nccl_problems({k: v for k, v in profile.env.items() if k.startswith("NCCL_")}, ("env",))
    for name in profile.env:
        if DRAFT_TP.search(name):
            yield Problem(("env", name), DRAFT_TP_REASON)
        if name in profile.secrets:
            yield Problem(("env", name), "is listed in `secrets` as well; its value belongs to one place only")
    for index, name in enumerate(profile.secrets):
        yield from (Problem(("secrets", index), p.message) for p in env_problems({name: ""}, ("secrets",)))
    if len(set(profile.secrets)) != len(profile.secrets):
        yield Problem(("secrets",), "names a variable twice")
    if profile.fallback == profile.name:
        yield Problem(("fallback",), "a profile cannot be its own fallback")


def _gate_rules(profile: Profile) -> Iterator[Problem]:
    for check, reason in profile.gates.skip.items():
        at = ("gates", "skip", check)
        if check not in CHECKS:
            yield Problem(at, f"no such check; checks: {', '.join(CHECKS)}")
        elif len(reason.split()) < 2:
            yield Problem(at, "a skipped check needs its reason in words (it goes to the journal)")
    prompts = profile.traffic.prompts
    if prompts is not None and len(prompts) not in PROMPT_COUNTS:
        counts = ", ".join(map(str, PROMPT_COUNTS))
        yield Problem(("traffic", "prompts"), f"{len(prompts)} prompts: {counts} can be measured equally often")
    levels = profile.traffic.concurrency
    if list(levels) != sorted(set(levels)):
        yield Problem(("traffic", "concurrency"), f"{list(levels)}: distinct and ascending")
    if max(levels) > profile.engine.max_running_requests:
        yield Problem(
            ("traffic", "concurrency"),
            f"{max(levels)} is more than engine.max_running_requests {profile.engine.max_running_requests}",
        )
    floor = profile.gates.acceptance.min_accept_length
    if floor is not None and profile.speculation is not None and floor > profile.speculation.steps + 1:
        yield Problem(
            ("gates", "acceptance", "min_accept_length"),
            f"{floor} can never be reached with {profile.speculation.steps} steps (at most steps + 1)",
        )
