"""See `ansible-doc ops_verify`."""

from collections.abc import Mapping
from typing import Any

from ops.fleet.action import Action, EventReporter
from ops.fleet.host_task import Told, verified
from ops.flows.hosts import Project
from ops.model.inventory import HostSpec


class ActionModule(Action):
    """What is there against what was deployed."""

    FINAL = False

    def work(self, project: Project, spec: HostSpec, arguments: Mapping[str, Any], reporter: EventReporter) -> Told:
        """Compare."""
        return verified(spec)
