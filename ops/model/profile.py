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
from ops.model.profile_parts import (
    CHECKS,
    Engine,
    Gates,
    Rollout,
    Speculation,
    Target,
    Timeouts,
    Traffic,
    first_look,
    spelt,
)

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

PASSWORD_FLAGS = ("ssl-keyfile-password",)
"""Flags whose value is a secret that no file of ops brings to the engine."""

ADAPTIVE_STEPS = (1, 3, 5, 7)
"""What an adaptive engine without a file of its own may start with (0 as well: drafting nothing).

Source: SGLang 0.5.23 srt/speculative/adaptive_spec_params.py:28-52 (DEFAULT_ADAPTIVE_CONFIG).
"""

TREE_BACKENDS = ("flashinfer", "fa3", "triton")
"""Attention backends that draft a tree over pages. Source: SGLang 0.5.23 srt/arg_groups/speculative_hook.py:1271."""

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

    @property
    def longer_context_allowed(self) -> bool:
        """Whether the engine may run a model beyond the context that the model's own configuration names.

        Source: SGLang 0.5.23 srt/configs/model_config.py:1291-1323, srt/environ.py (EnvBool).
        """
        return self.env.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "").lower() in {"1", "true", "yes", "y"}

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
    kept = spec.adaptive and spec.topk == 1 and spec.algorithm != "STANDALONE"
    if kept and profile.engine.flag("speculative-adaptive-config") is None and spec.steps not in ADAPTIVE_STEPS:
        yield Problem(
            (*at, "steps"),
            f"{spec.steps} with adaptive: SGLang starts with one of {', '.join(map(str, ADAPTIVE_STEPS))} only "
            "(srt/arg_groups/speculative_hook.py:1416), unless a file in engine.flags.speculative-adaptive-config "
            "names other candidates",
        )
    if profile.engine.stages > 1 and spec.algorithm != "EAGLE":
        yield Problem(
            _flag_path(profile, "pp-size", "pipeline-parallel-size"),
            f"{profile.engine.stages} pipeline stages with {spec.algorithm}: SGLang drafts over pipeline stages with "
            "EAGLE only (srt/arg_groups/validation_hook.py)",
        )
    yield from _backend_rules(profile, spec)
    yield from _draft_rules(profile, spec)


def _flag_path(profile: Profile, *names: str) -> Path:
    """Where a further flag is written, under any of its names."""
    return ("engine", "flags", next((key for key in profile.engine.flags if spelt(key) in names), names[0]))


def _backend_rules(profile: Profile, spec: Speculation) -> Iterator[Problem]:
    """Attention backends that end the start of a speculative engine, as far as the profile names them.

    Source: SGLang 0.5.23 srt/speculative/draft_utils.py:49-155, srt/arg_groups/speculative_hook.py:1176, 1271.
    """
    engine, named = profile.engine, {}
    for phase in ("prefill", "decode"):
        flag = f"{phase}-attention-backend"
        own = engine.flag(flag)
        path: Path = ("engine", "attention_backend") if own is None else _flag_path(profile, flag)
        named[phase] = (own or engine.attention_backend, path)
    draft = "speculative-draft-attention-backend"
    if engine.flag(draft) is not None:
        drafting = [(engine.flag(draft), _flag_path(profile, draft))]
    else:
        extend = "decode" if engine.flag("speculative-attention-mode") == "decode" else "prefill"
        drafting = [named[extend], *([named["decode"]] if spec.steps > 1 or spec.adaptive else [])]
    for backend, path in drafting:
        if backend == "torch_native":
            yield Problem(
                path,
                f"{backend} cannot draft: SGLang ends with `EAGLE is not supported in attention backend "
                f"{backend}` after the load (srt/speculative/draft_utils.py); choose another, or set engine.flags "
                f"{draft}",
            )
    for backend, path in named.values():
        if backend == "trtllm_mha" and spec.topk > 1:
            yield Problem(
                path, f"{backend} with topk {spec.topk}: SGLang takes topk 1 only there (speculative_hook.py)"
            )
    page, backend = engine.number("page-size") or 1, engine.attention_backend
    if spec.topk > 1 and page > 1 and backend is not None and backend not in TREE_BACKENDS:
        yield Problem(
            _flag_path(profile, "page-size"),
            f"{page} with topk {spec.topk} on {backend}: SGLang takes pages and a tree on "
            f"{', '.join(TREE_BACKENDS)} only (speculative_hook.py); use page-size 1 or one of those",
        )


