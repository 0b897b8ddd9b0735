"""Rolling deploys: if this fails, a bad release spreads over a fleet, or a fleet serves less than was promised."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet_rig import Fleet, fleet
from rig import BRIEF, Done, stretched, until

from tests.fleet_load import Load

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three hosts."""
    with fleet(tmp_path_factory.mktemp("fleet"), load_timeout_s=1000, gate_timeout_s=1500) as found:
        yield found


@pytest.fixture
def hosts(three: Fleet) -> Fleet:
    """The three hosts serving `good`, whatever the test before left."""
    for box in three.boxes.values():
        box.clear_faults()
    three.change_profile("next", rollout={"on_failure": "keep"}, timeouts={})
    if three.serving() != dict.fromkeys(three.boxes, "good"):
        done = three.ops("deploy", "--profile", "good", "--break-lock")
        assert done.code == 0, done.stderr
    return three


def rows(done: Done) -> dict[str, dict[str, Any]]:
    return {row["host"]: row for row in done.document["hosts"]}


def test_a_canary_that_fails_its_gate_leaves_the_rest_untouched(hosts: Fleet) -> None:
    hosts.boxes["alpha"].fault("env-lost-in-ranks", "next")
    journals = {name: hosts.journal(name) for name in ("beta", "gamma")}

    done = hosts.ops("deploy", "--profile", "next")

    assert done.code == 5, done.stderr
    assert done.document["outcome"] == "partial"
    found = rows(done)
    assert [(row["outcome"], row["exit_code"]) for row in found.values()] == [
        ("rolled-back", 3),
        ("untouched", 2),
        ("untouched", 2),
    ]
    assert found["alpha"]["gate"]["verdict"] == "fail"
    assert all(row["serves"].startswith("good-") and row["admitted"] for row in found.values())
    assert {name: hosts.journal(name) for name in ("beta", "gamma")} == journals
    assert hosts.serving() == dict.fromkeys(hosts.boxes, "good")


def test_when_the_third_fails_a_reverting_roll_puts_the_first_two_back_through_their_gate(hosts: Fleet) -> None:
    hosts.change_profile("next", rollout={"on_failure": "revert"})
    before = {name: hosts.link(name, "current") for name in hosts.boxes}
    hosts.boxes["gamma"].fault("env-lost-in-ranks", "next")

    done = hosts.ops("deploy", "--profile", "next")

    assert done.code == 3, done.stderr
    found = rows(done)
    assert [row["outcome"] for row in found.values()] == ["reverted", "reverted", "rolled-back"]
    assert {name: hosts.link(name, "current") for name in hosts.boxes} == before
    assert hosts.serving() == dict.fromkeys(hosts.boxes, "good")
    for name in ("alpha", "beta"):
        assert hosts.admitted(name) == before[name]
        gates = [event for event in hosts.journal(name) if event["event"] == "gated"]
        assert (gates[-2]["release"].partition("-")[0], gates[-2]["outcome"]) == ("next", "pass")
        assert (gates[-1]["release"], gates[-1]["outcome"]) == (before[name], "pass")


def test_a_keeping_roll_ends_at_the_failure_and_says_which_host_runs_what(hosts: Fleet) -> None:
    hosts.boxes["beta"].fault("crash-during-load", "next")

    done = hosts.ops("deploy", "--profile", "next")

    assert done.code == 5, done.stderr
    found = rows(done)
    assert [row["outcome"] for row in found.values()] == ["deployed", "rolled-back", "untouched"]
    assert [row["serves"].partition("-")[0] for row in found.values()] == ["next", "good", "good"]
    assert hosts.serving() == {"alpha": "next", "beta": "good", "gamma": "good"}


def test_a_canary_whose_engine_dies_while_it_is_watched_goes_back_and_nobody_follows(hosts: Fleet) -> None:
    hosts.change_profile("next", rollout={"bake_s": 1500})
    client = hosts.start("deploy", "--profile", "next")
    until(lambda: (hosts.admitted("alpha") or "").startswith("next-"), "alpha is admitted", within_s=240)
    until(lambda: hosts.journal("alpha")[-1]["event"] == "run-ended", "its deploy has ended")
    time.sleep(3)  # the watch has taken its first look
    engine = next(p for p in hosts.boxes["alpha"].processes() if "sglang.launch_server" in p.title)
    os.kill(engine.pid, signal.SIGKILL)

    done = client.wait(240)

    assert [row["outcome"] for row in rows(done).values()] == ["reverted", "untouched", "untouched"], done.stderr
    assert done.code == 5
    assert hosts.serving() == dict.fromkeys(hosts.boxes, "good")
    assert hosts.admitted("alpha") == hosts.link("alpha", "current")


