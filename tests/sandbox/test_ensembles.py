"""One model over two hosts. If this breaks, half a model is called deployed, one host goes back while the other stays,
or a dead rank hides behind a /health that says 200."""

import json
import os
import signal
import time
from collections.abc import Iterator

import pytest
from ensemble_rig import Pair, pair
from rig import BRIEF, Done, until

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(900), pytest.mark.long]
BOTH = ("first", "second")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two hosts."""
    with pair(tmp_path_factory.mktemp("pair")) as found:
        yield found


@pytest.fixture
def hosts(two: Pair) -> Pair:
    """The two hosts serving `good` together, whatever the test before left."""
    for box in two.boxes.values():
        box.clear_faults()
    if not serves(two, "good"):
        done = two.deploy("good", "--break-lock")
        assert done.code == 0, done.stderr
    assert serves(two, "good")
    return two


def serves(hosts: Pair, profile: str) -> bool:
    """Seen from outside, and by `ops status`, which must agree."""
    rows = hosts.rows("status")
    told = all(row["good"] and row["profile"] == profile for row in rows.values())
    parts = {row["node"]["together"] for row in rows.values() if row.get("node")}
    seen = hosts.serving() == dict.fromkeys(BOTH, profile) and len(parts) == 1
    if seen and told:
        assert hosts.admitted("first") == hosts.link("first", "current")
    assert hosts.admitted("second") is None, "requests go to rank 0"
    return seen and told


def outcomes(done: Done) -> list[tuple[str, int]]:
    return [(row["outcome"], row["exit_code"]) for row in done.document["hosts"]]


def links(hosts: Pair) -> dict[str, str | None]:
    return {name: hosts.link(name, "current") for name in BOTH}


def times(hosts: Pair, event: str, kind: str) -> list[float]:
    """When each host wrote the newest such line of a step."""
    return [
        next(e["at"] for e in reversed(hosts.journal(n)) if e["event"] == event and e["step"]["kind"] == kind)
        for n in BOTH
    ]


def test_both_ranks_are_started_together_and_a_second_deploy_changes_nothing(hosts: Pair) -> None:
    done = hosts.deploy("next")

    assert (done.code, outcomes(done)) == (0, [("deployed", 0)] * 2), done.stderr
    assert serves(hosts, "next")
    for rank, name in enumerate(BOTH):
        (launcher, *ranks) = hosts.engine_titles(name)
        assert f"--tp-size 4 --host {hosts.boxes[name].state().address} " in launcher
        assert f"--nnodes 2 --node-rank {rank} --dist-init-addr {hosts.boxes['first'].state().address}:2" in launcher
        assert [title for title in ranks if "scheduler" in title] == [
            f"sglang::scheduler_TP{2 * rank}",
            f"sglang::scheduler_TP{2 * rank + 1}",
        ]
    begun = times(hosts, "step-started", "start")
    assert min(begun) >= max(times(hosts, "step-done", "stop")), "one started before the other had stopped"
    assert min(times(hosts, "step-done", "start")) >= max(begun), "one had started before the other began"
    checks = {row["host"]: [c["name"] for c in row["gate"]["checks"]] for row in done.document["hosts"]}
    assert "generation" in checks["first"]
    assert checks["second"] == ["alive", "itself", "software", "wiring", "environment"]

    journals = {name: hosts.journal(name) for name in BOTH}
    again = hosts.deploy("next")
    assert (again.code, outcomes(again)) == (0, [("unchanged", 0)] * 2), again.stderr
    assert {name: hosts.journal(name) for name in BOTH} == journals

    back = hosts.ops("rollback")
    assert (back.code, outcomes(back)) == (0, [("rolled-back", 0)] * 2), back.stderr
    assert serves(hosts, "good")


@pytest.mark.parametrize("name", BOTH)
def test_a_rank_that_dies_in_the_load_brings_both_hosts_back_at_once(hosts: Pair, name: str) -> None:
    before = links(hosts)
    hosts.boxes[name].fault("crash-during-load", "next")

    done = hosts.deploy("third")

    assert (done.code, outcomes(done)) == (3, [("rolled-back", 3)] * 2), done.stderr
    other = next(row for row in done.document["hosts"] if row["host"] != name)
    assert f"{name}: " in other["message"]
    assert "died" in other["message"]
    assert links(hosts) == before
    assert serves(hosts, "good")


def test_a_gate_that_fails_on_rank_0_brings_both_hosts_back(hosts: Pair) -> None:
    before = links(hosts)
    hosts.boxes["first"].fault("health-ok-generation-hangs", "next")

    done = hosts.deploy("third")

    assert (done.code, outcomes(done)) == (3, [("rolled-back", 3)] * 2), done.stderr
    assert done.document["hosts"][0]["gate"]["verdict"] == "fail"
    assert links(hosts) == before
    assert serves(hosts, "good")


def test_a_rank_that_lost_its_environment_on_the_other_host_is_found_there(hosts: Pair) -> None:
    hosts.boxes["second"].fault("env-lost-in-ranks", "next")

    done = hosts.deploy("third")

    assert (done.code, outcomes(done)) == (3, [("rolled-back", 3)] * 2), done.stderr
    checks = {c["name"]: c["outcome"] for c in done.document["hosts"][1]["gate"]["checks"]}
    assert (checks["alive"], checks["environment"]) == ("pass", "fail")
    assert serves(hosts, "good")


def test_a_dead_rank_behind_a_health_that_says_200_is_found_by_status_and_gate(hosts: Pair) -> None:
    (launcher,) = [p for p in hosts.boxes["second"].processes() if "sglang.launch_server" in p.title]
    (last,) = [p for p in hosts.boxes["second"].processes() if p.title == "sglang::scheduler_TP3"]

    os.kill(last.pid, signal.SIGKILL)
    rows = hosts.rows("status")

    assert [p.pid for p in hosts.boxes["second"].processes() if "launch_server" in p.title] == [launcher.pid]
    assert (rows["second"]["state"], rows["second"]["good"]) == ("down", False)
    assert "1 of 2 ranks live" in rows["second"]["message"]
    assert (rows["first"]["state"], rows["first"]["good"]) == ("serving", False)
    assert "second, rank 1: down" in rows["first"]["message"]
    assert hosts.ops("status", "--check").code == 6
    gate = hosts.alone("gate", "--host", "second")
    assert gate.code == 6, gate.stderr
    (alive,) = [c for c in gate.host["gate"]["checks"] if c["name"] == "alive"]
    assert "1 scheduler processes of 2 are alive" in alive["message"]

    restarted = hosts.ops("restart")
    assert (restarted.code, outcomes(restarted)) == (0, [("restarted", 0)] * 2), restarted.stderr
    assert serves(hosts, "good")


def test_a_rank_that_dies_while_the_gate_runs_is_not_confirmed(hosts: Pair) -> None:
    since = len(hosts.journal("first"))
    before = links(hosts)
    client = hosts.start("deploy", "--profile", "third")
    hosts.wait_for("first", "step-started", "gate", since)
    for process in hosts.boxes["second"].processes():
        if process.title == "sglang::scheduler_TP3":
            os.kill(process.pid, signal.SIGKILL)

    done = client.wait(within_s=300)

    assert (done.code, outcomes(done)) == (3, [("rolled-back", 3)] * 2), done.stderr
    assert links(hosts) == before
    assert serves(hosts, "good")


def test_stop_leaves_nothing_on_either_host_and_start_brings_both_back(hosts: Pair) -> None:
    stopped = hosts.ops("stop")

    assert (stopped.code, outcomes(stopped)) == (0, [("stopped", 0)] * 2), stopped.stderr
    assert [hosts.engine_titles(name) for name in BOTH] == [[], []]
    killed = [
        next(e["evidence"]["killed"] for e in reversed(hosts.journal(n)) if e["event"] == "step-done") for n in BOTH
    ]
    assert killed == [[], []], "rank 0 drains and ends the others: nobody has to be killed"
    assert hosts.ops("stop").document["outcome"] == "unchanged"
    assert {row["state"] for row in hosts.rows("status").values()} == {"stopped"}

    started = hosts.ops("start")
    assert (started.code, outcomes(started)) == (0, [("started", 0)] * 2), started.stderr
    assert serves(hosts, "good")


def test_one_host_of_a_model_over_several_is_never_changed_alone(hosts: Pair) -> None:
    journals = {name: hosts.journal(name) for name in BOTH}
    for words in (
        ("deploy", "--profile", "next"),
        ("rollback",),
        ("stop",),
        ("start",),
        ("restart",),
        ("host", "reboot"),
    ):
        done = hosts.alone(*words, "--host", "second")
        assert (done.code, done.host["outcome"]) == (2, "refused"), done.stderr
        assert "--group pair" in done.host["hint"]
    played = hosts.play("deploy.yml", "-e", "profile=next", "-e", "target=pair")
    assert played.code != 0
    assert "--group pair" in played.stdout, str(played)
    assert {name: hosts.journal(name) for name in BOTH} == journals


def test_a_lock_on_one_host_leaves_both_untouched(hosts: Pair) -> None:
    lock = hosts.boxes["second"].root / "default" / "lock"
    owner = {"owner": "somebody", "host": os.uname().nodename, "pid": os.getpid(), "pid_start": None, "run": "other"}
    journals = {name: hosts.journal(name) for name in BOTH}
    lock.write_text(json.dumps({**owner, "since": time.time(), "message": "at work"}))
    try:
        done = hosts.deploy("next")
    finally:
        lock.unlink()

    assert (done.code, outcomes(done)) == (2, [("refused", 2)] * 2), done.stderr
    assert "second: " in done.document["hosts"][0]["message"]
    assert {name: hosts.journal(name) for name in BOTH} == journals
    assert not (hosts.boxes["first"].root / "default" / "lock").exists()


def test_a_host_that_cannot_be_reached_leaves_the_other_untouched(hosts: Pair) -> None:
    journal = hosts.journal("first")
    hosts.boxes["second"].cut_ssh(600)
    try:
        done = hosts.deploy("next")
    finally:
        hosts.boxes["second"].cut_ssh(0)

    assert (done.code, outcomes(done)) == (2, [("refused", 2)] * 2), done.stderr
    assert hosts.journal("first") == journal


@pytest.mark.parametrize(
    ("event", "kind"), [("step-started", "start"), ("step-started", "gate"), ("step-done", "stop")]
)
def test_ctrl_c_restores_both_hosts(hosts: Pair, event: str, kind: str) -> None:
    before = links(hosts)
    watched = "first" if kind == "gate" else "second"
    since = len(hosts.journal(watched))
    client = hosts.start("deploy", "--profile", "third")
    hosts.wait_for(watched, event, kind, since)
    client.signal(signal.SIGINT)

    done = client.wait(within_s=300)

    assert done.code == 130, done.stderr
    assert {row["outcome"] for row in done.document["hosts"]} == {"interrupted"}
    assert links(hosts) == before
    assert serves(hosts, "good")


def test_a_killed_command_is_undone_by_its_hosts_processes_while_they_live(hosts: Pair) -> None:
    before = links(hosts)
    since = len(hosts.journal("second"))
    client = hosts.start("deploy", "--profile", "third")
    hosts.wait_for("second", "step-started", "start", since)
    client.signal(signal.SIGKILL)

    until(lambda: all(hosts.journal(n)[-1]["event"] == "run-ended" for n in BOTH), "both restored", within_s=120)
    assert client.wait().code == -signal.SIGKILL

    assert [hosts.journal(name)[-1]["outcome"] for name in BOTH] == ["interrupted"] * 2
    assert links(hosts) == before
    until(lambda: serves(hosts, "good"), "both serve together", within_s=60, every_s=0.5)


@pytest.fixture
def brief(hosts: Pair) -> Iterator[Pair]:
    """The hosts, and guards that do not wait long for a release of `third`."""
    hosts.change_profile("third", timeouts={name: seconds * 1.5 for name, seconds in BRIEF.items()})
    yield hosts
    hosts.change_profile("third", timeouts={})


def test_when_everything_is_killed_in_the_start_both_guards_bring_their_host_back(brief: Pair) -> None:
    before = links(brief)
    since = len(brief.journal("second"))
    client = brief.start("deploy", "--profile", "third")
    brief.wait_for("second", "step-started", "start", since)
    brief.kill_everything_of(client)

    assert {row["state"] for row in brief.rows("status").values()} == {"pending"}
    until(
        lambda: all(any(e["event"] == "restored" for e in brief.journal(n)[since:]) for n in BOTH),
        "both guards went back",
        within_s=120,
        every_s=0.2,
    )
    until(
        lambda: {row["state"] for row in brief.rows("status").values()} == {"serving"},
        "the old release serves on both",
        within_s=120,
        every_s=0.5,
    )
    assert links(brief) == before
    rows = brief.rows("status")
    assert all("ungated" in row["message"] for row in rows.values())
    again = brief.deploy("next")
    assert again.code == 0, again.stderr
    assert serves(brief, "next")


def spoil_confirmation(hosts: Pair, name: str) -> None:
    """What only happens when a host is taken over in the moment of its confirmation: the marker is another run's."""
    marker = hosts.boxes[name].root / "default" / "guard" / "armed"
    lines = marker.read_text().splitlines()
    marker.write_text("".join(f"{'RUN=another' if line.startswith('RUN=') else line}\n" for line in lines))


