"""`envs/hosts.yml`: hosts and groups in Ansible's YAML inventory format, read the way Ansible reads them.

Precedence as in Ansible: `all` below groups, parents below children, groups of one depth by name, the host on top.
`{{ inventory_dir }}` and a plain `{{ variable }}` of the same host are expanded, nothing else.
"""

import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ops.config.ensembles import GROUP_VARIABLES, nodes_of
from ops.config.problems import near, problems_of, refuse
from ops.config.source import Origin, Tree, read_yaml
from ops.errors import ConfigError
from ops.model.base import Path as KeyPath
from ops.model.base import Problem
from ops.model.inventory import HostSpec, Inventory, Node

FIELDS = {
    "ansible_host": "address",
    "ansible_port": "port",
    "ansible_user": "user",
    "ansible_become": "become",
    "ansible_ssh_private_key_file": "key_file",
    "ansible_ssh_common_args": "ssh_args",
    "ops_known_hosts": "known_hosts",
    "ops_root": "root",
    "ops_instance": "instance",
    "ops_engine_python": "engine_python",
    "ops_paths": "paths",
    "ops_stacks": "stacks",
    "ops_container_gpus": "container_gpus",
    "ops_container_ulimits": "container_ulimits",
    "ops_container_mounts": "container_mounts",
    "ops_bind": "bind",
    "ops_search_path": "search_path",
    "ops_supervisor": "supervisor",
    "ops_supervisor_conf": "supervisor_conf",
    "ops_supervisorctl": "supervisorctl",
    "ops_time_scale": "time_scale",
}
PATHS = ("root", "engine_python", "stacks", "supervisor_conf", "supervisorctl", "key_file", "known_hosts")
EXPRESSION = re.compile(r"\{\{\s*(.*?)\s*\}\}")
RANGE = re.compile(r"\[([0-9]+):([0-9]+)\]")


@dataclass
class _Group:
    depth: int = 0
    variables: dict[str, Any] = field(default_factory=dict)
    hosts: dict[str, None] = field(default_factory=dict)
    children: dict[str, None] = field(default_factory=dict)


