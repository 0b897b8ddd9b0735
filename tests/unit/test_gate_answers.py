"""Checks that judge answers: generation, agreement, acceptance, long-context, soak.

If these fail, a server that hangs, babbles, loses requests or accepts no draft takes traffic, or a good one is refused
because two GPUs do not agree on token 300.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from gate_support import CPU, GPU, PROSE, RELEASE, answer, facts, from_recording, recorded

from ops.config.profiles import load_profile
from ops.gates import acceptance, agreement, baseline, generation, long_context, prompt_set, soak, texts, wanted
from ops.model.gate import Completion, Generation, Learned, Server, Stored
from ops.model.profile import Profile
from ops.model.profile_parts import AcceptanceGate, AgreementGate
from ops.model.verdict import Outcome

# text or garbage


@pytest.mark.parametrize(
    "text",
    [
        PROSE,
        "def f(x):\n    return x + 1\n\n\ndef g(x):\n    return f(x) * 2\n",
        "1. Measure first.\n2. Then change one thing.\n",
        "日本語の文章も文章です。文字の種類が多いだけで、壊れてはいません。",
        "ok",
    ],
)
def test_text_is_no_garbage(text: str) -> None:
    assert texts.complaint(text) == ""


@pytest.mark.parametrize("name", ["base", "eagle3_step3", "topk4", "adaptive", "ngram"])
def test_a_weak_model_that_repeats_a_phrase_is_not_broken(name: str) -> None:
    assert texts.complaint(recorded(CPU / f"generate_{name}.json")["text"]) == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   \n",
        "!" * 64,
        "ab" * 40,
        " the the the" * 10,
        "\ufffd" * 20,
        "x\ufffdy\ufffd" * 20,
        "a\x00b\x00" * 20,
        "0x}{" * 16,
    ],
)
def test_garbage_is_told(text: str) -> None:
    assert texts.complaint(text)


def test_a_character_cut_at_the_end_is_no_garbage() -> None:
    assert texts.complaint(PROSE + "\ufffd") == ""


# generation


def test_full_answers_pass() -> None:
    assert generation.ruling({f"generate {i}": answer() for i in range(8)}, 64).passed


def test_a_hanging_generation_fails_with_the_deadline() -> None:
    hung = answer(error="no complete answer within 60.0 s", completion_tokens=None)
    verdict = generation.ruling({"warm-up": hung}, 16)
    assert verdict.outcome is Outcome.FAIL
    assert "60.0 s" in verdict.message


def test_fewer_tokens_than_asked_for_fail_by_the_servers_own_count() -> None:
    verdict = generation.ruling({"a": answer(), "b": answer(completion_tokens=40)}, 64)
    assert "40 tokens instead of 64" in verdict.message


def test_one_odd_answer_of_eight_is_no_broken_model_but_three_are() -> None:
    good = {str(i): answer() for i in range(8)}
    assert generation.ruling(good | {"0": answer("!" * 200)}, 64).passed
    bad = good | {str(i): answer("!" * 200) for i in range(3)}
    assert generation.ruling(bad, 64).outcome is Outcome.FAIL


# agreement: the recorded runs


def recorded_ids(folder: str, run: str) -> dict[str, tuple[int, ...]]:
    path = (GPU if folder == "gpu" else CPU) / "runs.json"
    return {str(i): tuple(ids) for i, ids in enumerate(recorded(path)[run]["output_ids"])}


@pytest.mark.parametrize(
    ("folder", "run"),
    [
        ("gpu", "eagle3_steps1"),
        ("gpu", "eagle3_steps2"),
        ("gpu", "eagle3_steps5"),
        ("gpu", "tp2_base"),
        ("gpu", "tp2_eagle3_steps3_ll"),
        ("cpu", "eagle3_steps3"),
        ("cpu", "ngram_draft8"),
        ("cpu", "base_500_float32"),
    ],
)
def test_recorded_servers_agree_with_their_baseline_although_none_is_equal(folder: str, run: str) -> None:
    seen = {n: answer(output_ids=ids) for n, ids in recorded_ids(folder, run).items()}
    verdict = agreement.ruling(seen, recorded_ids(folder, "base"), AgreementGate())
    assert verdict.passed, verdict.message


def test_another_models_answers_do_not_agree() -> None:
    seen = {n: answer(output_ids=ids) for n, ids in recorded_ids("gpu", "base").items()}
    reference = recorded_ids("gpu", "base")
    rotated = {n: reference[str((int(n) + 1) % len(reference))] for n in reference}
    assert agreement.ruling(seen, rotated, AgreementGate()).outcome is Outcome.FAIL


def test_without_token_ids_agreement_is_not_claimed() -> None:
    seen = {"0": answer(output_ids=())}
    assert agreement.ruling(seen, {"0": (1, 2)}, AgreementGate()).outcome is Outcome.INCONCLUSIVE
    assert agreement.ruling({"0": answer()}, {}, AgreementGate()).outcome is Outcome.INCONCLUSIVE


# acceptance

IDS = (2, 30, 58)


def counted(correct: int, cycles: int, proposed: int | None = None) -> Completion:
    meta = {
        "spec_num_correct_drafts": correct,
        "spec_verify_ct": cycles,
        "spec_num_proposed_drafts": 2 * cycles if proposed is None else proposed,
    }
    return answer(meta=meta)


def test_the_length_of_a_recorded_answer_leaves_out_the_prefills_token() -> None:
    body = recorded(CPU / "generate_eagle3_step3.json")
    seen = acceptance.total([from_recording(body)])
    assert seen is not None
    assert seen.length == pytest.approx(1 + 86 / 44)
    assert seen.length < 1 + body["meta_info"]["spec_accept_length"]
    assert seen.rate == pytest.approx(body["meta_info"]["spec_accept_rate"])


def test_a_recorded_random_draft_is_told_to_match_nothing() -> None:
    body = recorded(GPU / "generate_eagle3_random_draft_steps2.json")
    answers = [from_recording(body)] * 20
    verdict = acceptance.ruling(answers, AcceptanceGate(), None, IDS, [1, 29, 57])
    assert verdict.outcome is Outcome.FAIL
    assert "hidden states, draft or vocabulary do not match the target" in verdict.message
    assert "[2, 30, 58]" in verdict.message
    assert "[1, 29, 57]" in verdict.message


@pytest.mark.parametrize(
    ("correct", "floor", "stored", "expected"),
    [
        (75, None, None, Outcome.PASS),
        (75, 1.55, 1.76, Outcome.PASS),
        (50, 1.55, None, Outcome.FAIL),
        (55, 1.5, 1.76, Outcome.FAIL),
        (60, 1.5, 1.76, Outcome.PASS),
        (5, None, None, Outcome.FAIL),
    ],
)
def test_a_length_is_judged_by_floor_and_by_what_it_was(
    correct: int, floor: float | None, stored: float | None, expected: Outcome
) -> None:
    answers = [counted(correct, 100)] * 8
    policy = AcceptanceGate(min_accept_length=floor)
    assert acceptance.ruling(answers, policy, stored, IDS, IDS).outcome is expected


@pytest.mark.parametrize(
    ("answers", "remedy"),
    [([answer()], "spec_verify_ct"), ([counted(3, 5)], "traffic.prompts"), ([], "spec_verify_ct")],
)
def test_without_enough_counts_acceptance_is_inconclusive(answers: list[Completion], remedy: str) -> None:
    verdict = acceptance.ruling(answers, AcceptanceGate(), None, IDS, IDS)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert remedy in verdict.remedy


@dataclass
class Drafting:
    """A server whose draft is always right: steps + 1 tokens a cycle."""

    profile: Profile
    stored: Stored = field(default_factory=Stored)
    models: dict[str, Any] = field(default_factory=dict)
    asked: list[Generation] = field(default_factory=list)
    manifest: dict[str, Any] = field(default_factory=lambda: {"stack_lock_sha256": "lock"})

    def say(self, text: str) -> None: ...

    def facts(self) -> dict[str, Any]:
        return {"models": self.models}

    def batch(self, requests: list[Generation], *_: Any, **__: Any) -> list[Completion]:
        self.asked += requests
        assert self.profile.speculation is not None
        steps = self.profile.speculation.steps
        found = []
        for request in requests:
            cycles = -(-(request.tokens - 1) // (steps + 1))
            meta = {
                "spec_num_correct_drafts": request.tokens - 1 - cycles,
                "spec_verify_ct": cycles,
                "spec_num_proposed_drafts": steps * cycles,
            }
            found.append(answer(tokens=request.tokens, meta=meta))
        return found


def drafting(prompts: int | None = None, steps: int = 2, **changes: Any) -> Drafting:
    own = None if prompts is None else {"prompts": {f"p{i}": f"prompt {i}" for i in range(prompts)}}
    wanted = {
        "speculation": {"steps": steps, "draft_tokens": steps + 1},
        **({"traffic": own} if own else {}),
        **changes,
    }
    return Drafting(load_profile(Path(__file__).parents[2], "eagle3-2step", wanted, environ={}))


def accepted(server: Drafting, learned: Learned | None = None) -> Any:
    learned = learned or Learned()
    agreement.judge(cast(Server, server), learned)
    return acceptance.judge(cast(Server, server), learned)


@pytest.mark.parametrize(("prompts", "steps"), [(1, 1), (1, 2), (1, 5), (2, 2), (2, 10), (4, 5), (None, 10)])
def test_few_prompts_and_a_perfect_draft_have_cycles_enough(prompts: int | None, steps: int) -> None:
    server = drafting(prompts, steps)
    assert accepted(server).passed
    assert max(request.tokens for request in server.asked) <= agreement.MOST_TOKENS


def test_sampled_answers_have_cycles_enough_as_well() -> None:
    server = drafting(1, 5, traffic={"prompts": {"p": "prompt"}, "temperature": 0.7})
    assert accepted(server).passed


def test_where_128_tokens_are_enough_no_more_are_asked_for() -> None:
    server = drafting()
    accepted(server)
    assert {request.tokens for request in server.asked} == {agreement.TOKENS}


def test_an_answer_leaves_the_context_room_for_its_prompt() -> None:
    server = drafting(1, 5, traffic={"prompts": {"p": "x" * 7400}})
    server.models = {"target": {"config": {"text_config": {"max_position_embeddings": 4096}}}}
    assert agreement.tokens(cast(Server, server)) == 4096 - 3700
    server.models = {"target": {"config": {"max_position_embeddings": 1024}}}
    assert agreement.tokens(cast(Server, server)) == agreement.TOKENS


def test_longer_answers_are_compared_with_the_references_128_tokens() -> None:
    reference = {"p0": tuple(range(agreement.TOKENS))}
    policy = AgreementGate(min_prefix_tokens=128)
    assert agreement.ruling({"p0": answer(tokens=601)}, reference, policy).passed


def test_more_tokens_than_are_compared_cannot_be_demanded() -> None:
    with pytest.raises(ValueError, match="less than or equal to 128"):
        AgreementGate(min_prefix_tokens=agreement.TOKENS + 1)


def key(server: Drafting) -> str:
    assert server.profile.speculation is not None
    return acceptance.expectation_key(cast(Server, server), server.profile.speculation)


def test_lengths_of_other_texts_and_thresholds_are_not_compared() -> None:
    lossy = {"steps": 2, "draft_tokens": 3, "accept_threshold_single": 0.5}
    keys = [key(drafting()), key(drafting(1)), key(drafting(2)), key(drafting(speculation=lossy))]
    assert len(set(keys)) == len(keys)


def test_a_length_stored_before_texts_were_told_apart_goes_on_holding() -> None:
    plain = drafting()
    spec = plain.profile.speculation
    assert spec is not None
    before = (
        f"accept_length/lock/{plain.profile.engine.model_path}/{spec.draft_path}"
        "/steps=2,topk=1,draft_tokens=3,adaptive=False/temperature=0.0"
    )
    named = {"steps": 2, "draft_tokens": 3, "accept_threshold_single": 1.0, "accept_threshold_acc": 1.0}
    assert key(plain) == key(drafting(speculation=named)) == before


def test_a_length_of_a_model_that_was_replaced_is_learned_anew() -> None:
    server = drafting()
    server.stored = Stored(expectations={key(server): 9.0})
    assert accepted(server).outcome is Outcome.FAIL
    learned = Learned()
    learned.expectations[key(server)] = None  # as `wiring` leaves it
    assert accepted(server, learned).passed
    assert learned.expectations[key(server)] == pytest.approx(3, abs=0.1)


# long context


def test_a_long_answer_passes_and_a_crash_on_it_fails() -> None:
    assert long_context.ruling(answer(tokens=32, prompt_tokens=4200), 4096).passed
    crashed = answer(error="RemoteDisconnected", completion_tokens=None, prompt_tokens=None)
    assert long_context.ruling(crashed, 4096).outcome is Outcome.FAIL


def test_garbage_beyond_the_drafts_context_fails() -> None:
    verdict = long_context.ruling(answer("!" * 64, tokens=32, prompt_tokens=4200), 4096)
    assert verdict.outcome is Outcome.FAIL


def test_a_prompt_that_turned_out_short_proves_nothing() -> None:
    assert long_context.ruling(answer(tokens=32, prompt_tokens=4000), 4096).outcome is Outcome.INCONCLUSIVE


# soak


def burst(**last: Any) -> list[Completion]:
    return [answer(tokens=soak.TOKENS) for _ in range(199)] + [answer(**{"tokens": soak.TOKENS, **last})]


def test_a_burst_without_a_loss_passes() -> None:
    assert soak.ruling(burst(), 8, 100, facts(), RELEASE).passed


@pytest.mark.parametrize("last", [{"error": "the stream ended before [DONE]"}, {"completion_tokens": soak.TOKENS - 1}])
def test_one_lost_or_cut_answer_of_200_fails(last: dict[str, Any]) -> None:
    assert soak.ruling(burst(**last), 8, 100, facts(), RELEASE).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    "after",
    [
        {"engine": {"state": "failed", "pid": None}},
        {"engine": {"state": "running", "pid": 777}},
        {"journal": [{"event": "run-started"}, {"event": "engine-exit"}]},
    ],
)
def test_an_engine_that_died_or_restarted_during_the_burst_fails(after: dict[str, Any]) -> None:
    verdict = soak.ruling(burst(), 8, 100, facts(**after), RELEASE)
    assert verdict.outcome is Outcome.FAIL
    assert "died" in verdict.message


def test_a_profile_can_bring_the_prompts_of_its_traffic() -> None:
    """Acceptance and speed of prose say nothing about a server of code: each profile is measured with its own kind."""
    own = {"loop": "for i in range(10):\n", "node": "class Node:\n"}
    manifest = {"profile": {"traffic": {"prompts": own}}}
    assert prompt_set.short_prompts(own) == prompt_set.speed_prompts(own) == own
    assert len(prompt_set.short_prompts(None)) > len(prompt_set.speed_prompts(None)) == 4
    assert wanted.prompts(manifest) == own
    assert wanted.prompts({}) is None
    as_the_host_has_it = {"profile": {"traffic": {"prompts": dict(sorted(own.items(), reverse=True))}}}
    assert list(prompt_set.short_prompts(wanted.prompts(as_the_host_has_it))) == ["loop", "node"]
    digests = {baseline.key({}, m, "b-1", [1]).prompt_set_sha256 for m in (manifest, as_the_host_has_it)}
    assert len(digests) == 1, "JSON sorts what YAML does not"
    with_own = baseline.key({}, manifest, "b-1", [1]).prompt_set_sha256
    others = {baseline.key({}, m, "b-1", [1]).prompt_set_sha256 for m in ({}, {"profile": {"traffic": {}}})}
    assert with_own not in others
    assert others == {baseline.prompt_set_digest()}
