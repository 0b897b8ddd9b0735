"""The groups of keys inside a profile: engine, target, speculation, traffic, timeouts, gates, rollout."""

import ipaddress
import math
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from ops.model.base import Data

FlagValue = StrictBool | StrictInt | StrictFloat | StrictStr | list[StrictInt | StrictFloat | StrictStr]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
AbsolutePath = Annotated[str, Field(pattern=r"^/[^\x00-\x1f\x7f]*$")]
PromptName = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=64)]
Prompt = Annotated[str, Field(pattern=r"\S", max_length=8192)]
Line = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$")]


def _address(text: str) -> str:
    """An IP address as the kernel's list of sockets writes it, so that the two can be compared."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ValueError(
            "an IP address is expected (v4, or v6 without brackets): it is compared with listeners"
        ) from None


Address = Annotated[str, AfterValidator(_address)]

CHECKS = (
    "alive",
    "itself",
    "software",
    "health",
    "generation",
    "wiring",
    "effective-config",
    "environment",
    "agreement",
    "acceptance",
    "long-context",
    "soak",
    "speed",
)


def spelt(flag: str) -> str:
    """A key of `engine.flags` in the one spelling that is compared."""
    return flag.replace("_", "-").removeprefix("--")


class Engine(Data):
    """The engine's command line. Names follow SGLang's flags; `flags` holds every further one."""

    model_path: AbsolutePath = Field(description="Folder of the target model on the host (`ops_paths` maps it).")
    served_model_name: Line | None = Field(None, description="Name in the OpenAI API; default: the model path.")
    tensor_parallel: int = Field(ge=1, le=128, description="GPUs of the tensor-parallel group (`--tp-size`).")
    host: Address = Field("0.0.0.0", description="IP address to listen on; a host's `ops_bind` replaces it.")
    port: int = Field(8000, ge=1, le=65_535, description="TCP port of the HTTP server.")
    mem_fraction_static: float = Field(
        ge=0.1,
        le=0.98,
        description="Share of GPU memory for weights AND key/value pool (with speculation the draft's too); "
        "choose it for each profile, the right value with a draft is not the right value without.",
    )
    context_length: int | None = Field(None, ge=256, le=16_777_216, description="Tokens; default: the model's own.")
    max_running_requests: int = Field(
        ge=1,
        le=65_536,
        description="Concurrent requests. Always written: left out, SGLang caps it at 48 with speculation.",
    )
    trust_remote_code: bool = Field(False, description="Run Python code that comes with the model.")
    disable_custom_all_reduce: bool = Field(False, description="Leave all-reduce to NCCL (PCIe machines).")
    attention_backend: Line | None = Field(None, description="`--attention-backend`; default: the engine's choice.")
    enable_metrics: bool = Field(True, description="Serve `/metrics`; status and the gates read it.")
    flags: dict[str, FlagValue] = Field(
        default_factory=dict,
        description="Further flags without the dashes (`watchdog-timeout: 600`); true: a bare flag, false: left "
        "out, a list: several values. Checked against the flag list of the pinned engine version.",
    )

    def flag(self, *names: str) -> FlagValue | None:
        """The value of a further flag under any of its names; None when it is left out."""
        given = {spelt(key): value for key, value in self.flags.items() if value is not False}
        return next((given[name] for name in names if name in given), None)

    def number(self, *names: str) -> int | None:
        """The whole number of a further flag; None when it is left out or none."""
        value = self.flag(*names)
        try:
            return int(str(value[0] if isinstance(value, list) and len(value) == 1 else value))
        except ValueError:
            return None

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.number("pp-size", "pipeline-parallel-size") or 1

    @property
    def ranks(self) -> int:
        """Ranks of the whole model, one a GPU: tensor-parallel group x pipeline stages x replicas.

        With `enable-dp-attention` dp-size divides the tensor-parallel group instead. Source: SGLang 0.5.23
        srt/managers/data_parallel_controller.py:421-449, srt/arg_groups/parallel_hook.py:39-61.
        """
        shared = self.flag("enable-dp-attention") is not None
        replicas = 1 if shared else self.number("dp-size", "data-parallel-size") or 1
        return self.tensor_parallel * self.stages * replicas


class Target(Data):
    """Pins of the target model: compared with its `config.json` on the host."""

    layers: int = Field(ge=1, le=10_000, description="Hidden layers of the target.")
    hidden_size: int = Field(ge=1, le=1_000_000, description="Width of the target's hidden states.")
    vocab_size: int = Field(ge=1, le=10_000_000, description="Entries of the target's vocabulary.")
    config_sha256: Sha256 | None = Field(None, description="Digest of config.json; absent: recorded when first good.")
    weights_sha256: Sha256 | None = Field(
        None, description="Digest of the weights, as `ops` makes it; absent: they (hundreds of GB) are not read."
    )


class Draft(Data):
    """Pins of the draft model: a draft wired to other layers starts cleanly and is only slow, so it is compared."""

    layer_ids: tuple[StrictInt, ...] = Field(
        (),
        description="Target layers whose hidden states feed the draft, as in the draft's config.json "
        "(`eagle_config.eagle_aux_hidden_state_layer_ids`): distinct, ascending. Required for EAGLE3; no other "
        "algorithm reads them.",
    )
    hidden_size: int = Field(ge=1, le=1_000_000, description="Width of the draft's own hidden states.")
    target_hidden_size: int | None = Field(
        None, ge=1, le=1_000_000, description="The draft's `target_hidden_size` where its width is not the target's."
    )
    vocab_size: int = Field(ge=1, le=10_000_000, description="`vocab_size` of the draft: the target's.")
    draft_vocab_size: int | None = Field(
        None, ge=1, le=10_000_000, description="Reduced vocabulary the draft proposes from, where it has one."
    )
    max_position_embeddings: int | None = Field(
        None, ge=1, le=16_777_216, description="Longest context the draft was made for, tokens."
    )
    config_sha256: Sha256 | None = Field(None, description="Digest of config.json; absent: recorded when first good.")
    weights_sha256: Sha256 | None = Field(None, description="Digest of the weights; absent: recorded when first good.")


class Speculation(Data):
    """Speculative decoding. With topk 1 the draft tokens are steps + 1 in total: k drafted and one verified."""

    algorithm: Literal["EAGLE3", "EAGLE", "STANDALONE"] = Field(description="`--speculative-algorithm`.")
    draft_path: AbsolutePath = Field(description="Folder of the draft model on the host (`ops_paths` maps it).")
    steps: int = Field(ge=1, le=32, description="Draft steps a cycle (`--speculative-num-steps`).")
    topk: int = Field(1, ge=1, le=64, description="Branches a step (`--speculative-eagle-topk`); 1: a chain.")
    draft_tokens: int = Field(ge=2, le=512, description="Tokens verified a cycle; steps + 1 when topk is 1.")
    adaptive: bool = Field(False, description="Let the engine choose the steps by load; needs topk 1.")
    accept_threshold_single: float | None = Field(None, ge=0, le=1, description="Below 1 it is lossy; default 1.")
    accept_threshold_acc: float | None = Field(None, ge=0, le=1, description="Below 1 it is lossy; default 1.")
    draft: Draft = Field(description="Pins of the draft.")


class Traffic(Data):
    """The load that the profile is meant for; the gate measures at each concurrency."""

    concurrency: tuple[Annotated[int, Field(ge=1, le=4096, strict=True)], ...] = Field(
        (1, 8), min_length=1, description="Concurrent users to measure at, ascending."
    )
    temperature: float = Field(0.0, ge=0, le=2, description="Sampling temperature; 0 is greedy.")
    prompts: dict[PromptName, Prompt] | None = Field(
        None,
        description="Prompts of this traffic, by name, for the gate to ask and measure with; null: the project's own. "
        "Acceptance and speed belong to a kind of text. 1, 2, 4, 5, 8 or 10: each is measured equally often.",
    )


class Timeouts(Data):
    """Deadlines in (virtual) seconds."""

    load_timeout_s: Seconds = Field(1800, description="From start to the first generation.")
    drain_timeout_s: Seconds = Field(
        120, description="Wait for running requests before the stop, which cuts what still runs then."
    )
    stop_timeout_s: Seconds = Field(60, description="From SIGTERM to SIGKILL of the whole group.")
    gate_timeout_s: Seconds = Field(
        600, description="The gate's part of the guard's deadline; the gate itself is not cut at it."
    )
    guard_margin_s: Seconds = Field(60, description="What the host's guard waits beyond the sum of the others.")


class AcceptanceGate(Data):
    """Accept length: tokens a verify cycle, the bonus token included."""

    min_accept_length: float | None = Field(None, ge=1, le=33, description="Floor, tokens a cycle.")
    tolerance: float = Field(0.10, gt=0, lt=1, description="Allowed relative drop against the stored value.")


class AgreementGate(Data):
    """Greedy output against the baseline's: prefixes, never equality (kernels differ by batch shape)."""

    min_prefix_tokens: int = Field(8, ge=0, le=128, description="Median equal prefix of the prompts, tokens.")
    max_early_splits: float = Field(
        0.5, ge=0, le=1, description="Share of the prompts that may differ before that prefix."
    )


