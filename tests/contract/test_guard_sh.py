"""guard.sh by itself, under the host's own /bin/sh, with a supervisorctl that only writes down what it was told. If it
breaks, a host whose operator is gone keeps a release that nobody confirmed, or loses one that somebody did."""

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ops.remote import guard, lifecycle
from ops.render.files import template_folder

OLD, NEW, BASE = "old-1", "new-2", "base-0"
Activate = Callable[[str | None], None]


class Host:
    """An instance folder with releases, links and a guard."""

    def __init__(self, folder: Path) -> None:
        folder = folder / "a folder"
        self.dir = folder / "default"
        self.guard = self.dir / "guard"
        self.guard.mkdir(parents=True)
        for release in (OLD, NEW, BASE):
            (self.dir / "releases" / release).mkdir(parents=True)
        self.calls = folder / "calls"
        self.nccl_conf = folder / "nccl.conf"
        control, conf = folder / "supervisorctl", folder / "supervisord.conf"
        control.write_text(
            f'#!/bin/sh\n[ "$1 $2" = "-c {conf}" ] || exit 1\nshift 2\necho "$@" >>{shlex.quote(str(self.calls))}\n'
        )
        control.chmod(0o755)
        shutil.copy(template_folder() / "guard.sh", self.guard / "guard.sh")
        (self.guard / "guard.conf").write_text(
            f"SUPERVISOR=supervisord\nSUPERVISORCTL={shlex.quote(str(control))}\n"
            f"SUPERVISORD_CONF={shlex.quote(str(conf))}\nNCCL_CONF={shlex.quote(str(self.nccl_conf))}\n"
            "ENGINE=engine-default\nLOAD_TIMEOUT_S=100\nCRASH_LIMIT=3\nLOG_MAX_KIB=1024\n"
        )
        (self.guard / "wanted").write_text("running\n")
        (self.guard / "reserve").write_bytes(b"\0" * 4096)
        (self.dir / "lock").write_text(json.dumps({"run": "r1", "owner": "ann"}))

    def link(self, name: str, release: str) -> None:
        path = self.dir / name
        path.unlink(missing_ok=True)
        path.symlink_to(f"releases/{release}")

    def links(self) -> dict[str, str]:
        names = ("current", "last-good", "baseline", "pending")
        return {name: (self.dir / name).readlink().name for name in names if (self.dir / name).is_symlink()}

    def mark(self, name: str, *, in_s: int, release: str = NEW, baseline: bool = False) -> None:
        text = f"RUN=r1\nRELEASE={release}\nDEADLINE={int(time.time()) + in_s}\nBOOT=b\n"
        (self.guard / name).write_text(f"{text}BASELINE={'yes' if baseline else 'no'}\n")

    def markers(self) -> set[str]:
        return {n for n in ("armed", "armed.client", "fired", "confirmed") if (self.guard / n).exists()}

    def run(self, command: str) -> None:
        done = subprocess.run(
            ["/bin/sh", self.guard / "guard.sh", command, self.dir],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            env={"PATH": os.environ["PATH"]},
        )
        assert done.returncode == 0, done.stderr

    def journal(self) -> list[dict[str, Any]]:
        file = self.dir / "journal.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines() if line] if file.exists() else []

    def told(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A release is pending: the old one was stopped, the new one is current."""
    found = Host(tmp_path)
    found.link("last-good", OLD)
    found.link("baseline", BASE)
    found.link("current", NEW)
    found.link("pending", NEW)
    return found


def test_before_the_deadline_it_does_nothing(host: Host) -> None:
    host.mark("armed", in_s=60)
    host.run("expire")
    assert host.markers() == {"armed"} and host.links()["current"] == NEW and host.told() == []


@pytest.mark.parametrize("marker", ["armed", "armed.client", "fired"])
def test_after_the_deadline_the_last_good_release_is_back_whatever_the_client_had_begun(
    host: Host, marker: str
) -> None:
    host.mark(marker, in_s=-1)
    host.run("expire")
    assert host.markers() == set()
    assert host.links() == {"current": OLD, "last-good": OLD, "baseline": BASE}
    assert [call.split()[0] for call in host.told()] == ["stop", "reread", "update", "start"]
    event = host.journal()[-1]
    assert (event["event"], event["run"], event["release"], event["undone"], event["gated"]) == (
        "restored", "r1", OLD, NEW, False,
    )  # fmt: skip
    assert not (host.dir / "lock").exists(), "the dead run's lock explains nothing any more"


@pytest.fixture(params=["guard.sh", "client"])
def activated(request: pytest.FixtureRequest, host: Host, monkeypatch: pytest.MonkeyPatch) -> Activate:
    """Make `/etc/nccl.conf` that of a release (None: nothing serves), as the host does it, or as the client."""
    monkeypatch.setattr(lifecycle, "_SYSTEM_NCCL_CONF", str(host.nccl_conf))

    def by_the_host(release: str | None) -> None:
        host.link("current", NEW)
        (host.dir / "baseline").unlink(missing_ok=True)
        (host.dir / "last-good").unlink(missing_ok=True)
        if release:
            host.link("last-good", release)
        host.mark("armed", in_s=60)
        host.run("boot")

    def by_the_client(release: str | None) -> None:
        lifecycle._nccl_conf(str(host.dir), release)

    return by_the_host if request.param == "guard.sh" else by_the_client


def test_the_sites_nccl_conf_comes_back_whoever_wrote_ours(host: Host, activated: Activate) -> None:
    for release in (OLD, BASE):
        (host.dir / "releases" / release / "nccl.conf").write_text(f"# of {release}\n")
    host.nccl_conf.write_text("# of the site\n")
    for release, found in [(OLD, f"# of {OLD}\n"), (BASE, f"# of {BASE}\n"), (NEW, "# of the site\n")] * 2:
        activated(release)
        assert host.nccl_conf.read_text() == found
    activated(OLD)
    activated(None)
    assert host.nccl_conf.read_text() == "# of the site\n"


def test_where_the_site_had_no_nccl_conf_none_stays(host: Host, activated: Activate) -> None:
    (host.dir / "releases" / OLD / "nccl.conf").write_text("# ours\n")
    host.nccl_conf.write_text("# of the site\n")
    activated(OLD)
    activated(NEW)
    host.nccl_conf.unlink()  # by its administrator
    activated(OLD)
    assert host.nccl_conf.read_text() == "# ours\n"
    host.nccl_conf.unlink()
    activated(NEW)
    assert not host.nccl_conf.exists()


def test_the_lock_of_another_run_stays(host: Host) -> None:
    (host.dir / "lock").write_text(json.dumps({"run": "r2"}))
    host.mark("armed", in_s=-1)
    host.run("expire")
    assert (host.dir / "lock").exists()


def test_a_boot_undoes_what_is_pending_without_waiting_for_the_deadline(host: Host) -> None:
    host.mark("armed", in_s=600)
    host.run("boot")
    assert host.links()["current"] == OLD and host.markers() == set()
    assert host.journal()[-1]["reason"] == "boot"


@pytest.mark.parametrize(("baseline", "linked"), [(False, BASE), (True, NEW)], ids=["speculative", "a baseline"])
def test_a_boot_finishes_what_passed_its_commit_point(host: Host, baseline: bool, linked: str) -> None:
    host.mark("confirmed", in_s=-1, baseline=baseline)
    host.run("boot")
    assert host.links() == {"current": NEW, "last-good": NEW, "baseline": linked}
    assert host.journal()[-1]["event"] == "confirmed-late" and host.markers() == set()


@pytest.mark.parametrize(("baseline", "linked"), [(False, BASE), (True, NEW)], ids=["speculative", "a baseline"])
def test_the_next_client_finishes_it_as_the_guard_does(host: Host, baseline: bool, linked: str) -> None:
    host.mark("confirmed", in_s=-1, baseline=baseline)
    guard.finish(lambda event: None, instance_dir=str(host.dir))
    assert host.links() == {"current": NEW, "last-good": NEW, "baseline": linked} and host.markers() == set()


def test_without_a_good_release_the_baseline_is_the_way_back(host: Host) -> None:
    (host.dir / "last-good").unlink()
    host.mark("armed", in_s=-1)
    host.run("expire")
    assert host.links()["current"] == BASE


def test_a_staged_baseline_that_failed_itself_is_no_way_back(host: Host) -> None:
    (host.dir / "last-good").unlink()
    for name in ("current", "pending"):
        host.link(name, BASE)
    host.mark("armed", release=BASE, in_s=-1)
    host.run("expire")
    assert "current" not in host.links() and (host.guard / "wanted").read_text().strip() == "stopped"


def test_with_nothing_to_go_back_to_the_host_is_stopped_on_purpose(host: Host) -> None:
    for name in ("last-good", "baseline"):
        (host.dir / name).unlink()
    host.mark("armed", in_s=-1)
    host.run("expire")
    assert host.links() == {} and (host.guard / "wanted").read_text().strip() == "stopped"
    assert [call.split()[0] for call in host.told()] == ["stop"]
    assert host.journal()[-1]["release"] is None


def test_a_server_that_was_stopped_on_purpose_is_not_started(host: Host) -> None:
    (host.guard / "wanted").write_text("stopped\n")
    host.mark("armed", in_s=-1)
    host.run("expire")
    assert "start" not in [call.split()[0] for call in host.told()]


def test_going_back_frees_the_reserve_first(host: Host) -> None:
    host.mark("armed", in_s=-1)
    host.run("expire")
    assert not (host.guard / "reserve").exists()


def test_a_torn_last_line_of_the_journal_swallows_nothing(host: Host) -> None:
    (host.dir / "journal.jsonl").write_text('{"at":1,"event":"step-st')
    host.mark("armed", in_s=-1)
    host.run("expire")
    assert json.loads((host.dir / "journal.jsonl").read_text().splitlines()[1])["event"] == "restored"


def crash(host: Host, times: int, *, age_s: int = 0) -> None:
    for _ in range(times):
        host.run("pre-start")
        started = (host.guard / "started").read_text()
        at = int(started.partition("\n")[0].removeprefix("AT="))
        (host.guard / "started").write_text(started.replace(f"AT={at}", f"AT={at - age_s}"))


def test_three_unexpected_exits_fall_back_to_the_baseline(host: Host) -> None:
    host.link("current", OLD)
    (host.dir / "pending").unlink()
    (host.guard / "ordered").touch()
    crash(host, 3)
    assert host.links()["current"] == OLD
    assert [e["count"] for e in host.journal() if e["event"] == "engine-exit"] == [1, 2], "an ordered start is no exit"
    crash(host, 1)
    assert host.links()["current"] == BASE
    event = host.journal()[-1]
    assert (event["event"], event["from"], event["release"], event["reason"]) == ("fallback", OLD, BASE, "crash-loop")


def test_exits_with_healthy_serving_between_them_do_not_add_up(host: Host) -> None:
    host.link("current", OLD)
    crash(host, 6, age_s=201)
    assert host.links()["current"] == OLD
    assert {e["count"] for e in host.journal()} == {1}


def test_a_crash_loop_of_a_pending_release_goes_back_to_the_last_good_one(host: Host) -> None:
    host.mark("armed", in_s=600)
    crash(host, 3)
    assert host.links()["current"] == OLD and host.journal()[-1]["reason"] == "crash-loop"


def test_a_baseline_in_a_crash_loop_stays_the_baseline(host: Host) -> None:
    host.link("current", BASE)
    (host.dir / "pending").unlink()
    crash(host, 5)
    assert host.links()["current"] == BASE
    assert "fallback" not in {e["event"] for e in host.journal()}


def client_wins(host: Host, delay_s: float) -> bool:
    """Let the guard expire, and the client confirm `delay_s` later; both must be told the same."""
    host.link("last-good", OLD)
    host.link("current", NEW)
    host.mark("armed", in_s=-1)
    argv = ["/bin/sh", str(host.guard / "guard.sh"), "expire", str(host.dir)]
    with subprocess.Popen(argv, env={"PATH": os.environ["PATH"]}) as guard:
        time.sleep(delay_s)
        try:
            (host.guard / "armed").rename(host.guard / "confirmed")
            won = True
        except FileNotFoundError:
            won = False
        guard.wait(20)
    assert host.links()["current"] == (NEW if won else OLD)
    assert [e["event"] for e in host.journal()] == ([] if won else ["restored"])
    return won


def test_client_and_guard_race_for_the_marker_and_exactly_one_wins(tmp_path: Path) -> None:
    outcomes = {client_wins(Host(tmp_path / f"close-{number}"), 0.001 * number) for number in range(20)}
    delay_s = 0.03
    while len(outcomes) < 2 and delay_s < 1:  # a busy machine lets the guard wait
        delay_s *= 2
        outcomes.add(client_wins(Host(tmp_path / f"late-{delay_s}"), delay_s))
    assert outcomes == {True, False}, "the race was never close: it proves nothing"
