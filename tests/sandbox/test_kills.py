"""The client dies at a random moment, a hundred times. If this breaks, some moment that nobody thought of leaves a host
without a server after the deadline, with two, or with a status that does not say what is true."""

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from matrix import check_journal, no_orphan, outside, truth
from rig import REPOSITORY, Rig, rig, until

pytestmark = [pytest.mark.sandbox, pytest.mark.long, pytest.mark.timeout(3 * 3600)]

KILLS = 100
SEED = 20261130


def test_a_client_killed_at_a_hundred_random_moments_never_leaves_a_host_without_its_server(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    chance = random.Random(SEED)
    struck: list[str] = []
    with rig(tmp_path / "kills", f"kills-{os.getpid()}") as host:
        assert host.deploy("good").code == 0
        whole_s = max(host.deploy("next").seconds, host.deploy("good").seconds)
        for name in ("good", "next"):
            host.choose_timeouts(name, "brief")
        for number in range(KILLS):
            struck.append(kill_once(host, chance, whole_s, number))
        check_journal(host.journal(), last_open=True)
    assert len(set(struck)) > 5, f"the moments were all alike: {set(struck)}"
    if request.config.getoption("--write-results"):
        write_document(struck)


def kill_once(host: Rig, chance: random.Random, whole_s: float, number: int) -> str:
    """Kill one deploy after a random time, wait as long as the guard may take, and look. Returns where it stood."""
    old = host.link("last-good")
    profile = "next" if (host.link("current") or "").startswith("good-") else "good"
    since = len(host.journal())
    client = host.start("deploy", "--profile", profile, *(("--break-lock",) if number % 3 == 0 else ()))
    time.sleep(chance.uniform(0.2, whole_s))
    client.signal(signal.SIGKILL)
    code = client.wait().code
    assert code in (-signal.SIGKILL, 0), code
    seen = [e for e in host.journal()[since:] if e["event"].startswith("step-")]
    where = f"{seen[-1]['event']} {seen[-1]['step']['kind']}" if seen else "before its first step"
    what = f"kill {number + 1}, {where}"
    print(what, flush=True)
    truth(host, what)
    assert len(host.engines()) <= 1, f"{what}: two servers"
    until(lambda: outside(host) != {"pending"}, f"{what}: the guard undoes it", within_s=120.0, every_s=0.1)
    until(lambda: host.status()["state"] == "serving", f"{what}: a server", within_s=60.0, every_s=0.2)
    committed = [e["release"] for e in host.journal()[since:] if e["event"] in ("committed", "confirmed-late")]
    good = committed[-1] if committed else old
    assert host.link("current") == good, f"{what}: {host.link('current')} serves, {good} is the last good one"
    no_orphan(host)
    return where


def write_document(struck: list[str]) -> None:
    """`docs/results/kills.md`: where the client stood when it was killed."""
    lines = [
        "# A hundred kills",
        "",
        "Written by `pytest tests/sandbox/test_kills.py --write-results`; do not edit.",
        "",
        f"{len(struck)} clients of `ops deploy` in a row, each killed with SIGKILL at a random moment (seed {SEED}).",
        "After each, when the guard's deadline had passed: one server, that of the last good release; never two; `ops",
        "status` said what was true; no process and no GPU memory of another release. The last journal line before",
        "the kill:",
        "",
        "| where | kills |",
        "|---|---|",
        *(f"| {where} | {count} |" for where, count in Counter(struck).most_common()),
    ]
    (REPOSITORY / "docs" / "results" / "kills.md").write_text("\n".join(lines) + "\n")