MAX_RUNS = 24


def first_look(prompts: int) -> int:
    """Return after how many runs speed is looked at first: 12, in complete rounds of the prompts, three at least."""
    return prompts * max(3, math.ceil(12 / prompts))


class SpeedGate(Data):
    """Throughput against the stored baseline of this host."""

    min_speedup: float = Field(1.0, ge=0.1, le=10, description="Speculative: tok/s over the baseline's.")
    min_ratio: float = Field(0.95, ge=0.1, le=1.5, description="Non-speculative: tok/s over its own stored value.")
    max_runs: int = Field(MAX_RUNS, ge=12, le=1000, description="Runs a concurrency before the answer is inconclusive.")
    max_ttft_ratio: float = Field(1.3, ge=1, le=100, description="Time to first token over the baseline's.")

    def runs(self, prompts: int) -> int:
        """Return the most runs over `prompts` prompts: the default grows to the first look of many prompts."""
        return max(self.max_runs, first_look(prompts)) if self.max_runs == MAX_RUNS else self.max_runs


class SoakGate(Data):
    """A burst at the highest concurrency."""

    requests: int = Field(200, ge=1, le=100_000, description="Short requests; none may be lost or cut.")


class GenerationGate(Data):
    """One real answer on each endpoint."""

    timeout_s: Seconds = Field(60, description="Deadline of one generation after the warm-up.")
    max_tokens: int = Field(64, ge=8, le=4096, description="Tokens a generation.")


