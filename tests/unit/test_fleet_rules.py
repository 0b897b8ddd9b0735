"""Order and budget of a roll: if this fails, a rolling deploy takes more hosts out of traffic than was allowed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.fleet.budget import budget, order
from ops.fleet.waves import wave_of, waves
from ops.model.profile_parts import Rollout

SERVING = {"state": "serving", "admitted": True}
HELD = {"state": "serving", "admitted": False}
STOPPED = {"state": "stopped", "admitted": False}
EMPTY = {"state": "empty", "admitted": False}
LOST = {"state": "unknown", "message": "no SSH connection"}

rollouts = st.builds(
    Rollout,
    canary=st.integers(0, 5),
    batches=st.lists(
        st.integers(1, 40).map(str) | st.integers(1, 100).map(lambda p: f"{p}%"), min_size=1, max_size=4
    ).map(tuple),
    max_unavailable=st.integers(1, 12),
)


@settings(deadline=None)
@given(rollouts, st.integers(1, 200))
def test_waves_take_every_host_once_and_never_more_than_the_budget(rollout: Rollout, hosts: int) -> None:
    found = waves(rollout, hosts)

    assert sum(wave.size for wave in found) == hosts
    assert all(1 <= wave.size <= rollout.max_unavailable for wave in found)


@settings(deadline=None)
@given(rollouts, st.integers(1, 200))
def test_every_batch_opens_and_closes_once(rollout: Rollout, hosts: int) -> None:
    found = waves(rollout, hosts)

    names = list(dict.fromkeys(wave.batch for wave in found))
    assert [wave.batch for wave in found if wave.opens] == names
    assert [wave.batch for wave in found if wave.closes] == names


def test_the_default_rollout_is_one_canary_then_a_quarter_then_the_rest_one_by_one() -> None:
    found = waves(Rollout(), 9)

    assert [wave.size for wave in found] == [1] * 9
    assert [wave.batch for wave in found] == ["canary", "batch 1", "batch 1", *["batch 2"] * 6]


def test_a_larger_budget_makes_larger_waves_but_no_wave_crosses_a_batch() -> None:
    found = waves(Rollout(canary=1, batches=("25%", "100%"), max_unavailable=3), 20)

    assert [(wave.batch, wave.size) for wave in found] == [
        ("canary", 1),
        ("batch 1", 3),
        ("batch 1", 2),
        *[("batch 2", 3)] * 4,
        ("batch 2", 2),
    ]


def test_a_wave_is_found_by_the_position_of_its_first_host_only() -> None:
    found = waves(Rollout(canary=1, batches=("100%",), max_unavailable=2), 5)

    assert [wave_of(found, position).size for position in (0, 1, 3)] == [1, 2, 2]
    with pytest.raises(ValueError, match="no wave of the rollout begins at host 2"):
        wave_of(found, 2)


def test_a_wave_within_the_budget_may_begin() -> None:
    assert budget({"a": SERVING, "b": SERVING, "c": SERVING}, ["a"], 1).allowed


@pytest.mark.parametrize("other", [LOST, STOPPED, HELD, {"state": "down"}, {"state": "pending"}])
def test_a_host_that_is_out_already_counts_against_the_budget(other: dict[str, str]) -> None:
    found = budget({"a": SERVING, "b": other, "c": SERVING}, ["a"], 1)

    assert not found.allowed
    assert "b (" in found.sentence
    assert "take out: a" in found.sentence
    assert budget({"a": SERVING, "b": other, "c": SERVING}, ["a"], 2).allowed


def test_a_host_that_never_served_is_no_loss() -> None:
    assert budget({"a": SERVING, "b": EMPTY, "c": EMPTY}, ["a"], 1).allowed


def test_a_wave_of_hosts_that_serve_nothing_may_always_begin() -> None:
    assert budget({"a": LOST, "b": STOPPED, "c": HELD}, ["b", "c"], 1).allowed


def test_a_wave_larger_than_the_budget_may_not_begin() -> None:
    assert not budget({"a": SERVING, "b": SERVING}, ["a", "b"], 1).allowed


def test_hosts_that_serve_nothing_go_first_and_lost_ones_not_at_all() -> None:
    rows = {"a": SERVING, "b": LOST, "c": EMPTY, "d": SERVING, "e": HELD}

    assert order(rows) == ("c", "e", "a", "d")
