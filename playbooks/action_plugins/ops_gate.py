"""See `ansible-doc ops_gate`."""

from collections.abc import Mapping
from typing import Any

from ops.fleet.action import Action, EventReporter
from ops.fleet.bake import bake
from ops.fleet.host_task import Told
from ops.flows.hosts import Project
from ops.model.gate import Subset
from ops.model.inventory import HostSpec


class ActionModule(Action):
    """The gate on a running engine."""

    FINAL = False
    SKIPPED_IN_CHECK_MODE = "judging loads the engine and writes to the journal"

    def work(self, project: Project, spec: HostSpec, arguments: Mapping[str, Any], reporter: EventReporter) -> Told:
        """Watch, then judge."""
        return Told(bake(spec, arguments["bake_s"], reporter, Subset(arguments["subset"])))