@dataclass
class _Read:
    """What has been gathered from the file so far."""

    file: Path
    tree: Tree
    groups: dict[str, _Group] = field(default_factory=dict)
    host_variables: dict[str, dict[str, Any]] = field(default_factory=dict)
    origins: dict[tuple[str, str], Origin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def load_inventory(project: Path, path: Path | None = None, *, environ: Mapping[str, str] | None = None) -> Inventory:
    """Read an inventory: `path`, else OPS_INVENTORY, else `envs/hosts.yml` of the project.

    Raises: ConfigError with every mistake.
    """
    named = (os.environ if environ is None else environ).get("OPS_INVENTORY")
    file = path or (Path(named) if named else project / "envs" / "hosts.yml")
    shown_as = str(file.relative_to(project)) if file.is_relative_to(project) else str(file)
    read = _Read(file, read_yaml(file, shown_as))
    for folder in ("group_vars", "host_vars"):
        if (file.parent / folder).is_dir():
            message = f"{folder}/ beside it would change hosts for Ansible only; write the variables into the file"
            read.problems.append(Problem((), message))
    for name, body in read.tree.data.items():
        _read_group(read, name, body, (name,), 0 if name == "all" else 1)
    hosts = [spec for name in read.host_variables if (spec := _host(read, name)) is not None]
    hosts = _placed(read, hosts)
    if read.problems:
        raise refuse(f"inventory {shown_as}", read.problems, read.tree)
    groups = {name: tuple(_members(read, name)) for name in read.groups}
    return Inventory(file=str(file), hosts=tuple(hosts), groups={**groups, "all": tuple(read.host_variables)})


def hosts_of(inventory: Inventory, pattern: str) -> tuple[HostSpec, ...]:
    """Hosts that a name, a group, or a comma-separated list of both names, in the inventory's order.

    Raises: ConfigError with near matches.
    """
    wanted: set[str] = set()
    for name in filter(None, (part.strip() for part in pattern.split(","))):
        if name not in inventory.names and name not in inventory.groups:
            known = [*inventory.names, *inventory.groups]
            raise ConfigError(
                f"no host or group {name!r} in {inventory.file}{near(name, known)}",
                hint=f"hosts: {', '.join(inventory.names) or 'none'}; groups: {', '.join(inventory.groups) or 'none'}",
            )
        wanted.update([name] if name in inventory.names else inventory.groups[name])
    if not wanted:
        raise ConfigError(f"{pattern!r} names no host of {inventory.file}")
    return tuple(host for host in inventory.hosts if host.name in wanted)


def default_host(inventory: Inventory, named: str | None = None) -> HostSpec:
    """The host of a command without `--host`: `named` (OPS_HOST), else the one called `sandbox`, else the only one.

    Raises: ConfigError when that is not one host.
    """
    if named:
        found = hosts_of(inventory, named)
    else:
        sandbox = tuple(host for host in inventory.hosts if host.name == "sandbox")
        found = sandbox or inventory.hosts
    if len(found) != 1:
        names = ", ".join(host.name for host in found) or "none"
        raise ConfigError(f"which host? {inventory.file} offers {names}", hint="say --host NAME, or set OPS_HOST")
    return found[0]


def _read_group(read: _Read, name: str, body: Any, path: KeyPath, depth: int) -> None:
    group = read.groups.setdefault(name, _Group())
    group.depth = max(group.depth, depth)
    if body is None:
        return
    if not isinstance(body, dict):
        read.problems.append(Problem(path, "a group is a map with hosts, vars and children"))
        return
    for key, content in body.items():
        at = (*path, key)
        if key not in ("hosts", "vars", "children"):
            read.problems.append(Problem(at, f"unknown key{near(key, ('hosts', 'vars', 'children'))}"))
        elif content is not None and not isinstance(content, dict):
            read.problems.append(Problem(at, "a map is expected"))
        elif key == "vars":
            group.variables.update(content or {})
            _note(read, name, content or {}, at)
        elif key == "children":
            for child, below in (content or {}).items():
                group.children[child] = None
                _read_group(read, child, below, (*at, child), depth + 1)
        else:
            _read_hosts(read, group, content or {}, at)


def _read_hosts(read: _Read, group: _Group, hosts: dict[str, Any], at: KeyPath) -> None:
    for pattern, variables in hosts.items():
        if variables is not None and not isinstance(variables, dict):
            read.problems.append(Problem((*at, pattern), "a map of variables is expected"))
            continue
        for host in _expanded(pattern):
            group.hosts[host] = None
            read.host_variables.setdefault(host, {}).update(variables or {})
            _note(read, f"host {host}", variables or {}, (*at, pattern))


def _note(read: _Read, owner: str, variables: dict[str, Any], at: KeyPath) -> None:
    for variable in variables:
        read.origins[(owner, variable)] = read.tree.origins[(*at, variable)]
        if variable in GROUP_VARIABLES and owner.startswith("host "):
            read.problems.append(Problem((*at, variable), "is about a group: write it into the group's vars"))
        elif variable.startswith("ops_") and variable not in (*FIELDS, *GROUP_VARIABLES):
            known = (*FIELDS, *GROUP_VARIABLES)
            read.problems.append(Problem((*at, variable), f"unknown variable{near(variable, known)}"))


def _expanded(pattern: str) -> Iterator[str]:
    """Expand `gpu[01:08]` as Ansible does: both ends included, leading zeros kept."""
    found = RANGE.search(pattern)
    if not found:
        yield pattern
        return
    first, last = found.groups()
    for number in range(int(first), int(last) + 1):
        text = str(number).zfill(len(first)) if first.startswith("0") else str(number)
        yield from _expanded(pattern[: found.start()] + text + pattern[found.end() :])


def _members(read: _Read, name: str, above: tuple[str, ...] = ()) -> dict[str, None]:
    group = read.groups[name]
    found = dict(group.hosts)
    for child in group.children:
        if child not in above:
            found.update(_members(read, child, (*above, name)))
    return found


def _host(read: _Read, name: str) -> HostSpec | None:
    mine = sorted((g.depth, key) for key, g in read.groups.items() if key == "all" or name in _members(read, key))
    variables: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for owner, values in [
        *((key, read.groups[key].variables) for _, key in mine),
        (f"host {name}", read.host_variables[name]),
    ]:
        variables.update(values)
        origins.update({v: read.origins[(owner, v)] for v in values if (owner, v) in read.origins})
    problems: list[Problem] = []
    spec: dict[str, Any] = {"name": name, "groups": [key for _, key in mine if key != "all"], "address": name}
    fields = {"name": Origin(read.tree.origins[()].name)}
    for variable, key in FIELDS.items():
        if variables.get(variable) is not None:
            spec[key] = _expand(variables[variable], variables, read.file, (variable,), problems)
            fields[key] = origins[variable]
    for key in PATHS:
        if isinstance(spec.get(key), str):
            spec[key] = posixpath.normpath(spec[key])
    if isinstance(spec.get("search_path"), list):
        spec["search_path"] = [posixpath.normpath(str(p)) for p in spec["search_path"]]
    spec["paths"] = {k: posixpath.normpath(v) for k, v in _paths(spec, problems).items()}
    tree = Tree(spec, {**{(k,): o for k, o in fields.items()}, **{(v,): o for v, o in origins.items()}})
    try:
        host = HostSpec.model_validate(spec)
    except ValidationError as error:
        names = {key: variable for variable, key in FIELDS.items()}
        host = None
        for problem in problems_of(error, HostSpec, spec):
            path = (names.get(str(problem.path[0]), str(problem.path[0])), *problem.path[1:]) if problem.path else ()
            problems.append(Problem(path, problem.message))
    if problems:
        shown = refuse(f"host {name}", problems, tree).message.splitlines()[1:]
        read.problems.extend(Problem((), f"host {name}: {line.strip()}") for line in shown)
        return None
    return host


def _placed(read: _Read, hosts: list[HostSpec]) -> list[HostSpec]:
    """Give every host of a group with `ops_nodes` its place in it."""
    found: dict[str, Node] = {}
    by_name = {host.name: host for host in hosts}
    for name, group in read.groups.items():
        if not any(variable in group.variables for variable in GROUP_VARIABLES):
            continue
        members = [by_name[member] for member in _members(read, name) if member in by_name]
        placed = nodes_of(name, group.variables, members)
        for sentence in placed.problems:
            where = next(read.origins[(name, v)] for v in GROUP_VARIABLES if v in group.variables)
            read.problems.append(Problem((), f"group {name} ({where}): {sentence}"))
        for member, node in placed.nodes.items():
            if member in found:
                both = f"{found[member].ensemble} and {name}"
                read.problems.append(Problem((), f"host {member}: is in two groups with ops_nodes: {both}"))
            found[member] = node
    return [host.model_copy(update={"node": found.get(host.name)}) for host in hosts]


def _paths(spec: dict[str, Any], problems: list[Problem]) -> dict[str, str]:
    paths = spec.get("paths", {})
    if isinstance(paths, dict) and all(isinstance(value, str) for value in paths.values()):
        return paths
    problems.append(Problem(("ops_paths",), "a map of path prefixes is expected"))
    return {}


def _expand(value: Any, variables: dict[str, Any], file: Path, seen: tuple[str, ...], problems: list[Problem]) -> Any:
    if isinstance(value, list):
        return [_expand(item, variables, file, seen, problems) for item in value]
    if isinstance(value, dict):
        return {key: _expand(item, variables, file, seen, problems) for key, item in value.items()}
    if not isinstance(value, str):
        return value

    def replaced(found: re.Match[str]) -> str:
        expression = found.group(1)
        if expression == "inventory_dir":
            return str(file.resolve().parent)
        if expression in variables and expression not in seen:
            return str(_expand(variables[expression], variables, file, (*seen, expression), problems))
        problems.append(
            Problem((seen[0],), f"{value!r}: only {{{{ inventory_dir }}}} and variables of the host are expanded")
        )
        return ""

    return EXPRESSION.sub(replaced, value)
