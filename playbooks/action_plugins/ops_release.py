"""See `ansible-doc ops_release`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ops.errors import ConfigError
from ops.fleet import host_task
from ops.fleet.action import Action, EventReporter
from ops.flows.deploy import DeployOptions
from ops.flows.hosts import Project
from ops.model.inventory import HostSpec
from ops.model.profile import Profile


class ActionModule(Action):
    """One host's release."""

    profile: Profile | None = None

    def check(self, project: Project, arguments: Mapping[str, Any]) -> None:
        """Resolve the profile. Raises: ConfigError."""
        if arguments["state"] == "present":
            if not arguments["profile"]:
                raise ConfigError("state present needs a profile", hint="-e profile=<a file in envs/profiles>")
            self.profile = project.profile(arguments["profile"])
            if arguments["digest"] not in (None, host_task.digest(project, self.profile)):
                raise ConfigError(
                    f"profile {self.profile.name}, its stack or its NCCL set was changed since the roll began",
                    hint="start the roll again: hosts that are done get the same as the others",
                )

    def work(
        self, project: Project, spec: HostSpec, arguments: Mapping[str, Any], reporter: EventReporter
    ) -> host_task.Told:
        """Call the flow that `state` names."""
        wish = host_task.Wish(
            check=bool(self._task.check_mode),
            diff=bool(self._task.diff),
            wait_s=arguments["lock_wait_s"],
            options=DeployOptions(
                message=arguments["message"],
                break_lock=arguments["break_lock"],
                assume_baseline=Path(arguments["assume_baseline"]) if arguments["assume_baseline"] else None,
            ),
        )
        if arguments["state"] == "absent":
            return host_task.absent(spec, wish, reporter)
        if arguments["state"] == "good":
            return host_task.good(spec, arguments["release"], wish, reporter)
        assert self.profile is not None  # `check` resolved it
        return host_task.present(project, self.profile, spec, wish, reporter)
