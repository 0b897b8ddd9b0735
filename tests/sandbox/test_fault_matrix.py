"""The promise of a deploy: whatever strikes wherever, the host ends with one whole server, the last good release or the
new one, and says so. If a cell fails, that fault at that point leaves somebody's host without a server, with two, with
half of each, or with an `ops status` that lies about it."""

import fcntl
import json
import os
import queue
import threading
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from matrix import FAULTS, POINTS, QUICK_POINTS, Cell, Report, cells, play
from rig import REPOSITORY, Rig, rig

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(3600)]

HOSTS = 3
"""Hosts at a time: a cell waits as much as it works."""
ROOT_MIB = 64
LONG_ROUNDS = 3
DOCUMENT = REPOSITORY / "docs" / "fault-matrix.md"
NO_MOUNT = "limiting the size of a folder needs the right to mount (root)"


def run_cells(wanted: Sequence[Cell], folder: Path, hosts: int, *, both: bool = False) -> dict[str, Report]:
    """Play the cells on a few hosts at once; a host on which a cell failed is thrown away. both: after each cell the
    next deploy and the next rollback, not one of the two."""
    todo: queue.SimpleQueue[tuple[int, Cell]] = queue.SimpleQueue()
    for index, cell in enumerate(wanted):
        if may_mount() or cell.fault != "disk-full":
            todo.put((index, cell))
    reports: dict[str, Report] = {}
    threads = [threading.Thread(target=_work, args=(todo, reports, folder, n, both)) for n in range(hosts)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        while not todo.empty():
            todo.get()
        raise
    return reports


def _work(todo: Any, reports: dict[str, Report], folder: Path, number: int, both: bool) -> None:
    generation = 0
    while not todo.empty():
        generation += 1
        name = f"cells-{os.getpid()}-{number}-{generation}"
        try:
            with rig(folder / name, name, root_size_mib=ROOT_MIB if may_mount() else 0) as host:
                _ready(host)
                _play_until_one_fails(todo, reports, host, both)
        except Exception:
            _tell(folder, f"{name} did not come up, its cells are left to the others", traceback.format_exc())
            return


def may_mount() -> bool:
    return os.geteuid() == 0


def _ready(host: Rig) -> None:
    """A good release serves, and there is an earlier good one."""
    for profile in ("good", "next"):
        done = host.deploy(profile)
        assert done.code == 0, done.stderr + done.stdout


def _tell(folder: Path, what: str, detail: str) -> None:
    """For whoever waits: `tail -f` of progress.txt in the test's folder."""
    with (folder / "progress.txt").open("a") as file:
        file.write(f"{what}: {detail.strip()}\n")


def _play_until_one_fails(todo: Any, reports: dict[str, Report], host: Rig, both: bool) -> None:
    while True:
        try:
            index, cell = todo.get(timeout=0)
        except queue.Empty:
            return
        checks = ("deploy", "rollback") if both else (("deploy", "rollback")[(index // len(FAULTS)) % 2],)
        # The guard waits longest for a way back; the long run waits for it there as well.
        break_lock = (index // len(FAULTS)) % 2 == 1 or (cell.going_back and not both)
        try:
            report = reports[cell.name] = play(host, cell, break_lock=break_lock, checks=checks)
            _tell(host.project.parent, cell.name, f"{report.code} {report.served} {report.way} {report.seconds} s")
        except Exception:
            keys = ("run", "event", "seq", "step", "outcome", "release", "by", "recovery")
            shown = "\n".join(str({k: e[k] for k in keys if k in e}) for e in host.journal()[-14:])
            reports[cell.name] = Report(
                cell, error=f"{traceback.format_exc(limit=-3)}\nclient:\n{host.last_stderr[-3000:]}\njournal:\n{shown}"
            )
            _tell(host.project.parent, cell.name, reports[cell.name].error)
            return


@pytest.fixture(scope="session")
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    """Every selected cell of the quick matrix, played once, also when pytest runs in several processes."""
    wanted = [c for c in cells(QUICK_POINTS) if any(f"[{c.name}]" in item.nodeid for item in request.session.items)]
    base = tmp_path_factory.getbasetemp()
    shared = base.parent / "fault-matrix" if hasattr(request.config, "workerinput") else base / "fault-matrix"
    shared.mkdir(exist_ok=True)
    results = shared / "reports.json"
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if results.exists():
            found = json.loads(results.read_text())
            return {name: Report(**{**r, "cell": Cell(**r["cell"])}) for name, r in found.items()}
        played = run_cells(wanted, shared, HOSTS)
        results.write_text(json.dumps({name: asdict(report) for name, report in played.items()}))
    if request.config.getoption("--write-results"):
        write_document(played, "The quick matrix of `make test`.")
    return played


@pytest.mark.parametrize("name", [cell.name for cell in cells(QUICK_POINTS)])
def test_a_fault_leaves_one_whole_server_and_the_truth(reports: dict[str, Report], name: str) -> None:
    if name.endswith("-disk-full") and not may_mount():
        pytest.skip(NO_MOUNT)
    assert name in reports, "not played: no host came up for it (see progress.txt in the test's folder)"
    report = reports[name]
    assert not report.error, report.error
    assert report.evidence, "nothing proves that the fault struck"
    assert report.served in ("old", "new")


@pytest.mark.long
@pytest.mark.parametrize("round_", range(1, LONG_ROUNDS + 1))
def test_every_point_of_the_flow_survives_every_fault(
    round_: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    played = run_cells(cells(POINTS), tmp_path, HOSTS, both=True)
    failed = {name: report.error for name, report in played.items() if report.error}
    assert not failed, "\n\n".join(f"{name}: {error}" for name, error in failed.items())
    assert len(played) == len(POINTS) * (len(FAULTS) - (not may_mount()))
    if request.config.getoption("--write-results"):
        write_document(played, f"The whole matrix of `make test-long`, round {round_} of {LONG_ROUNDS} in a row.")


def test_the_matrix_has_at_least_sixty_cells() -> None:
    assert len(cells(QUICK_POINTS)) >= 60
    assert set(QUICK_POINTS) <= set(POINTS)


def write_document(played: dict[str, Report], which: str) -> None:
    """`docs/fault-matrix.md`: one row a point, one column a fault."""
    points = [point for point in POINTS if any(report.cell.point == point for report in played.values())]
    lines = [
        "# Fault matrix",
        "",
        f"Written by `pytest tests/sandbox/test_fault_matrix.py --write-results`; do not edit. {which}",
        "",
        "Each cell: a real `ops deploy` of a new release over a serving one, struck by the fault at the moment when",
        "its journal (for `load`: its engine's log) showed the point. *exit* is the client's exit code, then which",
        "release serves afterwards, and who brought it there when the client could not. `back-…` are points of the",
        "way back after a failed gate. How a fault is proven from outside is told below the table.",
        "",
        "| point | " + " | ".join(FAULTS) + " |",
        "|---|" + "---|" * len(FAULTS),
    ]
    for point in points:
        row = [_words(played.get(Cell(point, fault).name)) for fault in FAULTS]
        lines.append(f"| {point} | " + " | ".join(row) + " |")
    good = sum(1 for report in played.values() if not report.error)
    lines += ["", f"{good} of {len(played)} cells passed.", "", "## How each fault was proven", ""]
    for fault in FAULTS:
        struck = [r.evidence[-1] for r in played.values() if r.cell.fault == fault and r.evidence]
        if struck:
            lines.append(f"- **{fault}**: for example: {struck[0]}.")
    DOCUMENT.write_text("\n".join(lines) + "\n")


def _words(report: Report | None) -> str:
    if report is None:
        return "-"
    if report.error:
        return "**failed**"
    how = "killed" if report.code == -9 else f"exit {report.code}"
    way = "" if report.way in ("", "the client") else f", by {report.way}"
    return f"{how}, {report.served} serves{way}"
