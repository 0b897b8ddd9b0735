"""See `ansible-doc ops_budget`."""

from collections.abc import Mapping
from typing import Any

from ops.fleet.action import Action, EventReporter
from ops.fleet.fleet_task import keep_budget
from ops.fleet.host_task import Told
from ops.flows.hosts import Project
from ops.model.inventory import HostSpec


class ActionModule(Action):
    """How many hosts may be out of traffic."""

    FINAL = False

    def work(self, project: Project, spec: HostSpec, arguments: Mapping[str, Any], reporter: EventReporter) -> Told:
        """Count them."""
        fleet = [project.host(name) for name in arguments["fleet"]]
        return keep_budget(spec, fleet, arguments["wave"], arguments["max_unavailable"], reporter)