@pytest.mark.parametrize("name", BOTH)
def test_a_release_that_only_one_host_could_confirm_is_taken_back_on_both(hosts: Pair, name: str) -> None:
    before = links(hosts)
    since = len(hosts.journal("first"))
    client = hosts.start("deploy", "--profile", "third")
    hosts.wait_for("first", "step-started", "gate", since)
    spoil_confirmation(hosts, name)

    done = client.wait(within_s=300)

    other = next(host for host in BOTH if host != name)
    committed = [e for e in hosts.journal(other)[since:] if e["event"] == "committed"]
    assert committed[0]["release"].startswith("third-"), "the other one had confirmed"
    assert (done.code, outcomes(done)) == (3, [("rolled-back", 3)] * 2), done.stderr
    assert links(hosts) == before
    assert serves(hosts, "good")


def test_a_restart_that_only_one_host_could_confirm_ends_with_both_serving(hosts: Pair) -> None:
    before = links(hosts)
    since = len(hosts.journal("first"))
    client = hosts.start("restart")
    hosts.wait_for("first", "step-started", "gate", since)
    spoil_confirmation(hosts, "second")

    done = client.wait(within_s=300)

    assert (done.code, outcomes(done)) == (3, [("rolled-back", 3)] * 2), done.stderr
    assert links(hosts) == before
    assert serves(hosts, "good")


def test_a_split_that_nobody_was_there_to_mend_is_told_and_mended_by_the_next_deploy(hosts: Pair) -> None:
    """The state that is left when everything dies between two confirmations, made by hand."""
    assert hosts.deploy("next").code == 0
    assert hosts.ops("stop").code == 0
    instance = hosts.boxes["second"].root / "default"
    old = next(r.name for r in (instance / "releases").iterdir() if r.name.startswith("good-"))
    for link in ("current", "last-good"):
        (instance / link).unlink()
        (instance / link).symlink_to(f"releases/{old}")

    rows = hosts.rows("status")
    assert all("does not belong to" in row["message"] for row in rows.values())
    refused = hosts.ops("start")
    assert refused.code == 2, refused.stderr
    assert "do not belong together" in refused.document["hosts"][0]["message"]
    mended = hosts.deploy("next")
    assert mended.code == 0, mended.stderr
    assert serves(hosts, "next")
