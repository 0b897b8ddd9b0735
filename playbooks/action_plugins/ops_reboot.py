"""See `ansible-doc ops_reboot`."""

from collections.abc import Mapping
from typing import Any

from ops.fleet import host_task
from ops.fleet.action import Action, EventReporter
from ops.flows.deploy import DeployOptions
from ops.flows.hosts import Project
from ops.model.inventory import HostSpec


class ActionModule(Action):
    """A reboot that is proven."""

    SKIPPED_IN_CHECK_MODE = "a reboot has no difference to show"

    def work(
        self, project: Project, spec: HostSpec, arguments: Mapping[str, Any], reporter: EventReporter
    ) -> host_task.Told:
        """Reboot it."""
        wish = host_task.Wish(options=DeployOptions(break_lock=arguments["break_lock"]))
        return host_task.rebooted(spec, arguments["patience_s"], wish, reporter)