def _draft_rules(profile: Profile, spec: Speculation) -> Iterator[Problem]:
    draft, target, at = spec.draft, profile.target, ("speculation", "draft")
    ids = draft.layer_ids
    if not ids and spec.algorithm == "EAGLE3":
        yield Problem((*at, "layer_ids"), "is required for EAGLE3: target layers whose hidden states feed the draft")
    if list(ids) != sorted(set(ids)):
        yield Problem((*at, "layer_ids"), f"{list(ids)}: distinct and ascending")
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
    for flag in ("speculative-use-rejection-sampling", "speculative-use-block-verification"):
        reduced = draft.draft_vocab_size or target.vocab_size
        if profile.engine.flag(flag) and reduced < target.vocab_size:
            yield Problem(
                _flag_path(profile, flag),
                f"needs a draft of the target's whole vocabulary, {target.vocab_size}, not {reduced}: SGLang ends "
                "after the load (srt/speculative/eagle_worker_v2.py:259-275)",
            )
    context, longest = profile.engine.context_length, draft.max_position_embeddings
    if context and longest and context > longest and not profile.longer_context_allowed:
        yield Problem(
            ("engine", "context_length"),
            f"{context} is beyond the draft's {longest}; SGLang refuses to load it unless "
            "env.SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN is 1",
        )


def _flag_rules(profile: Profile) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for key in profile.engine.flags:
        at, flag = ("engine", "flags", key), spelt(key)
        if DRAFT_TP.search(flag):
            yield Problem(at, DRAFT_TP_REASON)
        elif flag in MODELLED_FLAGS:
            yield Problem(at, f"set it as `{MODELLED_FLAGS[flag]}`; a second way to say it could contradict the first")
        elif flag in SECRET_FLAGS:
            yield Problem(at, f"a secret would be readable in the process list; list {SECRET_FLAGS[flag]} in `secrets`")
        elif flag in PASSWORD_FLAGS:
            yield Problem(
                at,
                "a secret would be readable in the process list, launch.sh and the manifest; use a key file without a "
                "password that only the engine's user can read",
            )
        elif flag in DEAD_FLAGS:
            yield Problem(at, DEAD_FLAGS[flag])
        elif flag == "config":
            yield Problem(at, "ops writes the engine's --config file itself (for secrets); set flags in the profile")
        elif flag.startswith("speculative-") and profile.speculation is None:
            yield Problem(at, "a speculative flag without a draft: fill in `speculation` (with its draft_path)")
        elif flag in seen:
            yield Problem(at, f"the same flag as `{seen[flag]}`")
        seen.setdefault(flag, key)
    yield from _chunk_rule(profile)


def _chunk_rule(profile: Profile) -> Iterator[Problem]:
    """Source: SGLang 0.5.23 srt/arg_groups/validation_hook.py:243."""
    chunk, page = profile.engine.number("chunked-prefill-size"), profile.engine.number("page-size")
    checked = profile.engine.flag("disaggregation-mode") != "decode"
    if chunk and page and checked and chunk > 0 and page > 0 and chunk % page:
        yield Problem(
            _flag_path(profile, "chunked-prefill-size"),
            f"{chunk} is not a multiple of page-size {page}, which SGLang demands (srt/arg_groups/validation_hook.py)",
        )


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
    if prompts and 1 in levels:
        most, first = profile.gates.speed.runs(len(prompts)), first_look(len(prompts))
        if most < first:
            yield Problem(
                ("gates", "speed", "max_runs"),
                f"{most} is too few: with {len(prompts)} prompts the first look is after {first} runs",
            )
    floor = profile.gates.acceptance.min_accept_length
    if floor is not None and profile.speculation is not None and floor > profile.speculation.steps + 1:
        yield Problem(
            ("gates", "acceptance", "min_accept_length"),
            f"{floor} can never be reached with {profile.speculation.steps} steps (at most steps + 1)",
        )
