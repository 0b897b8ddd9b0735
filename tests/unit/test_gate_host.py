"""Checks that look at the host: alive, itself, health, wiring, effective-config, environment.

If these fail, a dead, foreign or differently configured server takes traffic, or a busy healthy one is killed.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from gate_support import CPU, GPU, RELEASE, facts, lines, process, recorded

from ops.config.profiles import load_profile
from ops.engine import wiring as pins
from ops.gates import alive, effective_config, environment, health, itself, wiring
from ops.gates.health import Poll
from ops.model.gate import Learned, Reply, Server, Stored
from ops.model.profile import Profile
from ops.model.verdict import Outcome
from ops.sandbox.models import DRAFT_CONFIG, TARGET_CONFIG

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def two_steps() -> Profile:
    return load_profile(PROJECT, "eagle3-2step", environ={})


# alive


@pytest.mark.parametrize("folder", [CPU, GPU])
@pytest.mark.parametrize("name", ["startup_base.log", "startup_eagle3.log", "decode.log"])
def test_a_healthy_log_has_no_fatal_line(folder: Path, name: str) -> None:
    assert alive.ruling(facts(), lines(folder / name), RELEASE, 2).outcome is Outcome.PASS


@pytest.mark.parametrize(
    "path",
    [
        CPU / "crash_draft_hidden_mismatch.log",
        CPU / "crash_first_request_few_layers.log",
        CPU / "crash_layer_out_of_range.log",
        CPU / "crash_port_in_use.log",
        CPU / "kill9_scheduler.log",
        GPU / "crash_adaptive_small_graph_bs.log",
        GPU / "crash_bad_nccl_proto.log",
        GPU / "crash_layer_minus1.log",
        GPU / "port_in_use_keeps_running.log",
    ],
    ids=lambda path: path.name,
)
def test_a_recorded_crash_is_fatal_even_while_the_process_lives(path: Path) -> None:
    verdict = alive.ruling(facts(), lines(path), RELEASE, 2)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.evidence["fatal_lines"]


def test_a_missing_rank_is_named_by_count() -> None:
    verdict = alive.ruling(facts(ranks=7), [], RELEASE, 8)
    assert (verdict.outcome, verdict.message) == (Outcome.FAIL, "7 scheduler processes of 8 are alive")


def test_the_ranks_of_pipeline_stages_are_counted(two_steps: Profile) -> None:
    engine = two_steps.engine.model_copy(update={"flags": {"pp-size": 2}})
    server: Any = SimpleNamespace(
        profile=two_steps.model_copy(update={"engine": engine}),
        manifest={"release": RELEASE, "expect": {"ranks": 4}},
        log=lambda lines: [],
        facts=lambda: facts(ranks=3),
    )
    assert alive.judge(server, Learned()).message == "3 scheduler processes of 4 are alive"


def test_a_rank_with_a_blank_environment_still_counts_by_its_parent() -> None:
    seen = facts()
    seen["processes"].append({**process(150, 100, "sglang::scheduler_TP2", None), "release": None})
    assert alive.ruling(seen, [], RELEASE, 3).passed


def test_an_engine_that_restarted_by_itself_is_not_the_one_that_was_started() -> None:
    start = {"event": "step-started", "step": {"kind": "start"}}
    journal = [{"event": "engine-exit"}, start, {"event": "engine-exit"}, {"event": "step-done"}]
    verdict = alive.ruling(facts(journal=journal), [], RELEASE, 2)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.evidence["unexpected_exits"] == 1


def test_a_stopped_engine_fails_with_the_supervisors_words() -> None:
    engine = {"state": "failed", "pid": None, "detail": "Exited too quickly"}
    assert "Exited too quickly" in alive.ruling(facts(engine=engine), [], RELEASE, 2).message


def test_a_running_engine_of_another_release_fails() -> None:
    assert alive.ruling(facts(), [], "baseline-ffffffffffff", 2).outcome is Outcome.FAIL


def test_an_engine_whose_processes_cannot_be_read_is_not_called_another_release() -> None:
    verdict = alive.ruling({**facts(), "processes": [], "unseen": True}, [], RELEASE, 2)
    assert verdict.outcome is Outcome.INCONCLUSIVE


# itself


def listener(pid: int | None, address: str = "127.0.77.1", port: int = 8000) -> dict[str, Any]:
    return {"port": port, "address": address, "pid": pid, "title": "python server.py", "user": "mallory"}


@pytest.mark.parametrize(
    ("listeners", "expected"),
    [
        ([listener(100)], Outcome.PASS),
        ([listener(100, "0.0.0.0")], Outcome.PASS),
        ([listener(100), listener(9, "127.0.77.2")], Outcome.PASS),
        ([listener(9)], Outcome.FAIL),
        ([listener(100), listener(9, "0.0.0.0")], Outcome.FAIL),
        ([listener(None)], Outcome.INCONCLUSIVE),
        ([listener(100, port=8001)], Outcome.FAIL),
        ([], Outcome.FAIL),
    ],
)
def test_the_port_must_belong_to_a_process_of_this_release(listeners: list[Any], expected: Outcome) -> None:
    verdict = itself.owner_ruling(facts(listeners=listeners), "127.0.77.1", 8000, RELEASE)
    assert verdict.outcome is expected


def test_the_owner_of_a_stolen_port_is_named() -> None:
    message = itself.owner_ruling(facts(listeners=[listener(9)]), "127.0.77.1", 8000, RELEASE).message
    assert "pid 9" in message
    assert "mallory" in message


OWNED = itself.ASK.passed("pid 100 listens")


def test_a_recorded_server_started_with_these_arguments_is_itself() -> None:
    info = recorded(CPU / "server_info_eagle3.json")
    arguments = info["launch_command"].split()
    assert itself.answer_ruling(Reply(200, info, 0.1), info["port"], arguments, OWNED).passed
    with_secrets = {**info, "launch_command": info["launch_command"] + " --config /opt/ops/secrets.yaml"}
    assert itself.answer_ruling(Reply(200, with_secrets, 0.1), info["port"], arguments, OWNED).passed


def test_an_orphan_with_other_arguments_is_told_by_what_differs() -> None:
    info = recorded(CPU / "server_info_base.json")
    wanted = [*info["launch_command"].split(), "--speculative-num-steps", "2"]
    verdict = itself.answer_ruling(Reply(200, info, 0.1), info["port"], wanted, OWNED)
    assert verdict.outcome is Outcome.FAIL
    assert "--speculative-num-steps" in verdict.message


def test_an_engine_too_old_to_tell_its_command_is_judged_by_its_port() -> None:
    info = recorded(GPU / "server_info_eagle3.json")
    assert "launch_command" not in info
    assert itself.answer_ruling(Reply(200, info, 0.1), info["port"], ["--port", "1"], OWNED).passed
    assert not itself.answer_ruling(Reply(200, info, 0.1), info["port"] + 1, [], OWNED).passed


def test_a_port_that_accepts_and_answers_nothing_fails() -> None:
    assert itself.answer_ruling(Reply(None, None, 30, "timed out"), 8000, [], OWNED).outcome is Outcome.FAIL


# health


def polls(*seen: tuple[float, int | None, str]) -> list[Poll]:
    return [Poll(*one) for one in seen]


def test_200_is_enough_for_now() -> None:
    verdict = health.ruling(polls((0, 200, "")))
    assert verdict is not None
    assert verdict.passed


def test_503_while_the_log_advances_is_waited_out() -> None:
    busy = [(2.0 * i, 503, f"Prefill batch {i}") for i in range(30)]
    assert all(health.ruling(polls(*busy[: n + 1])) is None for n in range(30))
    verdict = health.ruling(polls(*busy, (60.0, 200, "Decode batch")))
    assert verdict is not None
    assert verdict.passed


def test_503_with_a_silent_log_is_death_after_25_seconds_and_not_before() -> None:
    silent = [(5.0 * i, 503, "Decode batch 1") for i in range(6)]
    assert health.ruling(polls(*silent[:5])) is None
    verdict = health.ruling(polls(*silent))
    assert verdict is not None
    assert verdict.outcome is Outcome.FAIL


def test_two_slow_polls_are_not_yet_a_pattern() -> None:
    assert health.ruling(polls((0, None, ""), (30, None, ""))) is None


def test_work_without_end_is_inconclusive() -> None:
    endless = [(10.0 * i, 503, f"Prefill batch {i}") for i in range(25)]
    verdict = health.ruling(polls(*endless))
    assert verdict is not None
    assert verdict.outcome is Outcome.INCONCLUSIVE


def test_the_polls_own_access_lines_are_no_work() -> None:
    log = [*lines(CPU / "decode.log"), '[2026-11-30 10:18:37] INFO: 127.0.0.1 - "GET /health HTTP/1.1" 503']
    assert "batch" in health.last_work(log)
    assert health.last_work(log[-1:]) == ""


# wiring


def models(draft: dict[str, Any] | None = None, **extra: Any) -> dict[str, Any]:
    return {
        "target": {"path": "/t", "config": TARGET_CONFIG, "config_sha256": "a" * 64, **extra},
        "draft": {"path": "/d", "config": draft or DRAFT_CONFIG, "config_sha256": "b" * 64},
    }


def test_pinned_models_pass_and_say_that_their_digests_are_recorded(two_steps: Profile) -> None:
    verdict = wiring.ruling(two_steps, models(), {})
    assert verdict.passed, verdict.message
    assert "first time" in verdict.message


def test_shifted_layer_ids_fail_and_both_lists_are_shown(two_steps: Profile) -> None:
    shifted = {**DRAFT_CONFIG, "eagle_config": {pins.IDS: [1, 29, 57]}}
    message = wiring.ruling(two_steps, models(shifted), {}).message
    assert "[1, 29, 57]" in message
    assert "[2, 30, 58]" in message


def test_layer_ids_where_the_engine_does_not_look_fail(two_steps: Profile) -> None:
    misplaced = {k: v for k, v in DRAFT_CONFIG.items() if k != "eagle_config"} | {pins.IDS: [2, 30, 58]}
    assert "top level" in wiring.ruling(two_steps, models(misplaced), {}).message


def test_another_target_fails_although_its_draft_fits(two_steps: Profile) -> None:
    seen = models()
    seen["target"]["config"] = {**TARGET_CONFIG, "text_config": {**TARGET_CONFIG["text_config"], "vocab_size": 1000}}
    assert "vocab_size is 1000" in wiring.ruling(two_steps, seen, {}).message


def test_a_digest_that_changed_since_it_was_first_good_fails(two_steps: Profile) -> None:
    stored = pins.digests(two_steps, models())
    assert wiring.ruling(two_steps, models(), stored).passed
    changed = dict.fromkeys(stored, "f" * 64)
    assert wiring.ruling(two_steps, models(), changed).outcome is Outcome.FAIL


def pinned(profile: Profile, config_sha256: str) -> Profile:
    return profile.model_copy(update={"target": profile.target.model_copy(update={"config_sha256": config_sha256})})


def test_a_model_replaced_in_place_passes_once_its_new_digest_is_pinned(two_steps: Profile) -> None:
    """Judged against the first good deploy for ever, it could never be deployed again."""
    stored = {**pins.digests(two_steps, models()), "digest/target/config_sha256//t": "0" * 64}
    assert wiring.ruling(two_steps, models(), stored).outcome is Outcome.FAIL
    assert wiring.ruling(pinned(two_steps, "1" * 64), models(), stored).outcome is Outcome.FAIL
    verdict = wiring.ruling(pinned(two_steps, "a" * 64), models(), stored)
    assert verdict.passed, verdict.message
    assert verdict.evidence["replaced"] == ["digest/target/config_sha256//t"]
    other = {**stored, "digest/draft/config_sha256//d": "0" * 64}
    message = wiring.ruling(pinned(two_steps, "a" * 64), models(), other).message
    assert message == "draft/config_sha256//d changed since it was first good"


def test_a_replaced_model_leaves_its_digest_and_no_length_of_the_old_one(two_steps: Profile) -> None:
    target, draft = two_steps.engine.model_path, two_steps.speculation and two_steps.speculation.draft_path
    lengths = {f"accept_length/s/{target}/{draft}/steps=2": 1.7, f"accept_length/s/{target}/{draft}/steps=3": 1.9}
    others = {f"accept_length/s/{target}-2/{draft}/steps=2": 1.8, "speed/s/r/1": 90.0}
    known = {**lengths, **others, "digest/target/config_sha256//t": "0" * 64}
    server = SimpleNamespace(
        profile=pinned(two_steps, "a" * 64), stored=Stored(expectations=known), facts=lambda: {"models": models()}
    )
    learned = Learned()
    assert wiring.judge(cast(Server, server), learned).passed
    assert learned.expectations["digest/target/config_sha256//t"] == "a" * 64
    assert {key for key, value in learned.expectations.items() if value is None} == set(lengths)


def test_a_pinned_digest_that_nobody_read_is_inconclusive(two_steps: Profile) -> None:
    weights = two_steps.model_copy(
        update={"target": two_steps.target.model_copy(update={"weights_sha256": "e" * 64})},
    )
    assert wiring.ruling(weights, models(), {}).outcome is Outcome.INCONCLUSIVE
    assert wiring.ruling(weights, models(weights_sha256="e" * 64), {}).passed
    assert wiring.ruling(weights, models(weights_sha256="f" * 64), {}).outcome is Outcome.FAIL


def test_a_draft_shorter_than_the_targets_own_context_ends_the_engine(two_steps: Profile) -> None:
    strict = two_steps.model_copy(update={"env": {}})
    bounded = strict.model_copy(update={"engine": strict.engine.model_copy(update={"context_length": 4096})})
    overridden = strict.engine.model_copy(update={"flags": {"json-model-override-args": "{}"}})

    assert "own context 262144 is beyond the draft's 4096" in wiring.ruling(strict, models(), {}).message
    assert wiring.ruling(bounded, models(), {}).passed
    assert wiring.ruling(two_steps, models(), {}).passed  # the story's variable allows it
    assert wiring.ruling(strict.model_copy(update={"engine": overridden}), models(), {}).passed


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"text_config": {"max_position_embeddings": 4096}, "max_position_embeddings": 1}, 4096),
        ({"max_sequence_length": 2048, "max_position_embeddings": 4096}, 2048),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4}}, None),
        (
            {
                "max_position_embeddings": 262144,
                "rope_scaling": {"type": "yarn", "factor": 64, "original_max_position_embeddings": 4096},
            },
            262144,
        ),
        ({}, None),
    ],
)
def test_a_models_own_context_is_told_only_where_it_is_sure(config: dict[str, Any], length: int | None) -> None:
    assert pins.context(config) == length


@pytest.mark.parametrize(
    ("architecture", "ids", "captured"),
    [
        ("LlamaForCausalLM", [0, 2, 60], False),
        ("Qwen3MoeForCausalLM", [2, 30, 60], False),
        ("LlamaForCausalLM", [0, 2, 59], True),
        ("KimiK25ForConditionalGeneration", [2, 30, 60], True),  # read as they are
        ("KimiK25ForConditionalGeneration", [1, 30, 60], False),  # read one further where the first is 1
        ("SomeForCausalLM", [2, 30, 60], True),  # unknown: the gate's first request tells
    ],
)
def test_a_last_layer_that_is_never_captured_is_refused(
    two_steps: Profile, architecture: str, ids: list[int], captured: bool
) -> None:
    assert two_steps.speculation is not None
    draft = two_steps.speculation.draft.model_copy(update={"layer_ids": tuple(ids)})
    profile = two_steps.model_copy(update={"speculation": two_steps.speculation.model_copy(update={"draft": draft})})
    seen = models({**DRAFT_CONFIG, "eagle_config": {pins.IDS: ids}})
    seen["target"]["config"] = {**TARGET_CONFIG, "architectures": [architecture]}

    verdict = wiring.ruling(profile, seen, {})

    assert verdict.passed is captured, verdict.message
    assert captured or f"layer id 60 is the last layer of a {architecture}" in verdict.message


def test_a_draft_of_another_algorithm_needs_no_layer_ids(two_steps: Profile) -> None:
    document = two_steps.model_dump()
    document["speculation"] |= {"algorithm": "EAGLE"}
    del document["speculation"]["draft"]["layer_ids"]
    plain = {key: value for key, value in DRAFT_CONFIG.items() if key != "eagle_config"}

    assert wiring.ruling(Profile.model_validate(document), models(plain), {}).passed


def test_an_unreadable_config_is_inconclusive(two_steps: Profile) -> None:
    assert wiring.ruling(two_steps, {"target": None, "draft": None}, {}).outcome is Outcome.INCONCLUSIVE


# effective configuration


def settings() -> dict[str, Any]:
    return {
        "tp_size": 1,
        "port": 31003,
        "mem_fraction_static": 0.1,
        "max_running_requests": 4,
        "disable_custom_all_reduce": False,
        "attention_backend": "intel_amx",
        "speculative_algorithm": "EAGLE3",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
        "speculative_adaptive": False,
        "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 1.0,
    }


def test_a_recorded_server_that_does_what_was_asked_passes() -> None:
    verdict = effective_config.ruling(settings(), recorded(CPU / "server_info_eagle3.json"), [])
    assert verdict.passed, verdict.message


@pytest.mark.parametrize(
    ("key", "asked"),
    [
        ("speculative_num_draft_tokens", 9),
        ("speculative_num_steps", 2),
        ("speculative_adaptive", True),
        ("attention_backend", "triton"),
        ("mem_fraction_static", 0.12),
        ("max_running_requests", 64),
    ],
)
def test_each_silent_change_is_named(key: str, asked: Any) -> None:
    verdict = effective_config.ruling({**settings(), key: asked}, recorded(CPU / "server_info_eagle3.json"), [])
    assert verdict.outcome is Outcome.FAIL
    assert f"{key} is" in verdict.message


def test_a_cap_that_only_the_scheduler_tells_is_found() -> None:
    info = recorded(CPU / "server_info_eagle3.json")
    info["internal_states"][0]["effective_max_running_requests_per_dp"] = 2
    assert "effective_max_running_requests_per_dp is 2" in effective_config.ruling(settings(), info, []).message


def test_faked_acceptance_is_refused_wherever_it_is_set() -> None:
    ours = [
        process(1, 0, "x", {"A": "1"}),
        process(2, 1, "y", {"SGLANG_SIMULATE_ACC_LEN": "2.5"}),
        process(3, 1, "z", None),
    ]
    fakes = effective_config.faked(ours)
    verdict = effective_config.ruling(settings(), recorded(CPU / "server_info_eagle3.json"), fakes)
    assert verdict.outcome is Outcome.FAIL
    assert "SGLANG_SIMULATE_ACC_LEN" in verdict.message


# environment

NCCL = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "SPT_NOENV": "1"}


def ranks(*environs: dict[str, str] | None) -> list[dict[str, Any]]:
    return [process(100 + i, 99, f"sglang::scheduler_TP{i}", environ) for i, environ in enumerate(environs)]


def test_every_rank_with_every_variable_passes() -> None:
    held = {**NCCL, "NCCL_CUMEM_ENABLE": "0", "HOME": "/root"}
    assert environment.ruling(ranks(held, held), NCCL, []).passed


def test_one_rank_without_one_variable_fails_and_is_named() -> None:
    lost = {k: v for k, v in NCCL.items() if k != "NCCL_ALGO"}
    verdict = environment.ruling(ranks(NCCL, lost), NCCL, [])
    assert verdict.outcome is Outcome.FAIL
    assert "pid 101" in verdict.message
    assert "NCCL_ALGO is missing" in verdict.message


def test_a_blank_environment_is_inconclusive_and_never_a_missing_variable() -> None:
    assert environment.ruling(ranks(NCCL, None), NCCL, []).outcome is Outcome.INCONCLUSIVE


def test_a_variable_that_leaked_in_from_a_shell_fails() -> None:
    verdict = environment.ruling(ranks({**NCCL, "NCCL_P2P_DISABLE": "1"}), NCCL, [])
    assert "NCCL_P2P_DISABLE=1 is not of the profile" in verdict.message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("# nothing\nNCCL_PROTO=Simple\n", Outcome.PASS),
        ("NCCL_DEBUG_FILE=/tmp/x\n", Outcome.FAIL),
        ("", Outcome.PASS),
    ],
)
def test_a_file_that_nccl_reads_may_not_add_a_setting(content: str, expected: Outcome) -> None:
    files = [{"path": "/etc/nccl.conf", "content": content}]
    assert environment.ruling(ranks(NCCL), NCCL, files).outcome is expected


def test_without_ranks_nothing_is_proven() -> None:
    assert environment.ruling([], NCCL, []).outcome is Outcome.INCONCLUSIVE