def test_an_unreachable_host_counts_against_the_budget_before_anything_is_touched(hosts: Fleet) -> None:
    journals = {name: hosts.journal(name) for name in hosts.boxes}
    hosts.boxes["gamma"].cut_ssh(for_s=45)

    done = hosts.ops("deploy", "--profile", "next")

    assert done.code == 2, done.stderr
    found = rows(done)
    assert [row["outcome"] for row in found.values()] == ["untouched", "untouched", "unreachable"]
    assert "gamma (unreachable" in found["alpha"]["message"]
    assert {name: hosts.journal(name) for name in hosts.boxes} == journals
    until(lambda: hosts.ops("status").document["exit_code"] == 0, "gamma answers again", within_s=90, every_s=1)


def descendants(pid: int) -> list[int]:
    """`pid` and every process below it, as the kernel has them now."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(") ")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def in_step(hosts: Fleet, name: str, step: str) -> Callable[[], bool]:
    """Tells whether a step that is to come has begun on a host."""
    known = len(hosts.journal(name))

    def begun() -> bool:
        events = hosts.journal(name)[known:]
        return any(event["event"] == "step-started" and event["step"]["kind"] == step for event in events)

    return begun


def kill_at(hosts: Fleet, name: str, step: str, victims: Callable[[int], list[int]]) -> None:
    """Start a roll to `next` and kill it while `name` is in `step`."""
    client = hosts.start("deploy", "--profile", "next")
    until(in_step(hosts, name, step), f"{name} is in {step}", within_s=240)
    pids = victims(client.process.pid)
    assert len(pids) in (1, *range(4, 30)), "ops, ansible, its worker, and the host's own process"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    client.process.communicate(timeout=30)
    assert hosts.admitted(name) is None, "it was killed too late to prove anything"


@pytest.mark.parametrize("everything", [False, True], ids=["ops-alone", "every-process-of-it"])
def test_a_rerun_finishes_what_a_killed_controller_left(hosts: Fleet, everything: bool) -> None:
    hosts.change_profile("next", timeouts=stretched(BRIEF))
    kill_at(hosts, "beta", "start", descendants if everything else lambda pid: [pid])

    again = hosts.ops("deploy", "--profile", "next")

    assert again.code == 0, again.stderr
    assert {row["outcome"] for row in rows(again).values()} <= {"deployed", "unchanged"}
    assert hosts.serving() == dict.fromkeys(hosts.boxes, "next")
    for name in hosts.boxes:
        begun = [event["run"] for event in hosts.journal(name) if event["event"] == "run-started"]
        ended = {event["run"] for event in hosts.journal(name) if event["event"] in ("run-ended", "restored")}
        assert set(begun) <= ended, f"{name}: a run is undecided"


def test_ctrl_c_restores_the_host_that_is_being_changed(hosts: Fleet) -> None:
    client = hosts.start("deploy", "--profile", "next")
    until(in_step(hosts, "alpha", "start"), "alpha starts", within_s=240)

    client.signal(signal.SIGINT)
    done = client.wait(120)

    found = rows(done)
    assert [row["outcome"] for row in found.values()] == ["interrupted", "untouched", "untouched"], done.stderr
    assert done.code == 5
    assert hosts.serving() == dict.fromkeys(hosts.boxes, "good")


def test_under_load_two_of_three_serve_at_every_moment_and_no_request_is_cut(hosts: Fleet) -> None:
    addresses = {name: box.address for name, box in hosts.boxes.items()}
    with Load(addresses, lambda: hosts.ops("status").document, hosts.admitted, clients=4) as load:
        done = hosts.ops("deploy", "--profile", "next")
        before_end = dict(load.answered)
        until(lambda: all(load.answered[n] > before_end[n] for n in hosts.boxes), "all answer", within_s=60)

    assert done.code == 0, done.stderr
    assert hosts.serving() == dict.fromkeys(hosts.boxes, "next")
    assert load.cut == []
    assert load.lowest == 2
    assert min(load.answered.values()) > 0
