"""`ops nccl`: the project's NCCL sets, and who uses them."""

from typing import Any

from ops.config.profiles import load_nccl, names_in, profile_names
from ops.flows.hosts import Project
from ops.gates.environment import BY_ENGINE


def all_sets(project: Project) -> list[dict[str, Any]]:
    """Every set of the project: as `one_set`, in the order of their names."""
    return [one_set(project, name) for name in names_in(project.root, "NCCL set")]


def one_set(project: Project, name: str) -> dict[str, Any]:
    """One set: {name, description, topology, env, source, profiles, engine_adds}.

    Raises: ConfigError when the project has no such set, or it is not well-formed.
    """
    row = load_nccl(project.root, name).model_dump(mode="json")
    users = [profile for profile in profile_names(project.root) if project.profile(profile).nccl == name]
    return {**row, "profiles": users, "engine_adds": sorted(BY_ENGINE)}
