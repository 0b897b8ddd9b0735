"""Bad profiles are refused before a host is touched, with file, line, key and value.

If this fails, an operator loads a model for fifteen minutes to learn about a typo, or worse: deploys a server that is
silently different from what the profile says.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from ops.config import load_profile, profile_names
from ops.errors import ConfigError, Exit
from ops.model.profile import Profile

Write = Callable[[str, str], Path]
TREE = "speculation: {topk: 4, draft_tokens: 8}\n"
REJECTION = "speculative-use-rejection-sampling"
REDUCED = "speculation: {draft: {draft_vocab_size: 32000}}\n"


def refused(project: Path, name: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_profile(project, name, environ=environ or {})
    assert caught.value.exit_code == Exit.REFUSED
    return caught.value.message + "\n" + caught.value.hint


def variant(write: Write, body: str, name: str = "candidate", parent: str = "eagle3-2step") -> None:
    write(f"profiles/{name}.yaml", f"extends: {parent}\n{body}")


@pytest.mark.parametrize(
    ("name", "steps", "nccl"),
    [
        ("baseline", None, "pcie-blackwell-ll"),
        ("eagle3-1step", 1, "pcie-blackwell-ll"),
        ("eagle3-2step", 2, "pcie-blackwell-ll"),
        ("eagle3-3step", 3, "pcie-blackwell-ll"),
        ("eagle3-5step", 5, "pcie-blackwell-ll"),
        ("eagle3-10step", 10, "default"),
    ],
)
def test_the_shipped_profiles_are_the_storys_server(project: Path, name: str, steps: int | None, nccl: str) -> None:
    profile = load_profile(project, name, environ={})

    assert profile.nccl == nccl
    assert (profile.engine.model_path, profile.engine.tensor_parallel) == ("/shared/models/Kimi-K2.5", 8)
    assert (profile.engine.host, profile.engine.port) == ("0.0.0.0", 8000)
    assert profile.traffic.concurrency == (1, 8)
    assert profile.env["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] == "1"
    if steps is None:
        assert profile.speculation is None
    else:
        assert profile.speculation is not None
        assert (profile.speculation.steps, profile.speculation.draft_tokens) == (steps, steps + 1)
        assert profile.speculation.draft.layer_ids == (2, 30, 58)
        assert profile.env["EAGLE3_PROFILE"] == "1"
        assert profile.fallback == "baseline"


def test_no_other_profile_is_shipped_unchecked(project: Path) -> None:
    assert [name for name in profile_names(project) if not name.startswith("lab-")] == [
        "baseline",
        "eagle3-10step",
        "eagle3-1step",
        "eagle3-2step",
        "eagle3-3step",
        "eagle3-5step",
    ]


def test_an_unknown_profile_is_answered_with_near_names(project: Path) -> None:
    text = refused(project, "eagle3-2stp")

    assert "unknown profile 'eagle3-2stp'" in text
    assert "did you mean eagle3-2step" in text
    assert "baseline" in text  # the hint lists what there is


def test_a_name_with_a_path_in_it_reads_no_other_file(project: Path) -> None:
    assert "unknown profile" in refused(project, "../stacks/kimi-k25-eagle3")


def test_an_unknown_key_is_named_with_file_line_value_and_the_key_meant(project: Path, write: Write) -> None:
    variant(write, "engine:\n  prot: 8001\n")

    text = refused(project, "candidate")

    assert "envs/profiles/candidate.yaml:3: engine.prot: unknown key (value 8001); did you mean port?" in text


def test_an_unknown_key_of_a_parent_is_named_in_the_parents_file(project: Path, write: Write) -> None:
    write("profiles/base.yaml", "extends: baseline\ntrafic: {}\n")
    variant(write, "description: x\n", parent="base")

    assert "envs/profiles/base.yaml:2: trafic: unknown key" in refused(project, "candidate")


@pytest.mark.parametrize(
    ("body", "place", "says"),
    [
        ("speculation:\n  draft_tokens: 10\n", ":3", "steps + 1 = 3 tokens in total"),
        ("speculation:\n  steps: 5\n", "eagle3-2step.yaml:20", "steps + 1 = 6 tokens in total"),
        ("speculation:\n  draft_path: null\n", "", "speculation.draft_path: is required"),
        ("speculation:\n  topk: 4\n  draft_tokens: 2\n", ":4", "a tree of topk 4 and steps 2 has 3 to 21"),
        ("speculation:\n  topk: 4\n  draft_tokens: 22\n", ":4", "a tree of topk 4 and steps 2 has 3 to 21"),
        ("speculation:\n  topk: 2\n  adaptive: true\n", ":4", "needs topk 1, not 2"),
        ("speculation:\n  steps: -2\n", ":3", "-2: must be greater than or equal to 1"),
        ("speculation:\n  steps: 400\n", ":3", "400: must be less than or equal to 32"),
        ("speculation:\n  algorithm: EAGLE9\n", ":3", "'EAGLE9': must be 'EAGLE3'"),
        ("speculation:\n  draft_tp_size: 1\n", ":3", "there is no tensor-parallel size for the draft"),
        ("engine:\n  draft_tensor_parallel: 1\n", ":3", "there is no tensor-parallel size for the draft"),
        ("engine:\n  flags:\n    speculative-draft-tp-size: 1\n", ":4", "sharded over the target's own"),
        ("env:\n  SGLANG_DRAFT_TP: '1'\n", ":3", "sharded over the target's own"),
        ("engine:\n  port: -1\n", ":3", "-1: must be greater than or equal to 1"),
        ("engine:\n  port: 70000\n", ":3", "70000: must be less than or equal to 65535"),
        ("engine:\n  tensor_parallel: 0\n", ":3", "0: must be greater than or equal to 1"),
        ("engine:\n  mem_fraction_static: 1.7\n", ":3", "1.7: must be less than or equal to 0.98"),
        ("engine:\n  mem_fraction_static: 85%\n", ":3", "'85%': must be a valid number"),
        ("engine:\n  max_running_requests: null\n", "", "SGLang caps it at 48 with speculation"),
        ("engine:\n  model_path: models/x\n", ":3", "engine.model_path"),
        ("timeouts:\n  load_timeout_s: -5\n", ":3", "-5: must be greater than 0"),
        ("timeouts:\n  load_timeout_s: 1e9\n", ":3", "must be less than or equal to 86400"),
        ("traffic:\n  concurrency: [8, 1]\n", ":3", "[8, 1]: distinct and ascending"),
        ("traffic:\n  prompts: {a: x, b: y, c: z}\n", ":3", "3 prompts: 1, 2, 4, 5, 8, 10 can be measured equally"),
        ("traffic:\n  prompts: {a: ' '}\n", ":3", "traffic.prompts.a"),
        ("traffic:\n  concurrency: [1, 100]\n", ":3", "more than engine.max_running_requests 64"),
        ("engine:\n  flags:\n    enable-mixed-chunk-typo: true\n", ":4", "has no flag --enable-mixed-chunk-typo"),
        ("engine:\n  flags:\n    num-continuous-decode-stps: 4\n", ":4", "did you mean num-continuous-decode-steps"),
        ("engine:\n  flags:\n    num-continuous-decode-steps: 4\n", ":4", "does nothing on current engines"),
        ("engine:\n  port: true\n", ":3", "True: a number is expected"),
        ("engine:\n  context_length: true\n", ":3", "True: a number is expected"),
        ("traffic:\n  concurrency: [true]\n", ":3", "traffic.concurrency"),
        ("extend: baseline\n", ":2", "did you mean extends?"),
        ("engine:\n  flags:\n    watchdog-timeout: soon\n", ":4", "'soon': must be a number"),
        ("engine:\n  flags:\n    disable-radix-cache: 1\n", ":4", "the flag takes no value"),
        ("engine:\n  flags:\n    watchdog-timeout: true\n", ":4", "the flag needs a value"),
        ("engine:\n  flags:\n    watchdog-timeout: [1, 2]\n", ":4", "the flag takes one value"),
        ("engine:\n  flags:\n    port: 9\n", ":4", "set it as `engine.port`"),
        ("engine:\n  flags:\n    api-key: hunter2\n", ":4", "list SGLANG_API_KEY in `secrets`"),
        ("engine:\n  flags:\n    speculative-num-steps: 3\n", ":4", "set it as `speculation.steps`"),
        ("engine:\n  attention_backend: flashinfr\n", ":3", "did you mean flashinfer"),
        ("env:\n  SGLANG_SIMULATE_ACC_LEN: '3'\n", ":3", "fakes the acceptance"),
        ("env:\n  SGLANG_SIMULATE_ACC_METHOD: multinomial\n", ":3", "fakes the acceptance"),
        ("env:\n  NCCL_PROTO: NOPE\n", ":3", "`NOPE` is none of LL, LL128, Simple"),
        ("env:\n  NCCL_PROTOCOL: LL\n", ":3", "did you mean NCCL_PROTO"),
        ('env:\n  GREETING: "one\\ntwo"\n', ":3", "holds a newline"),
        ("env:\n  GREETING: ' padded'\n", ":3", "white space, which systemd would strip"),
        ("env:\n  GREETING: 'a\\b'\n", ":3", "holds a backslash"),
        ("env:\n  GREETING: '\"quoted\"'\n", ":3", "starts with a quote"),
        ("env:\n  GREETING: 5\n", ":3", "write it in quotes"),
        ("env:\n  SPT_NOENV: '0'\n", ":3", "reserved"),
        ("env:\n  OPS_RELEASE: x\n", ":3", "belong to launch.sh"),
        ("env:\n  IFS: x\n", ":3", "the shell owns this variable"),
        ("fallback: null\n", "", "needs a non-speculative fallback"),
        ("fallback: eagle3-1step\n", ":2", "eagle3-1step is speculative itself"),
        ("fallback: basline\n", ":2", "did you mean baseline"),
        ("nccl: pcie\n", ":2", "unknown NCCL set 'pcie'"),
        ("stack: kimi\n", ":2", "unknown stack 'kimi'"),
        ("gates:\n  skip:\n    sped: because of reasons\n", ":4", "no such check"),
        ("gates:\n  skip:\n    speed: no\n", ":4", "its reason in words"),
        ("gates:\n  acceptance:\n    min_accept_length: 3.5\n", ":4", "can never be reached with 2 steps"),
        ("runtime: podman\n", ":2", "'podman': must be 'native' or 'docker'"),
        ("speculation:\n  draft:\n    layer_ids: [2, 30, 61]\n", ":4", "[61] outside the target's layers 0 to 60"),
        ("speculation:\n  draft:\n    layer_ids: [30, 2, 58]\n", ":4", "distinct and ascending"),
        ("speculation:\n  draft:\n    layer_ids: [2, 2, 58]\n", ":4", "distinct and ascending"),
        ("speculation:\n  draft:\n    hidden_size: 4096\n", ":4", "width 4096, the target's have 7168"),
        ("speculation:\n  draft:\n    vocab_size: 32000\n", ":4", "32000, but the target has 163840"),
        ("speculation:\n  draft:\n    layer_ids: []\n", ":4", "is required for EAGLE3"),
        ("speculation:\n  adaptive: true\n", "eagle3-2step.yaml:18", "2 with adaptive: SGLang starts with one of 1, 3"),
        ("engine:\n  flags:\n    pp-size: 2\n", ":4", "2 pipeline stages with EAGLE3"),
        ("engine:\n  flags:\n    pipeline_parallel_size: 2\n", ":4", "2 pipeline stages with EAGLE3"),
        ("engine:\n  attention_backend: torch_native\n", ":3", "torch_native cannot draft"),
        ("engine:\n  flags:\n    decode-attention-backend: torch_native\n", ":4", "torch_native cannot draft"),
        ("engine:\n  flags:\n    speculative-draft-attention-backend: torch_native\n", ":4", "torch_native cannot"),
        (f"engine:\n  attention_backend: trtllm_mha\n{TREE}", ":3", "trtllm_mha with topk 4: SGLang takes topk 1 only"),
        (f"engine:\n  attention_backend: flashmla\n  flags:\n    page-size: 16\n{TREE}", ":5", "16 with topk 4 on"),
        (f"engine:\n  flags:\n    {REJECTION}: true\n{REDUCED}", ":4", "whole vocabulary, 163840, not 32000"),
        ("engine:\n  flags: {page-size: 64, chunked-prefill-size: 4100}\n", ":3", "4100 is not a multiple"),
        ("engine:\n  flags:\n    ssl-keyfile-password: hunter2\n", ":4", "a secret would be readable"),
        ("engine:\n  host: localhost\n", ":3", "'localhost': an IP address is expected"),
        ("engine:\n  host: '[::1]'\n", ":3", "'[::1]': an IP address is expected"),
        ("name: other\n", ":2", "the file is called candidate.yaml"),
        ("extends: baseline\n", ":2", "written twice (first on line 1)"),
        ("engine: {port: 1\n", ":", "not YAML"),
        ("engine: 5\n", ":2", "engine"),
        ("<<: {port: 1}\n", ":2", "only plain keys"),
        ("env: !!python/object/apply:os.system ['true']\n", ":2", "must be a valid dictionary"),
    ],
)
def test_a_bad_value_is_refused_by_name(project: Path, write: Write, body: str, place: str, says: str) -> None:
    variant(write, body)

    text = refused(project, "candidate")

    assert says in text
    file = place if place.startswith("eagle3") else f"candidate.yaml{place}"
    assert file in text or not place


def test_speculative_flags_without_a_draft_are_refused(project: Path, write: Write) -> None:
    variant(write, "engine:\n  flags:\n    speculative-attention-mode: decode\n", parent="baseline")

    assert "a speculative flag without a draft" in refused(project, "candidate")


def test_all_mistakes_are_told_at_once(project: Path, write: Write) -> None:
    variant(write, "engine:\n  port: 0\n  prot: 1\ntimeouts:\n  stop_timeout_s: x\nrollout:\n  canary: -1\n")

    text = refused(project, "candidate")

    assert text.startswith("profile candidate: 4 mistakes")
    assert all(line in text for line in ("yaml:3: ", "yaml:4: ", "yaml:6: ", "yaml:8: "))


def test_all_broken_rules_are_told_at_once(project: Path, write: Write) -> None:
    variant(
        write, "nccl: none\nspeculation:\n  draft:\n    vocab_size: 5\n    layer_ids: []\nenv:\n  NCCL_ALGO: Rign\n"
    )

    text = refused(project, "candidate")

    assert text.startswith("profile candidate: 3 mistakes")


def test_the_fallback_must_serve_the_same_model(project: Path, write: Write) -> None:
    variant(write, "engine:\n  model_path: /other\n  port: 9000\n")

    text = refused(project, "candidate")

    assert "another engine.model_path (/shared/models/Kimi-K2.5 against /other)" in text
    assert "another engine.port" in text


def test_a_context_beyond_the_drafts_needs_the_override_variable(project: Path, write: Write) -> None:
    long = "engine:\n  context_length: 131072\nspeculation:\n  draft:\n    max_position_embeddings: 4096\n"
    variant(write, long)
    load_profile(project, "candidate", environ={})

    variant(write, long + "env:\n  SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN: null\n")

    assert "131072 is beyond the draft's 4096" in refused(project, "candidate")


@pytest.mark.parametrize(
    "body",
    [
        "speculation: {steps: 3, draft_tokens: 4, adaptive: true}\n",
        "speculation: {adaptive: true}\nengine: {flags: {speculative-adaptive-config: /etc/adaptive.json}}\n",
        "engine: {attention_backend: torch_native, flags: {speculative-draft-attention-backend: triton}}\n",
        "engine: {attention_backend: torch_native, flags: {prefill-attention-backend: triton, "
        "decode-attention-backend: triton}}\n",
        f"engine: {{attention_backend: fa3, flags: {{page-size: 16}}}}\n{TREE}",
        f"engine: {{attention_backend: flashmla, flags: {{page-size: 1}}}}\n{TREE}",
        f"engine: {{flags: {{page-size: 16}}}}\n{TREE}",  # the engine chooses a backend
        "engine: {attention_backend: trtllm_mha}\n",
        f"engine: {{flags: {{{REJECTION}: true}}}}\n",
        f"engine: {{flags: {{{REJECTION}: false}}}}\n{REDUCED}",
        "engine: {flags: {page-size: 64, chunked-prefill-size: 4096}}\n",
        "engine: {flags: {page-size: 64, chunked-prefill-size: -1}}\n",
        "engine: {flags: {page-size: 64, chunked-prefill-size: 100, disaggregation-mode: decode}}\n",
        "engine: {flags: {dp-size: 2}}\n",
        "speculation: {algorithm: EAGLE, draft: {layer_ids: null}}\n",
        "speculation: {algorithm: STANDALONE, draft: {layer_ids: null, hidden_size: 1024}}\n",
    ],
)
def test_what_the_engine_starts_with_is_not_refused(project: Path, write: Write, body: str) -> None:
    variant(write, body)

    load_profile(project, "candidate", environ={})


@pytest.mark.parametrize(
    ("flags", "ranks"),
    [
        ({}, 8),
        ({"dp-size": 2}, 16),
        ({"data_parallel_size": "2"}, 16),
        ({"dp-size": 2, "enable-dp-attention": True}, 8),
        ({"dp-size": 2, "enable-dp-attention": False}, 16),
        ({"attn-dp-size": 2}, 8),
        ({"pp-size": 2}, 16),
        ({"pipeline-parallel-size": [2], "dp-size": 3}, 48),
    ],
)
def test_every_replica_and_stage_has_ranks_of_its_own(project: Path, flags: dict[str, object], ranks: int) -> None:
    profile = load_profile(project, "baseline", {"engine": {"flags": flags}}, environ={})

    assert profile.engine.ranks == ranks


def test_an_address_is_written_as_the_kernel_lists_it(project: Path, write: Write) -> None:
    variant(write, "engine: {host: '0:0::0:1'}\n")

    assert load_profile(project, "candidate", environ={}).engine.host == "::1"


def test_a_retired_engine_version_has_no_flags_here(project: Path, write: Write) -> None:
    write("stacks/kimi-k25-eagle3.yaml", "engine_version: 0.1.0\n")

    text = refused(project, "baseline")

    assert "pins SGLang 0.1.0" in text
    assert "0.5.23" in text


def test_flags_the_pinned_engine_knows_are_accepted_in_either_spelling(project: Path, write: Write) -> None:
    variant(write, "engine:\n  flags:\n    watchdog_timeout: 600\n    disable-radix-cache: false\n")

    assert load_profile(project, "candidate", environ={}).engine.flags == {
        "watchdog-timeout": 600,
        "disable-radix-cache": False,
    }


def test_a_profile_cannot_be_changed_after_it_was_checked(project: Path) -> None:
    profile = load_profile(project, "baseline", environ={})

    with pytest.raises(ValueError, match="frozen"):
        profile.keep_releases = 9  # type: ignore[misc]


def test_every_key_is_described() -> None:
    def undescribed(model: type, at: str = "") -> list[str]:
        found = []
        for name, field in model.model_fields.items():  # type: ignore[attr-defined]
            if not field.description:
                found.append(f"{at}{name}")
            for inner in (field.annotation, *getattr(field.annotation, "__args__", ())):
                if hasattr(inner, "model_fields"):
                    found += undescribed(inner, f"{at}{name}.")
        return found

    assert undescribed(Profile) == []
