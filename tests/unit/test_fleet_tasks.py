"""What a roll does to each host and says of it: if this fails, one goes back to another release than was asked for, one
that was left half changed is called untouched, or a good one is put back because its neighbour failed."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ops.errors import ConfigError
from ops.fleet import action, events, host_task, playbook, roll
from ops.fleet.host_task import Told, Wish
from ops.fleet.playbook import Followed
from ops.flows.rollback import choose
from ops.model.inventory import HostSpec
from ops.model.result import HostResult
from ops.remote import processes

SPEC = HostSpec(name="gpu-a", address="gpu-a")
SERVING = HostResult.on(
    SPEC, release="good-1", outcome="serving", details={"state": "serving", "admitted": True, "good": True}
)


def plugin(repository: Path, folder: str, name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(f"plugin_{name}", repository / "playbooks" / folder / f"{name}.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


class Quiet:
    def say(self, host: str, text: str) -> None: ...

    def step(self, host: str, kind: str, detail: str) -> None: ...

    def phase(self, host: str, name: str, elapsed_s: float, expected_s: float | None) -> None: ...


LINKS = {"current": "next-2", "last-good": "next-2", "baseline": None, "pending": None}
FACTS = {
    "links": LINKS,
    "releases": [{"id": "good-1"}, {"id": "next-2"}],
    "journal": [{"event": "committed", "release": "good-1"}, {"event": "committed", "release": "next-2"}],
}


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """What the transaction was asked to go back to, on a host that serves next-2 and has no baseline."""
    found: list[str | None] = []

    def rollback(spec: HostSpec, to: str | None, *_: Any, **__: Any) -> HostResult:
        found.append(to)
        return HostResult.on(spec, outcome="rolled-back")

    monkeypatch.setattr(
        host_task, "status", lambda _: SERVING.model_copy(update={"details": {"links": LINKS, "good": True}})
    )
    monkeypatch.setattr(host_task, "rollback", rollback)
    return found


@pytest.mark.parametrize(
    ("wanted", "passed_on"), [("baseline", "baseline"), ("previous", None), ("good-1", "good-1"), ("gone-9", "gone-9")]
)
def test_a_host_is_asked_for_what_was_wanted_and_for_nothing_else(
    asked_for: list[str | None], wanted: str, passed_on: str | None
) -> None:
    host_task.good(SPEC, wanted, Wish(), Quiet())

    assert asked_for == [passed_on]


def test_without_a_baseline_going_back_to_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="no baseline release"):
        choose(FACTS, "baseline")


@pytest.mark.parametrize(
    ("wanted", "outcome"), [("baseline", "refused"), ("previous", "planned"), ("gone-9", "refused")]
)
def test_a_dry_run_foretells_the_refusal(
    asked_for: list[str | None], monkeypatch: pytest.MonkeyPatch, wanted: str, outcome: str
) -> None:
    monkeypatch.setattr(host_task, "connected", lambda _: nullcontext())
    monkeypatch.setattr(host_task, "observe", lambda _: FACTS)

    told = host_task.good(SPEC, wanted, Wish(check=True), Quiet())

    assert (told.result.outcome, asked_for) == (outcome, [])


Work = Callable[[], Told]
Play = Callable[..., tuple[Mapping[str, Any], Followed]]


@pytest.fixture
def play(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Run the task `ops_release` with other work in it; gives what Ansible gets and what `ops` reads."""
    path = tmp_path / "events.jsonl"
    monkeypatch.setenv(events.VARIABLE, str(path))
    monkeypatch.setattr(action, "die_with_parent", lambda _: None)
    monkeypatch.setattr(action, "project_of", lambda _: SimpleNamespace(host=lambda name: SPEC))
    module = plugin(repository, "action_plugins", "ops_release")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # its documentation lies beside its file
    monkeypatch.setattr(module.ActionModule, "check", lambda *_: None)
    arguments = {"state": "present", "profile": "next"}
    monkeypatch.setattr(module.ActionModule, "validate_argument_spec", lambda *_, **__: (None, arguments))
    task = SimpleNamespace(action="ops_release", args=arguments, async_val=0, check_mode=False, diff=False)
    unused = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/"))
    task_action = module.ActionModule(task, unused, SimpleNamespace(), None, None, None)

    def played(work: Work, *, check: bool = False) -> tuple[Mapping[str, Any], Followed]:
        task.check_mode = check
        monkeypatch.setattr(module.ActionModule, "work", lambda *_: work())
        answer = task_action.run(None, {"inventory_hostname": SPEC.name})
        found = Followed()
        for event in events.Tail(path).new():
            found.take(event)
        return answer, found

    return played


