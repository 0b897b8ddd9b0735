"""Reboot the host, and wait until its own boot has brought the engine back: nothing here starts it."""

import time
from typing import Any

from ops.errors import HostError, OpsError, StepFailed, Unreachable
from ops.run import Run, observe

_PAUSE_S = 1.0
ENGINE_WAIT_S = 120.0
"""From SSH answering to the boot having started the engine's process; wall seconds."""


def do(run: Run, *, boot_id: str, patience_s: float, release: str | None) -> dict[str, Any]:
    """Args: boot_id: the boot to leave. patience_s: wall seconds until SSH must answer from the next one. release: what
    the boot must start; None: nothing."""
    begun = time.monotonic()
    _ask(run, boot_id)
    run.say(f"rebooting; waiting up to {patience_s:.0f} s for SSH")
    fresh_id = _wait_for_boot(run, boot_id, begun + patience_s)
    down_s = round(time.monotonic() - begun, 1)
    run.say(f"back after {down_s:.0f} s")
    if release is not None:
        _wait_for_engine(run, release)
    return {"boot_id": fresh_id, "down_s": down_s}


def _ask(run: Run, boot_id: str) -> None:
    try:
        found = run.host.call("machine.reboot", boot_id=boot_id)
    except HostError as error:  # the connection may go down before the answer; the boot id will tell
        run.say(f"{error.message}")
        return
    if found["problem"]:
        raise StepFailed(
            f"the reboot was refused: {found['problem']}", hint="ansible_become: true is needed", host=run.host.name
        )


def _wait_for_boot(run: Run, boot_id: str, deadline: float) -> str:
    last = "it never went down"
    while time.monotonic() < deadline:
        try:
            with run.host.fresh() as host:
                found = observe(host)["boot_id"]
            if found is not None and found != boot_id:
                return str(found)
        except (Unreachable, HostError) as error:
            last = error.message
        time.sleep(_PAUSE_S)
    raise StepFailed(
        f"it did not come back from its reboot in time; last: {last}",
        hint="look at its console; when it is back: ops host reboot is done, ops verify and ops start finish the job",
        host=run.host.name,
    )


def _wait_for_engine(run: Run, release: str) -> None:
    deadline = time.monotonic() + ENGINE_WAIT_S
    while True:
        facts = _observed(run)
        if facts["links"]["current"] != release:
            raise StepFailed(
                f"the boot went to {facts['links']['current']}, not to {release}",
                hint="ops history",
                host=run.host.name,
            )
        if facts["engine"]["state"] in ("running", "starting") and facts["engine"]["pid"]:
            return
        if time.monotonic() > deadline:
            raise StepFailed(
                f"the boot did not start the engine: {facts['engine']['detail']}",
                hint="ops verify says whether it is enabled at boot; ops start starts it now",
                host=run.host.name,
            )
        time.sleep(_PAUSE_S)


def _observed(run: Run) -> Any:
    try:
        return run.observe()
    except OpsError:
        # Right after a boot the supervisor may not answer yet; one more try is a new connection.
        time.sleep(_PAUSE_S)
        return run.observe()
