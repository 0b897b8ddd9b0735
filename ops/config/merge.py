"""`extends`: how a variant's document lies over its parent's.

Maps merge key by key; scalars and lists replace; `key: null` removes what the parent said, so that the default
holds again.
"""

from typing import Any

from ops.config.source import Origin, Tree
from ops.model.base import Path


def merge(base: Tree, over: Tree) -> Tree:
    """Lay `over` on `base`; the origins follow the values that won."""
    origins: dict[Path, Origin] = {(): over.origins.get((), base.origins.get((), Origin("?")))}
    data = _merge(base.data, over.data, (), base, over, origins)
    return Tree(data, origins)


def without_nulls(tree: Tree) -> Tree:
    """Drop every `key: null`: with nothing below, it means the default."""
    return merge(Tree({}, {}), tree)


def _merge(
    base: dict[str, Any],
    over: dict[str, Any],
    path: Path,
    base_tree: Tree,
    over_tree: Tree,
    origins: dict[Path, Origin],
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key in [*base, *(k for k in over if k not in base)]:
        at = (*path, key)
        if key not in over:
            result[key] = base[key]
            _adopt(base_tree, at, origins)
        elif over[key] is None:
            continue
        elif isinstance(over[key], dict):
            below = base.get(key)
            result[key] = _merge(below if isinstance(below, dict) else {}, over[key], at, base_tree, over_tree, origins)
            origins[at] = over_tree.origins.get(at) or over_tree.origin(at) or Origin("?")
        else:
            result[key] = over[key]
            _adopt(over_tree, at, origins)
    return result


def _adopt(tree: Tree, at: Path, origins: dict[Path, Origin]) -> None:
    for path, origin in tree.origins.items():
        if path[: len(at)] == at:
            origins[path] = origin
