"""See `ansible-doc ops_status`."""

from collections.abc import Mapping
from typing import Any

from ops.fleet.action import Action, EventReporter
from ops.fleet.host_task import Told, look
from ops.flows.hosts import Project
from ops.model.inventory import HostSpec


class ActionModule(Action):
    """What a host serves."""

    FINAL = False

    def work(self, project: Project, spec: HostSpec, arguments: Mapping[str, Any], reporter: EventReporter) -> Told:
        """Read it."""
        return look(spec)
