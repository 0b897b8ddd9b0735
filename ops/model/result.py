"""What a command reports: one document, the same for `--json`, the journal's reader and the fleet table."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from ops.model.inventory import HostSpec

SCHEMA = "ops/1"


class HostResult(BaseModel):
    """One host's part of the document."""

    model_config = ConfigDict(frozen=True)

    host: str
    instance: str = "default"
    profile: str | None = None
    release: str | None = None
    outcome: str
    exit_code: int = 0
    message: str = ""
    hint: str = ""
    changed: bool | None = None
    previous: str | None = None
    gate: dict[str, Any] | None = None
    phases: dict[str, float] = Field(default_factory=dict)
    details: dict[str, Any] = Field(default_factory=dict)
    simulated: str | None = None

    @classmethod
    def on(cls, spec: HostSpec, **fields: Any) -> Self:
        """A result on `spec`; one from a sandbox says that its figures are simulated."""
        return cls(host=spec.name, instance=spec.instance, simulated=spec.simulated, **fields)


def document(command: str, hosts: list[HostResult]) -> dict[str, Any]:
    """The one document on stdout. Hosts that agree give their outcome and code; else `partial` (5), or 4 when one is
    unsafe."""
    codes = {host.exit_code for host in hosts}
    if len(codes) <= 1:
        outcome = hosts[0].outcome if len({host.outcome for host in hosts}) == 1 else "mixed"
        code = codes.pop() if codes else 0
    elif 4 in codes:
        outcome, code = "unsafe", 4
    else:
        outcome, code = "partial", 5
    rows = []
    for host in hosts:
        row = host.model_dump(mode="json", exclude={"details"})
        rows.append({**row, **host.details})
    return {"schema": SCHEMA, "command": command, "outcome": outcome, "exit_code": code, "hosts": rows}
