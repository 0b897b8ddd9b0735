"""Filters over the project's own models: a profile, its rollout as waves, and what a host would get."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError

from ops.config.profiles import load_stack
from ops.config.settings import find_project
from ops.errors import OpsError
from ops.fleet import budget, waves
from ops.fleet.host_task import digest
from ops.flows.hosts import Project
from ops.model.profile import Profile
from ops.model.profile_parts import Rollout
from ops.render import without_secrets


def _project(sources: Sequence[str]) -> Project:
    inventory = Path(str(sources[0])).resolve()
    try:
        root = find_project(inventory.parent)
    except OpsError:
        root = find_project(Path.cwd())
    return Project(root, inventory)


def _profile(name: str, sources: Sequence[str]) -> Profile:
    try:
        return _project(sources).profile(name)
    except OpsError as error:
        raise AnsibleFilterError(str(error)) from error


def _plain(value: Any) -> Any:
    """Containers of Ansible's, which template their items when these are asked for, as plain ones."""
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key]) for key in value}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def ops_profile(name: str, sources: Sequence[str]) -> dict[str, Any]:
    """A resolved profile (`extends` applied, checked) as a map. sources: `ansible_inventory_sources`."""
    return _profile(name, sources).model_dump(mode="json")


def ops_stack(name: str, sources: Sequence[str]) -> dict[str, Any]:
    """The pinned stack of a profile, lock included, as a map."""
    try:
        return load_stack(_project(sources).root, _profile(name, sources).stack).model_dump(mode="json")
    except OpsError as error:
        raise AnsibleFilterError(str(error)) from error


def ops_digest(name: str, sources: Sequence[str]) -> str:
    """Digest of everything that a profile resolves to: it, its stack and its NCCL set. Two hosts of one roll get the
    same."""
    try:
        return digest(_project(sources), _profile(name, sources))
    except OpsError as error:
        raise AnsibleFilterError(str(error)) from error


def ops_serial(hostvars: Mapping[str, Any], names: Sequence[str], rollout: str = "ops_rollout") -> list[int]:
    """The sizes of a roll's waves, for `serial`. rollout: the hosts' variable that holds the profile's rollout."""
    hosts = ops_order(names, hostvars)
    if not hosts:
        return [1]
    found = waves.waves(Rollout.model_validate(_plain(hostvars[hosts[0]][rollout])), len(hosts))
    return [wave.size for wave in found]


def ops_wave(rollout: Mapping[str, Any], position: int, hosts: int) -> dict[str, Any]:
    """The wave of a rollout that begins with host `position` of `hosts`: batch, size, opens, closes, canary."""
    wave = waves.wave_of(waves.waves(Rollout.model_validate(_plain(rollout)), hosts), position)
    shown = {"batch": wave.batch, "size": wave.size, "opens": wave.opens, "closes": wave.closes}
    return {**shown, "canary": wave.batch == waves.CANARY}


def _seen(names: Sequence[str], hostvars: Mapping[str, Any], seen: str) -> dict[str, Mapping[str, Any]]:
    return {name: hostvars[name][seen] for name in names if seen in hostvars[name]}


def ops_order(names: Sequence[str], hostvars: Mapping[str, Any], seen: str = "ops_seen") -> list[str]:
    """Hosts in the order of a roll: those that serve nothing first; those that were not or cannot be asked left out.

    seen: the variable in which a task with `ops_status` was registered.
    """
    rows = {
        name: {"state": "unknown"} if read.get("unreachable") else _plain(read["status"])
        for name, read in _seen(names, hostvars, seen).items()
    }
    return list(budget.order(rows))


def ops_fleet(groups: Mapping[str, Sequence[str]], target: str, hostvars: Mapping[str, Any]) -> list[str]:
    """Every host whose traffic counts: the whole group that is rolled, also what `--limit` leaves out; for other
    patterns the hosts that were looked at."""
    return list(groups[target]) if target in groups else list(_seen(groups["all"], hostvars, "ops_seen"))


def ops_switched(names: Sequence[str], hostvars: Mapping[str, Any], on_failure: str) -> list[dict[str, str | None]]:
    """Hosts to put back after a failure: those that were switched and then failed their watch; with on_failure `revert`
    every one that the roll switched."""
    watches = _seen(names, hostvars, "ops_watched")
    found = []
    for name, done in _seen(names, hostvars, "ops_deployed").items():
        switched = done.get("outcome") == "deployed" and done.get("changed")
        if switched and (on_failure == "revert" or watches.get(name, {}).get("failed")):
            found.append({"host": name, "release": done.get("previous")})
    return found


def ops_render(name: str, host: str, file: str, sources: Sequence[str]) -> str:
    """One file of a profile's release as `host` would get it, values of secrets left out. Connects nowhere, so the
    inventory has to name the host's `ops_supervisor`."""
    try:
        project = _project(sources)
        profile = project.profile(name)
        blank = Project(project.root, project.inventory, dict.fromkeys(profile.secrets, "secret"))
        release = blank.release(profile, project.host(host))
        return without_secrets(release.file(file).content, profile.secrets).decode()
    except (OpsError, KeyError) as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """What Ansible asks for."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Filters by name."""
        return {
            "ops_profile": ops_profile,
            "ops_stack": ops_stack,
            "ops_digest": ops_digest,
            "ops_serial": ops_serial,
            "ops_wave": ops_wave,
            "ops_order": ops_order,
            "ops_fleet": ops_fleet,
            "ops_switched": ops_switched,
            "ops_render": ops_render,
        }
