"""The acceptance watch: a host that takes traffic must go on serving well for a while before others follow it."""

from ops.errors import OpsError
from ops.flows.gating import gate
from ops.flows.hosts import connected
from ops.flows.status import status
from ops.hosts.clock import HostClock
from ops.model.gate import Subset
from ops.model.inventory import HostSpec
from ops.model.ports import Reporter
from ops.model.profile import Profile
from ops.model.result import HostResult
from ops.run import observe

SHORTEST_LOOK_S = 5.0
LONGEST_LOOK_S = 60.0
"""Engine seconds between two looks: a tenth of the bake, within these."""


def bake(spec: HostSpec, bake_s: float, reporter: Reporter, subset: Subset = Subset.ROLLBACK) -> HostResult:
    """Watch a host for `bake_s` (engine seconds), then judge it with `subset` of the gate.

    Fails at once when it stops serving, its engine is another process, or it lost its traffic. An accept length below
    the profile's floor, as the engine reports it of live traffic, is no verdict: it calls the gate early.
    """
    clock = HostClock(spec.time_scale)
    begun = clock.now_s()
    first = status(spec)
    floor = _floor(spec, first.release)
    while (left := bake_s - (clock.now_s() - begun)) > 0:
        clock.sleep_s(min(left, max(SHORTEST_LOOK_S, min(LONGEST_LOOK_S, bake_s / 10))))
        now = status(spec)
        wrong = _changed(first, now)
        if wrong:
            update = {"outcome": "failed", "exit_code": 6, "changed": False, "message": f"while it baked: {wrong}"}
            return now.model_copy(update={**update, "hint": f"ops logs --host {spec.name}; ops history"})
        accepted = now.details["accept_length"]
        if floor is not None and accepted is not None and accepted < floor:
            reporter.say(spec.name, f"accept length {accepted:.2f} is below {floor:.2f}: asking the gate now")
            break
    return gate(spec, subset, reporter)


def _changed(first: HostResult, now: HostResult) -> str:
    if now.details["state"] != "serving":
        return f"{now.details['state']}: {now.message}"
    if not now.details["admitted"]:
        return "it takes no traffic"
    if now.release != first.release:
        return f"{now.release} runs instead of {first.release}"
    if now.details["engine"]["pid"] != first.details["engine"]["pid"]:
        return f"the engine was restarted (pid {first.details['engine']['pid']}, now {now.details['engine']['pid']})"
    return ""


def _floor(spec: HostSpec, release: str | None) -> float | None:
    """The profile's lowest accept length, from the manifest on the host; None when it has none or cannot be read."""
    if release is None:
        return None
    try:
        with connected(spec) as host:
            manifest = observe(host)["manifests"].get(release)
    except OpsError:
        return None
    if not manifest:
        return None
    return Profile.model_validate(manifest["profile"]).gates.acceptance.min_accept_length
