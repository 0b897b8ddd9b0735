"""See `ansible-doc ops_stack`."""

from collections.abc import Mapping
from typing import Any

from ops.fleet.action import Action, EventReporter
from ops.fleet.host_task import Told
from ops.fleet.software_task import installed
from ops.flows.hosts import Project
from ops.model.inventory import HostSpec


class ActionModule(Action):
    """The environment that a profile's releases run from."""

    FINAL = False

    def work(self, project: Project, spec: HostSpec, arguments: Mapping[str, Any], reporter: EventReporter) -> Told:
        """Make and prove it, or say whether it would be made."""
        profile = project.profile(arguments["profile"])
        return installed(project, profile, spec, reporter, check=bool(self._task.check_mode))

    def check(self, project: Project, arguments: Mapping[str, Any]) -> None:
        """Resolve the profile. Raises: ConfigError."""
        project.profile(arguments["profile"])
