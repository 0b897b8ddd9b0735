"""A host as the planner sees it: links, markers and journal in memory, each step's effect written down in one place.

It has no engine and no clock. It is the state machine of `docs/transaction.md`, so that a run can be interrupted
after every single line that it writes, which no real host allows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ops.model.plan import Plan, Purpose, Step
from ops.model.state import Armed, Links, story
from ops.planner import Recovery, recovery

DEADLINE_S = 100.0


class Interrupted(Exception):
    """The run ends here: nobody gets to write another line."""


@dataclass
class Host:
    """Attributes: `lines_left`: journal lines until the interruption; None: never."""

    current: str | None = None
    last_good: str | None = None
    baseline: str | None = None
    running: str | None = None
    admitted: str | None = None
    wanted: str = "running"
    armed: Armed | None = None
    confirmed: Armed | None = None
    journal: list[dict[str, Any]] = field(default_factory=list)
    lines_left: int | None = None
    fails_at: str | None = None

    @property
    def links(self) -> Links:
        return Links(self.current, self.last_good, self.baseline, self.armed.release if self.armed else None)

    def write(self, run: str, event: str, **fields: Any) -> None:
        if self.lines_left == 0:
            raise Interrupted
        if self.lines_left is not None:
            self.lines_left -= 1
        self.journal.append({"run": run, "event": event, **fields})

    def begin(self, run: str, purpose: Purpose, release: str) -> None:
        self.write(run, "run-started", purpose=purpose.value, release=release, admitted=self.admitted is not None)

    def perform(self, run: str, plan: Plan, *, recovering: bool = False) -> None:
        for step in plan.steps:
            data = step.model_dump(mode="json")
            self.write(run, "step-started", step=data, recovery=recovering)
            if self.fails_at == step.kind and not recovering:
                self.write(run, "step-failed", step=data)
                raise RuntimeError(step.kind)
            for _ in self._effects(run, step):
                if self.lines_left == 0:
                    raise Interrupted
            self.write(run, "step-done", step=data, recovery=recovering)

    def _effects(self, run: str, step: Step) -> Iterator[None]:
        """Do a step, with a yield wherever a host could stop half-way through it."""
        release = step.args.get("release")
        match step.kind:
            case "stage" | "prune" | "gate":
                yield
            case "arm" | "rearm":
                self.armed = Armed(run, str(release), DEADLINE_S, "this boot")
                yield
            case "drain":
                self.admitted = None
                yield
            case "stop":
                if step.args.get("want_stopped"):
                    self.wanted = "stopped"
                yield
                self.running = None
            case "activate":
                self.current = release
                yield
                self.wanted = "running" if release else "stopped"
            case "start":
                yield
                self.running = self.current
            case "confirm":
                assert self.armed is not None and self.armed.run == run, "nobody may confirm what is not armed"
                assert self.running == self.armed.release, "what does not run was confirmed"
                self.armed, self.confirmed = None, self.armed
                yield
                self.write(run, "committed", release=release)
                yield
                self.finish()
            case "finish":
                yield
                self.finish()
            case "disarm":
                self.armed = None
                yield
            case "admit":
                yield
                assert self.running == release, f"{release} was admitted, {self.running} runs"
                self.admitted = release
            case _:
                raise AssertionError(f"a kind of step that this host does not know: {step.kind}")

    def finish(self) -> None:
        if self.confirmed is not None:
            self.last_good, self.confirmed = self.confirmed.release, None

    def recovery(self) -> Recovery:
        return recovery(story(self.journal), self.links, self.armed, self.confirmed, DEADLINE_S)

    def recover(self, run: str, *, settling: str | None = None) -> Recovery:
        """What the same or the next client does."""
        if settling is not None:
            self.write(run, "lock-taken", dead_run=settling)
        found = self.recovery()
        self.perform(run, found.plan, recovering=True)
        self.write(run, "run-ended", outcome="settled" if settling else "rolled-back")
        return found

    def guard(self, reason: str) -> None:
        """What guard.sh does by deadline or at boot."""
        if self.confirmed is not None:
            run, release = self.confirmed.run, self.confirmed.release
            self.finish()
            self.journal.append({"run": run, "event": "confirmed-late", "release": release})
        elif self.armed is not None:
            self.current = self.last_good or self.baseline
            self.running = self.current
            self.wanted = "running" if self.current else "stopped"
            self.journal.append({"run": self.armed.run, "event": "restored", "release": self.current})
            self.armed = None
        if reason == "boot":
            self.running = self.current if self.wanted == "running" else None