def killed() -> Told:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def buggy() -> Told:
    raise KeyError("the-bug")


def done() -> Told:
    return Told(HostResult.on(SPEC, outcome="deployed", release="next-2", changed=True))


@pytest.mark.parametrize(
    ("work", "outcome", "code", "words"),
    [
        (killed, "unsafe", 4, "killed by signal 9"),
        (buggy, "bug", 1, "the-bug"),
        (done, "deployed", 0, ""),
    ],
)
def test_a_host_whose_work_ended_without_a_word_is_not_called_untouched(
    play: Play, work: Work, outcome: str, code: int, words: str
) -> None:
    answer, found = play(work)

    row = roll._row(SPEC, SERVING.model_copy(update={"release": "next-2"}), found)
    assert (row.outcome, row.exit_code) == (outcome, code)
    assert words in row.message
    assert (answer["outcome"], answer["exit_code"], bool(answer["failed"])) == (outcome, code, code != 0)


def test_a_dry_run_that_is_killed_leaves_nobody_unsafe(play: Play) -> None:
    _, found = play(killed, check=True)

    row = roll._row(SPEC, SERVING, found)
    assert (row.outcome, row.exit_code) == ("refused", 2)


def test_what_a_host_said_itself_counts_although_its_process_is_killed_afterwards(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = events.append

    def killed_after_the_result(path: str, event: dict[str, Any]) -> None:
        append(path, event)
        if event["event"] == "worked":
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(events, "append", killed_after_the_result)

    _, found = play(done)

    assert found.results[SPEC.name]["outcome"] == "deployed"


def test_when_worker_and_work_are_killed_together_the_host_is_unsafe() -> None:
    found = Followed(code=1)
    found.take({"event": "working", "host": SPEC.name, "pid": 0, "start": 1, "task": "ops_release", "final": True})

    assert not playbook._alive(found)
    row = roll._row(SPEC, SERVING, found)
    assert (row.outcome, row.exit_code) == ("unsafe", 4)


def test_who_only_read_a_host_and_was_killed_leaves_it_untouched() -> None:
    found = Followed(code=1)
    found.take({"event": "working", "host": SPEC.name, "pid": 0, "start": 1, "task": "ops_status", "final": False})

    assert roll._row(SPEC, SERVING, found).outcome == "untouched"


def test_a_second_interrupt_reaches_no_process_that_only_has_the_number_of_an_old_one() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        start = processes.stat(stranger.pid)["starttime"]
        found = Followed(interrupted=2)
        found.take({"event": "working", "host": "gone", "pid": 2**22 + 1, "start": 1, "final": True})
        found.take({"event": "working", "host": SPEC.name, "pid": stranger.pid, "start": start - 1, "final": True})
        try:
            ended = SimpleNamespace(poll=lambda: 0)
            playbook._pass_on(ended, found, first=False, show=lambda _: None)  # type: ignore[arg-type]
            with pytest.raises(subprocess.TimeoutExpired):
                stranger.wait(0.3)
        finally:
            stranger.kill()


DEPLOYED = {"outcome": "deployed", "changed": True, "previous": "good-1"}
ROLL = {
    "earlier": {"ops_deployed": DEPLOYED, "ops_watched": {"failed": False}},
    "neighbour": {"ops_deployed": DEPLOYED, "ops_watched": {"skipped": True}},
    "wanting": {"ops_deployed": DEPLOYED, "ops_watched": {"failed": True}},
    "failed": {"ops_deployed": {"outcome": "rolled-back", "changed": False, "failed": True}},
    "later": {},
}


@pytest.mark.parametrize(
    ("on_failure", "back"), [("keep", ["wanting"]), ("revert", ["earlier", "neighbour", "wanting"])]
)
def test_a_host_that_deployed_well_is_kept_when_another_of_its_wave_fails(
    repository: Path, on_failure: str, back: list[str]
) -> None:
    switched = plugin(repository, "filter_plugins", "ops_rollout").ops_switched

    assert switched(list(ROLL), ROLL, on_failure) == [{"host": name, "release": "good-1"} for name in back]
