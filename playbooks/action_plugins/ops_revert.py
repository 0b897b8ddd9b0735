"""See `ansible-doc ops_revert`."""

from collections.abc import Mapping
from typing import Any

from ops.fleet.action import Action, EventReporter
from ops.fleet.fleet_task import revert
from ops.fleet.host_task import Told
from ops.flows.hosts import Project
from ops.model.inventory import HostSpec


class ActionModule(Action):
    """Hosts that go back because another one failed."""

    FINAL = False
    SKIPPED_IN_CHECK_MODE = "a roll that touches nothing has nothing to put back"

    def work(self, project: Project, spec: HostSpec, arguments: Mapping[str, Any], reporter: EventReporter) -> Told:
        """Put them back one by one."""
        fleet = [project.host(name) for name in arguments["fleet"]]
        wanted = {row["host"]: row["release"] for row in arguments["hosts"]}
        return revert(spec, fleet, wanted, arguments["max_unavailable"], reporter)
