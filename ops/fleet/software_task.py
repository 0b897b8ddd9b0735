"""What the playbook that installs does on one host: the environment of a profile's stack, made and proven."""

from ops.config.profiles import load_stack
from ops.errors import OpsError
from ops.fleet.host_task import Told
from ops.flows.hosts import Project, connected
from ops.flows.install import install, target
from ops.flows.report import failed
from ops.model.inventory import HostSpec
from ops.model.ports import Reporter
from ops.model.profile import Profile
from ops.model.result import HostResult


def installed(project: Project, profile: Profile, spec: HostSpec, reporter: Reporter, *, check: bool) -> Told:
    """The environment is there and proven. check: only say whether it would be made."""
    if not check:
        return Told(install(project, profile.stack, spec, reporter, profile=profile.name))
    try:
        folder = target(project, load_stack(project.root, profile.stack), spec)["path"]
        with connected(spec) as host:
            missing = not host.call("venv.state", folder=folder)["complete"]
    except OpsError as error:
        return Told(failed(spec, profile.name, error))
    what = f"would make the environment {folder}" if missing else f"{folder} is there"
    result = HostResult.on(spec, outcome="planned" if missing else "unchanged", changed=missing, message=what)
    return Told(result)
