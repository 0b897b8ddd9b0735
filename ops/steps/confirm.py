"""The commit point, over a fresh connection: whoever comes next can reach the host too."""

from typing import Any

from ops.errors import GuardActed, RemoteFailed
from ops.run import Run


def do(run: Run, *, release: str) -> dict[str, Any]:
    with run.host.fresh() as fresh:
        try:
            found: dict[str, Any] = fresh.call(
                "guard.confirm", instance_dir=run.instance_dir, run=run.identity.run, supervisor=run.supervisor
            )
        except RemoteFailed as error:
            raise GuardActed(error.message, hint=f"ops status --host {run.host.name}", host=run.host.name) from error
    run.armed = False
    for report in run.reports[-1:]:
        run.remember(run, report)
    return found
