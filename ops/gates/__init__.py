"""The gate: questions asked of a running engine before it takes traffic.

One file a question, with its constant `GATE`; a new file is a new check. Everything else in this package is listed in
`HELPERS`, so that a check whose constant is missing or misspelt is an error and not a check that is never asked.
"""

import importlib
import pkgutil

from ops.model.gate import Gate

HELPERS = frozenset({"baseline", "live", "prompt_set", "runner", "texts", "wanted"})


def all_gates() -> tuple[Gate, ...]:
    """Return every check, cheap ones first.

    Raises: TypeError when a module is no helper and has no `GATE`; ValueError when two share a name or a place.
    """
    found: list[Gate] = []
    for module in pkgutil.iter_modules(__path__):
        if module.name in HELPERS or module.ispkg:
            continue
        gate = getattr(importlib.import_module(f"{__name__}.{module.name}"), "GATE", None)
        if not isinstance(gate, Gate):
            raise TypeError(f"ops/gates/{module.name}.py has no constant GATE and is not listed as a helper")
        if gate.name.replace("-", "_") != module.name:
            raise ValueError(f"ops/gates/{module.name}.py holds the check {gate.name}")
        found.append(gate)
    if len({gate.order for gate in found}) != len(found):
        raise ValueError("two checks have the same order")
    return tuple(sorted(found, key=lambda gate: gate.order))