class Gates(Data):
    """Thresholds of the gate, and the checks left out with a written reason."""

    acceptance: AcceptanceGate = Field(default_factory=AcceptanceGate, description="Accept length.")
    agreement: AgreementGate = Field(default_factory=AgreementGate, description="Output against the baseline's.")
    speed: SpeedGate = Field(default_factory=SpeedGate, description="Throughput and time to first token.")
    soak: SoakGate = Field(default_factory=SoakGate, description="Burst of requests.")
    generation: GenerationGate = Field(default_factory=GenerationGate, description="One real answer.")
    skip: dict[str, str] = Field(
        default_factory=dict, description="Check name: the written reason why it is left out (goes to the journal)."
    )


class Rollout(Data):
    """How a group of hosts is deployed."""

    canary: int = Field(1, ge=0, le=1000, description="Hosts that go first; 0: none.")
    batches: tuple[Annotated[str, Field(pattern=r"^[1-9][0-9]*%?$")], ...] = Field(
        ("25%", "100%"), min_length=1, description="Sizes of the batches after the canary: hosts or per cent."
    )
    pause_s: float = Field(0, ge=0, le=86_400, description="Pause between batches.")
    bake_s: float = Field(0, ge=0, le=86_400, description="How long the canary must serve before the next batch.")
    on_failure: Literal["keep", "revert"] = Field(
        "keep", description="What happens to hosts already done: keep them, or revert them as well."
    )
    max_unavailable: int = Field(1, ge=1, le=1000, description="Hosts out of traffic at one moment.")
