"""SSH that breaks in the middle. If this breaks, a cut of a second undoes a deploy, shows a log twice, or says that the
operator pressed Ctrl-C."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ops.config.inventory import load_inventory
from ops.errors import ConnectionLost, Unreachable
from ops.hosts.ssh import SshHost
from ops.model.inventory import HostSpec
from ops.sandbox.host import Sandbox

pytestmark = pytest.mark.sandbox
Factory = Callable[..., Sandbox]


def spec_of(box: Sandbox) -> HostSpec:
    inventory = load_inventory(box.layout.folder, box.inventory)
    return inventory.hosts[0]


def follow(box: Sandbox, host: SshHost, log: Path, events: list[Any], seconds: float) -> Any:
    """Follow a log for a while on behalf of a process that lives: this one."""
    pid = os.getpid()
    starttime = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19])
    return host.call(
        "watch.start",
        instance_dir=str(box.root / "default"),
        run=None,
        pid=pid,
        starttime=starttime,
        log=str(log),
        log_offset=0,
        address=box.address,
        port=8000,
        deadline_at=time.time() + seconds,
        supervisor={"kind": "supervisord", "instance": "default", "instance_dir": str(box.root / "default")}
        | {"conf": str(box.layout.supervisord_conf)},
        ready={"mark": "never", "patience_s": 1.0},
        wait_s=60.0,
        on_event=events.append,
    )


def test_a_log_is_followed_over_cuts_without_losing_or_repeating_a_line(sandbox: Factory) -> None:
    box = sandbox()
    log = box.root / "engine.log"
    log.write_text("")
    stop = threading.Event()
    written: list[str] = []
    at_cut: list[int] = []

    def write() -> None:
        with log.open("a", buffering=1) as file:
            while not stop.is_set():
                written.append(f"line {len(written)}")
                file.write(f"{written[-1][:4]}")
                file.flush()
                file.write(f"{written[-1][4:]}\n")
                time.sleep(0.01)

    def cut() -> None:
        for _ in range(3):
            time.sleep(1.0)
            box.kill_connections()
            at_cut.append(len(written))

    host = SshHost(spec_of(box))
    events: list[Any] = []
    threads = [threading.Thread(target=write), threading.Thread(target=cut)]
    try:
        host.connect()
        for thread in threads:
            thread.start()
        found = follow(box, host, log, events, seconds=6.0)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        host.close()
    seen = [line for event in events for line in event["lines"]]
    assert found["outcome"] == "timed-out"
    assert len(at_cut) == 3 and len(seen) > at_cut[-1], f"{len(seen)} lines seen, cut at {at_cut}"
    assert seen == written[: len(seen)]


def test_a_connection_that_stays_away_is_lost_after_the_patience_and_says_for_how_long(sandbox: Factory) -> None:
    box = sandbox()
    host = SshHost(spec_of(box), reconnect_s=1.0)
    said: list[str] = []
    try:
        host.connect()
        box.cut_ssh(30.0)
        with pytest.raises(ConnectionLost, match="did not come back within 1 s"):
            host.call("lock.acquire", instance_dir=str(box.root), owner={"run": "r"}, on_reconnect=said.append)
        assert said == ["SSH connection lost, trying to come back for 1 s"]
    finally:
        host.close()


def test_a_host_that_was_never_reached_is_unreachable_at_once(sandbox: Factory) -> None:
    box = sandbox()
    host = SshHost(spec_of(box))
    box.cut_ssh(30.0)
    begun = time.monotonic()
    with pytest.raises(Unreachable, match="no SSH connection"):
        host.connect()
    assert time.monotonic() - begun < 10


def test_a_verb_that_changes_something_is_refused_to_a_run_that_lost_the_host(sandbox: Factory) -> None:
    from ops.errors import RemoteFailed

    box = sandbox()
    folder = str(box.root / "default")
    host = SshHost(spec_of(box))
    try:
        host.connect()
        host.call("store.prepare", instance_dir=folder)
        with pytest.raises(RemoteFailed, match="no longer owns the host"):
            host.call("lifecycle.activate", instance_dir=folder, release=None, supervisor={}, fence="gone")
        assert not (box.root / "default" / "guard" / "wanted").exists()
    finally:
        host.close()
