"""What `ops deploy --group` reads of a playbook: plays, refusals and failures, as JSON lines in the file OPS_EVENTS."""

import os
from typing import Any

from ansible.plugins.callback import CallbackBase

from ops.fleet import events
from ops.fleet.lifeline import die_with_parent

DOCUMENTATION = r"""
name: ops_events
type: stdout
short_description: Events for the ops command
description:
  - Writes events as JSON lines to the file that the environment variable OPS_EVENTS names, and nothing to the terminal.
    Used by the ops command when it runs a playbook; people who run one themselves use Ansible's own output.
author:
  - ops (@ops)
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]  # Ansible ships no types
    """One event for what the hosts' own events do not say."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "ops_events"

    def __init__(self) -> None:
        super().__init__()
        parent = os.environ.get("OPS_PARENT")
        if parent:
            die_with_parent(int(parent))

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """A wave begins."""
        hosts = [host.name for host in play.get_variable_manager()._inventory.get_hosts(play.hosts)]
        self._write({"event": "play", "name": play.get_name(), "hosts": hosts})

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """All hosts of a wave begin a task."""
        self._write({"event": "task", "name": task.get_name()})

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """A task failed."""
        self._write({"event": "failed", **self._of(result), "ignored": ignore_errors})

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """A host cannot be asked."""
        self._write({"event": "unreachable", **self._of(result)})

    def v2_runner_on_ok(self, result: Any) -> None:
        """A task succeeded."""
        shown = {"event": "ok", **self._of(result), "changed": bool(result.result.get("changed"))}
        if result.result.get("diff") and not result.task.no_log:
            shown["diff"] = self._get_diff(result.result["diff"])
        self._write(shown)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """The end: counts by host."""
        self._write({"event": "stats", "hosts": {host: stats.summarize(host) for host in stats.processed}})

    def _of(self, result: Any) -> dict[str, Any]:
        message = "" if result.task.no_log else str(result.result.get("msg", ""))
        return {"host": result.host.get_name(), "task": result.task.get_name(), "message": message}

    def _write(self, event: dict[str, Any]) -> None:
        path = os.environ.get(events.VARIABLE)
        if path:
            events.append(path, event)
