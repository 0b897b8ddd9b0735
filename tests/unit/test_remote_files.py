"""Links, lock, journal and reserve of a host, on a real folder. If this breaks, a reader sees half a file, two writers
own one host, a repeated request is written twice, or a full disk forbids the way back."""

import errno
import fcntl
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from ops.remote import durable, journal, lock, reserve, store
from ops.remote.refusal import VerbError


def emit(event: Any) -> None:
    raise AssertionError("these verbs stream nothing")


@pytest.fixture
def instance(tmp_path: Path) -> str:
    store.prepare(emit, instance_dir=str(tmp_path))
    return str(tmp_path)


def release(instance: str, name: str, *, age: int = 0) -> None:
    folder = Path(instance, "releases", name)
    folder.mkdir()
    (Path(instance) / "logs" / f"{name}.log").write_text("log")
    os.utime(folder, (1_000_000 - age, 1_000_000 - age))


def owner(run: str) -> dict[str, Any]:
    return {"owner": "ann", "host": "here", "pid": 1, "pid_start": 1, "run": run, "since": 0.0, "message": "why"}


def test_of_many_who_want_the_lock_exactly_one_gets_it(instance: str) -> None:
    start = threading.Barrier(8)
    got: list[str] = []

    def want(run: str) -> None:
        start.wait()
        if lock.acquire(emit, instance_dir=instance, owner=owner(run))["acquired"]:
            got.append(run)

    threads = [threading.Thread(target=want, args=(f"r{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1 and lock.read(instance)["run"] == got[0]
    assert [p.name for p in Path(instance).glob("lock*")] == ["lock"], "temporary files are left"


def test_asking_for_the_own_lock_again_is_yes(instance: str) -> None:
    assert lock.acquire(emit, instance_dir=instance, owner=owner("r1"))["acquired"]
    assert lock.acquire(emit, instance_dir=instance, owner=owner("r1"))["acquired"]


def test_a_takeover_needs_the_lock_to_be_the_dead_runs_still(instance: str) -> None:
    lock.acquire(emit, instance_dir=instance, owner=owner("r2"))
    refused = lock.take_over(emit, instance_dir=instance, dead_run="r1", owner=owner("r3"))
    assert not refused["acquired"] and refused["holder"]["run"] == "r2"
    assert lock.take_over(emit, instance_dir=instance, dead_run="r2", owner=owner("r3"))["acquired"]
    assert lock.read(instance)["run"] == "r3"


def test_a_takeover_leaves_no_moment_in_which_the_host_is_free(instance: str) -> None:
    lock.acquire(emit, instance_dir=instance, owner=owner("r0"))
    held, done = [], threading.Event()

    def look() -> None:
        while not done.is_set():
            held.append(Path(lock.path_of(instance)).exists())

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    n = 0
    while n < 50 or len(held) < 50:
        assert lock.take_over(emit, instance_dir=instance, dead_run=f"r{n}", owner=owner(f"r{n + 1}"))["acquired"]
        n += 1
    done.set()
    watcher.join()
    assert all(held)


def test_only_its_owner_gives_the_lock_back(instance: str) -> None:
    lock.acquire(emit, instance_dir=instance, owner=owner("r1"))
    assert lock.release(emit, instance_dir=instance, run="r2") == {"released": False}
    with pytest.raises(VerbError, match="no longer owns"):
        lock.heartbeat(emit, instance_dir=instance, run="r2")
    assert lock.release(emit, instance_dir=instance, run="r1") == {"released": True}


def test_a_run_that_was_undone_writes_nothing_more(instance: str) -> None:
    with pytest.raises(VerbError, match="no longer owns"):
        journal.append(emit, instance_dir=instance, event={"run": "r1", "event": "step-done", "seq": 1})
    assert journal.tail(instance) == []


def test_a_repeated_line_is_written_once(instance: str) -> None:
    lock.acquire(emit, instance_dir=instance, owner=owner("r1"))
    event = {"run": "r1", "event": "step-started", "seq": 1}
    assert journal.append(emit, instance_dir=instance, event=event) == {"appended": True}
    assert journal.append(emit, instance_dir=instance, event=event) == {"appended": False}
    assert len(journal.tail(instance)) == 1


def test_the_ends_of_several_runs_are_one_write(instance: str) -> None:
    """A client that settles a dead run and dies between two lines would leave one of them open for ever."""
    lock.acquire(emit, instance_dir=instance, owner=owner("r2"))
    own, dead = {"run": "r2", "event": "run-ended"}, {"run": "r1", "event": "run-ended", "by": "r2"}
    for _ in range(2):
        journal.append(emit, instance_dir=instance, event=own, also=[dead])
    assert [(e["run"], e.get("by")) for e in journal.tail(instance)] == [("r2", None), ("r1", "r2")]


def test_a_torn_line_swallows_nothing(instance: str) -> None:
    Path(journal.path_of(instance)).write_text('{"at": 1, "ev')
    journal.write(instance, {"run": "r1", "event": "restored"})
    assert [e["event"] for e in journal.tail(instance)] == ["restored"]


class FullDisk:
    """Refuses writes until the reserve is gone."""

    def __init__(self, instance: str) -> None:
        self.instance = instance
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if Path(reserve.path_of(self.instance)).exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return "written"


def test_a_full_disk_spends_the_reserve_and_writes(instance: str) -> None:
    reserve.keep(instance)
    assert Path(reserve.path_of(instance)).stat().st_size == reserve.BYTES
    write = FullDisk(instance)
    assert reserve.spend(instance, write) == "written" and write.calls == 2
    assert not Path(reserve.path_of(instance)).exists()


def test_without_a_reserve_a_full_disk_is_an_error(instance: str) -> None:
    def write() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space"):
        reserve.spend(instance, write)


def test_other_errors_do_not_spend_the_reserve(instance: str) -> None:
    reserve.keep(instance)

    def write() -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    with pytest.raises(OSError, match="Permission"):
        reserve.spend(instance, write)
    assert Path(reserve.path_of(instance)).exists()


def test_pruning_keeps_the_release_that_a_rollback_would_choose(instance: str) -> None:
    for age, name in enumerate(["good-9", "bad-4", "bad-3", "bad-2", "bad-1", "good-2", "good-1"]):
        release(instance, name, age=age)
    store.swap(instance, "current", "good-9")
    store.swap(instance, "last-good", "good-9")
    good = ["good-1", "good-2", "good-9"]
    assert store.prune(emit, instance_dir=instance, keep=4, good=good)["removed"] == ["bad-1", "bad-2", "bad-3"]
    assert set(store.prune(emit, instance_dir=instance, keep=1, good=good)["removed"]) == {"bad-4", "good-1"}
    assert {r["id"] for r in store.releases(instance)} == {"good-9", "good-2"}


def test_pruning_keeps_the_newest_and_whatever_a_link_names(instance: str) -> None:
    for age, name in enumerate(["new-6", "new-5", "old-4", "old-3", "old-2", "old-1"]):
        release(instance, name, age=age)
    store.swap(instance, "last-good", "old-1")
    store.swap(instance, "baseline", "old-2")
    removed = store.prune(emit, instance_dir=instance, keep=3)["removed"]
    assert removed == ["old-3", "old-4", "new-5"]
    assert {r["id"] for r in store.releases(instance)} == {"old-1", "old-2", "new-6"}
    assert store.prune(emit, instance_dir=instance, keep=1)["removed"] == ["new-6"]
    assert store.links(instance)["last-good"] == "old-1"


def test_a_link_never_names_what_is_not_there(instance: str) -> None:
    with pytest.raises(VerbError, match="not on the host"):
        store.swap(instance, "current", "gone-1")
    assert store.links(instance)["current"] is None


def test_a_reader_sees_the_old_file_or_the_new_one(instance: str) -> None:
    path = Path(instance, "guard", "armed")
    durable.write_atomic(str(path), b"A" * 100_000)
    old, new = (100_000, b"A", b"A"), (100_000, b"B", b"B")
    seen, done = set(), threading.Event()

    def look() -> None:
        while not done.is_set():
            data = path.read_bytes()
            seen.add((len(data), data[:1], data[-1:]))

    reader = threading.Thread(target=look, daemon=True)
    reader.start()
    n = 0
    while reader.is_alive() and (n < 60 or len(seen) < 2):
        durable.write_atomic(str(path), (b"A", b"B")[n % 2] * 100_000)
        n += 1
    done.set()
    reader.join()
    assert seen == {old, new}


def test_the_journal_is_json_lines_that_any_tool_reads(instance: str) -> None:
    journal.write(instance, {"run": "r1", "event": "restored", "reason": 'a "quoted" word'})
    line = Path(journal.path_of(instance)).read_text().splitlines()[0]
    assert json.loads(line)["reason"] == 'a "quoted" word'


def test_a_lock_that_is_given_back_while_it_is_asked_for_is_taken(
    instance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock.acquire(emit, instance_dir=instance, owner=owner("r1"))
    look = lock.read

    def and_then_it_is_free(folder: str) -> Any:
        Path(lock.path_of(folder)).unlink(missing_ok=True)
        return look(folder)

    monkeypatch.setattr(lock, "read", and_then_it_is_free)
    found = lock.acquire(emit, instance_dir=instance, owner=owner("r2"))
    assert found["acquired"] and found["holder"]["run"] == "r2"


def test_the_lock_is_not_given_back_over_the_head_of_who_takes_it_over(instance: str) -> None:
    """Between the look and the removal the lock may have become another run's."""
    lock.acquire(emit, instance_dir=instance, owner=owner("r1"))
    with Path(lock.path_of(instance) + ".mutex").open("w") as mutex:
        fcntl.flock(mutex, fcntl.LOCK_EX)  # as `take_over` holds it
        giving = threading.Thread(target=lock.release, args=(emit,), kwargs={"instance_dir": instance, "run": "r1"})
        giving.start()
        giving.join(0.3)
        Path(lock.path_of(instance)).write_text(json.dumps(owner("r2")))
    giving.join(10)
    assert lock.read(instance)["run"] == "r2"


def test_a_lock_of_a_newer_ops_is_refused_in_one_sentence(instance: str) -> None:
    Path(lock.path_of(instance)).write_text(json.dumps({"schema": 2, "holder": {"id": "r1"}}))
    with pytest.raises(VerbError, match=r"/lock has version 2, and this ops reads 1: a newer ops wrote it") as refused:
        lock.take_over(emit, instance_dir=instance, dead_run="r1", owner=owner("r2"))
    assert refused.value.code == "newer-version"


@pytest.mark.parametrize("version", [{}, {"schema": 1}, {"schema": "1.4"}])
def test_a_lock_with_keys_that_nobody_here_knows_is_read(instance: str, version: dict[str, Any]) -> None:
    Path(lock.path_of(instance)).write_text(json.dumps({**version, **owner("r1"), "colour": "blue"}))
    assert lock.read(instance)["colour"] == "blue"
    assert lock.release(emit, instance_dir=instance, run="r1") == {"released": True}


def test_the_lock_says_its_version(instance: str) -> None:
    lock.acquire(emit, instance_dir=instance, owner=owner("r1"))
    assert json.loads(Path(lock.path_of(instance)).read_text())["schema"] == 1
