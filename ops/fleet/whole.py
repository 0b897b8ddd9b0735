"""Does a model over several hosts serve? What no host's own status can tell: whether all parts of it are there."""

from collections.abc import Sequence

from ops.model.result import HostResult


def whole(results: Sequence[HostResult]) -> list[HostResult]:
    """The results, each member of an ensemble with what is wrong with the other members that were asked too."""
    return [_with_others(result, results) for result in results]


def _with_others(result: HostResult, results: Sequence[HostResult]) -> HostResult:
    node = result.details.get("node")
    if not node:
        return result
    asked = {other.host: other for other in results if other.host in node["members"] and other.host != result.host}
    wrong = [sentence for other in asked.values() if (sentence := _wrong(other, node["together"]))]
    if not wrong:
        return result
    text = "; ".join([*([result.message] if result.message else []), *wrong])
    hint = result.hint or f"ops rollback|deploy|restart --group {node['ensemble']}"
    return result.model_copy(
        update={"message": text, "hint": hint, "details": {**result.details, "good": False, "whole": False}}
    )


def _wrong(other: HostResult, together: str) -> str:
    """What is wrong with another member, seen from one that holds a release of `together`; empty when nothing is."""
    node, state = other.details.get("node"), other.details.get("state")
    if state == "unknown":
        return f"{other.host}: cannot be asked"
    if node is None or node["together"] != together:
        return f"{other.host} holds {other.release or 'nothing'}, which does not belong to {together}"
    return "" if other.details.get("good") else f"{other.host}, rank {node['rank']}: {state}"
