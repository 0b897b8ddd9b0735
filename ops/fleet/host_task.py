"""One host's part of a playbook: what the action plugins call. Never raises an OpsError: a `HostResult` tells.

The transaction is the one of `ops.flows`; here is only what Ansible adds: a preview for check mode and diffs, and
patience with a lock that another run still holds.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ops.config.profiles import load_nccl, load_stack
from ops.errors import OpsError
from ops.fleet.diff import Diff, differences, secret_names
from ops.flows.control import control
from ops.flows.deploy import DeployOptions, deploy
from ops.flows.hosts import Project, connected
from ops.flows.reboot import reboot
from ops.flows.report import failed
from ops.flows.rollback import choose, rollback
from ops.flows.status import status
from ops.flows.verify import verify
from ops.model.inventory import HostSpec
from ops.model.ports import Reporter
from ops.model.profile import Profile
from ops.model.result import HostResult
from ops.planner import guard_deadline_s
from ops.run import observe

_POLL_S = 0.5
_MARGIN_S = 15.0
OTHER_RUN_S = 2700.0
"""Engine seconds that another run may take when its profile is not at hand: the default timeouts added up."""
PREVIOUS = "previous"


@dataclass(frozen=True)
class Told:
    """What a task reports: the result, whether the host could be asked at all, and what changed as text."""

    result: HostResult
    unreachable: bool = False
    diffs: Sequence[Diff] = field(default_factory=tuple)


@dataclass(frozen=True)
class Wish:
    """How a task was called.

    Attributes:
        check: touch nothing. diff: compute what changes. wait_s: patience with another run's lock, wall seconds; None:
            as long as the host's guard would let that run go on.
    """

    check: bool = False
    diff: bool = False
    wait_s: float | None = None
    options: DeployOptions = field(default_factory=DeployOptions)


def digest(project: Project, profile: Profile) -> str:
    """Digest of all that a profile's releases are made from, but for the hosts. Raises: ConfigError."""
    parts = (profile, load_stack(project.root, profile.stack), load_nccl(project.root, profile.nccl))
    text = "\n".join(part.model_dump_json() for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()


def present(project: Project, profile: Profile, spec: HostSpec, wish: Wish, reporter: Reporter) -> Told:
    """The profile is deployed, proved, and takes traffic."""
    seen = _free(spec, wish, guard_deadline_s(profile), reporter)
    if seen is not None:
        return seen
    try:
        diffs = preview(project, profile, spec) if wish.diff or wish.check else ()
    except OpsError as error:
        return Told(failed(spec, profile.name, error))
    if wish.check:
        options = DeployOptions(dry_run=True, message=wish.options.message)
        result = deploy(project, profile, spec, options, reporter)
        if result.outcome == "planned":
            result = result.model_copy(update={"changed": True, "message": f"would deploy {result.release}"})
        return Told(result, diffs=diffs)
    return Told(deploy(project, profile, spec, wish.options, reporter), diffs=diffs)


def good(spec: HostSpec, release: str | None, wish: Wish, reporter: Reporter) -> Told:
    """An earlier good release serves. release: an id, `baseline`, `previous` (the last good one other than the
    current), or None (the last good one: nothing is done where it serves)."""
    seen = _free(spec, wish, OTHER_RUN_S, reporter)
    if seen is not None:
        return seen
    now = status(spec)
    links = now.details["links"]
    target = {None: links["last-good"], "baseline": links["baseline"], PREVIOUS: None}.get(release, release)
    if target is not None and now.details["good"] and links["current"] == target:
        message = f"{target} serves already; nothing was done"
        return Told(now.model_copy(update={"outcome": "unchanged", "changed": False, "message": message}))
    to = None if release == PREVIOUS else target or release  # what is not there is refused, not replaced by another
    if wish.check:
        try:
            with connected(spec) as host:
                chosen = choose(observe(host), to)
        except OpsError as error:
            return Told(failed(spec, None, error))
        update = {"outcome": "planned", "changed": True, "message": f"would go back to {chosen}"}
        return Told(now.model_copy(update=update), diffs=_link_diff(spec, links["current"], chosen))
    diffs = _link_diff(spec, links["current"], to or "the last good release before it")
    return Told(rollback(spec, to, reporter, break_lock=wish.options.break_lock), diffs=diffs)


def absent(spec: HostSpec, wish: Wish, reporter: Reporter) -> Told:
    """Nothing serves: drained, stopped, stopped over boots too. Releases and journal stay: they are the record."""
    seen = _free(spec, wish, OTHER_RUN_S, reporter)
    if seen is not None:
        return seen
    now = status(spec)
    state = now.details["state"]
    if state == "empty" or (state == "stopped" and not now.message.endswith("still run")):
        update = {"outcome": "unchanged", "changed": False, "message": f"{state} already; nothing was done"}
        return Told(now.model_copy(update=update))
    diffs = [_text(f"{spec.instance_dir} (engine)", f"{now.release} {state}\n", f"{now.release} stopped\n")]
    if wish.check:
        return Told(
            now.model_copy(update={"outcome": "planned", "changed": True, "message": "would stop"}), diffs=diffs
        )
    return Told(control(spec, "stop", reporter, break_lock=wish.options.break_lock), diffs=diffs)


def rebooted(spec: HostSpec, patience_s: float, wish: Wish, reporter: Reporter) -> Told:
    """The host was rebooted and serves what it served, proven. patience_s: wall seconds until SSH answers again."""
    seen = _free(spec, wish, OTHER_RUN_S, reporter)
    if seen is not None:
        return seen
    return Told(reboot(spec, reporter, verify=True, patience_s=patience_s, break_lock=wish.options.break_lock))


def verified(spec: HostSpec) -> Told:
    """What is there against what was deployed."""
    found = verify(spec)
    return Told(found, unreachable=found.outcome == "refused")


def look(spec: HostSpec) -> Told:
    """The host's status."""
    found = status(spec)
    return Told(found, unreachable=found.details.get("state") == "unknown")


def preview(project: Project, profile: Profile, spec: HostSpec) -> tuple[Diff, ...]:
    """What a deploy would change, secrets masked; reads only. Raises: OpsError."""
    with connected(spec) as host:
        facts = observe(host)
        release = project.release(profile, spec, facts["supervisor"])
        secrets = secret_names(profile, facts)
        current = facts["links"]["current"]
        files: dict[str, Any] = {}
        if current is not None:
            files = host.call("files.read", instance_dir=spec.instance_dir, release=current, secrets=secrets)
        return tuple(differences(release, secrets, files, facts, spec.instance_dir))


def _free(spec: HostSpec, wish: Wish, other_run_s: float, reporter: Reporter) -> Told | None:
    """Wait until no other run has the host; None when it is free, or when the flow itself shall refuse.

    Args: other_run_s: how long another run may take (engine seconds).
    """
    seen = look(spec)
    if seen.unreachable:
        return seen
    if wish.check or wish.options.break_lock:
        return None
    wait_s = other_run_s / spec.time_scale + _MARGIN_S if wish.wait_s is None else wish.wait_s
    deadline = time.monotonic() + wait_s
    while (why := _busy(seen.result)) and time.monotonic() < deadline:
        reporter.say(spec.name, f"waiting: {why}")
        _until(lambda: _busy(look(spec).result) != why, deadline)
        seen = look(spec)
    return seen if seen.unreachable else None


def _busy(found: HostResult) -> str:
    """Why another run still decides what becomes of this host; empty when none does."""
    lock = found.details.get("lock")
    if lock and lock["alive"]:
        return f"{lock['owner']}@{lock['host']} works on it: {lock['message']}"
    if found.details.get("state") == "pending":
        return "a run died before it confirmed; the host's guard undoes it"
    return ""


def _until(done: Callable[[], bool], deadline: float) -> None:
    while not done() and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _link_diff(spec: HostSpec, before: str | None, after: str) -> list[Diff]:
    return [_text(f"{spec.instance_dir} (links)", f"current -> {before or '(none)'}\n", f"current -> {after}\n")]


def _text(what: str, before: str, after: str) -> Diff:
    return {"before_header": what, "after_header": what, "before": before, "after": after}
