"""`ops deploy|rollback|start|stop|restart|status|logs|history|releases`."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ops.cli import output
from ops.errors import ConfigError

Host = Annotated[
    str | None, typer.Option("--host", help="Host or pattern of the inventory; OPS_HOST, else `sandbox`, when absent.")
]
Group = Annotated[
    str | None, typer.Option("--group", help="Group of the inventory: all its hosts, by the rollout's rules.")
]
Ensemble = Annotated[
    str | None, typer.Option("--group", help="Group of the inventory that serves one model together (ops_nodes).")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
BreakLock = Annotated[
    bool, typer.Option("--break-lock", help="Undo what a dead run left pending now, instead of waiting for the guard.")
]


def deploy(
    profile: Annotated[str, typer.Option("--profile", help="Name of a profile in envs/profiles.")],
    host: Host = None,
    group: Group = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the host, show the plan, touch nothing.")] = False,
    message: Annotated[str, typer.Option("--message", "-m", help="Why; shown to whoever finds the lock.")] = "",
    assume_baseline: Annotated[
        Path | None, typer.Option(help="Judge speed against this baseline.json instead of measuring the host's own.")
    ] = None,
    break_lock: BreakLock = False,
    as_json: Json = False,
) -> None:
    """Deploy a profile: prove it on the host, or go back to the last good release."""
    from ops.flows.deploy import DeployOptions
    from ops.flows.deploy import deploy as flow
    from ops.flows.hosts import Project

    project = Project.here()
    resolved = project.profile(profile)
    if group is not None:
        from ops.cli import fleet

        fleet.only(host, group)
        if members := project.ensemble(group):
            wish = DeployOptions(
                dry_run=dry_run, break_lock=break_lock, message=message, assume_baseline=assume_baseline
            )
            raise typer.Exit(
                fleet.together(
                    "deploy",
                    members,
                    lambda spec, member, reporter: flow(project, resolved, spec, wish, reporter, member),
                    as_json,
                )
            )
        baseline = str(assume_baseline.resolve()) if assume_baseline else None
        wanted = {"profile": profile, "message": message or None, "break_lock": break_lock, "assume_baseline": baseline}
        raise typer.Exit(fleet.run("deploy", project, "deploy.yml", group, wanted, as_json, check=dry_run))
    options = DeployOptions(dry_run=dry_run, break_lock=break_lock, message=message, assume_baseline=assume_baseline)
    result = flow(project, resolved, project.host(host), options, output.Progress())
    if dry_run and not as_json and "plan" in result.details:
        for step in result.details["plan"]:
            print(step["kind"], *(f"{key}={value}" for key, value in step["args"].items()))
    raise typer.Exit(output.finish("deploy", [result], as_json))


def rollback(
    to: Annotated[
        str | None, typer.Option("--to", help="A release id, or `baseline`; the last good other one when absent.")
    ] = None,
    host: Host = None,
    group: Group = None,
    max_unavailable: Annotated[int, typer.Option(min=1, help="With --group: hosts out of traffic at one moment.")] = 1,
    break_lock: BreakLock = False,
    as_json: Json = False,
) -> None:
    """Go back to an earlier good release or to the non-speculative baseline, through the same gate."""
    from ops.flows.hosts import Project
    from ops.flows.rollback import rollback as flow

    if group is not None:
        from ops.cli import fleet

        fleet.only(host, group)
        if members := Project.here().ensemble(group):
            raise typer.Exit(
                fleet.together(
                    "rollback",
                    members,
                    lambda spec, member, reporter: flow(spec, to, reporter, break_lock=break_lock, peers=member),
                    as_json,
                )
            )
        wanted = {"to": to, "max_unavailable": max_unavailable, "break_lock": break_lock}
        raise typer.Exit(fleet.run("rollback", Project.here(), "rollback.yml", group, wanted, as_json))
    result = flow(Project.here().host(host), to, output.Progress(), break_lock=break_lock)
    raise typer.Exit(output.finish("rollback", [result], as_json))


def gate(
    host: Host = None,
    subset: Annotated[str, typer.Option(help="deploy: every check; rollback: alive to acceptance.")] = "deploy",
    explain: Annotated[bool, typer.Option("--explain", help="Print each check's evidence.")] = False,
    as_json: Json = False,
) -> None:
    """Judge what runs on a host; exit 6 when found wanting, 7 when inconclusive."""
    from ops.flows.gating import gate as flow
    from ops.flows.hosts import Project
    from ops.model.gate import Subset

    if subset not in tuple(Subset):
        raise ConfigError(f"--subset {subset} is neither deploy nor rollback")
    result = flow(Project.here().host(host), Subset(subset), output.Progress())
    if explain and not as_json and result.gate:
        for check in result.gate["checks"]:
            print(f"{check['name']}: {check['outcome']}: {check['message']}")
            for key, value in check["evidence"].items():
                print(f"    {key}: {value}")
    raise typer.Exit(output.finish("gate", [result], as_json))


def _control(verb: str, host: str | None, group: str | None, break_lock: bool, as_json: bool) -> None:
    from ops.flows.control import control
    from ops.flows.hosts import Project

    if group is not None:
        from ops.cli import fleet

        fleet.only(host, group)
        members = Project.here().ensemble(group)
        if not members:
            raise ConfigError(
                f"the hosts of group {group} serve each for itself (no ops_nodes in its vars)",
                hint="ops rollback|deploy --group; ansible-playbook playbooks/stop.yml; or --host",
            )
        raise typer.Exit(
            fleet.together(
                verb,
                members,
                lambda spec, member, reporter: control(spec, verb, reporter, break_lock=break_lock, peers=member),
                as_json,
            )
        )
    result = control(Project.here().host(host), verb, output.Progress(), break_lock=break_lock)
    raise typer.Exit(output.finish(verb, [result], as_json))


def start(host: Host = None, group: Ensemble = None, break_lock: BreakLock = False, as_json: Json = False) -> None:
    """Start the current release and let it take traffic when it passes."""
    _control("start", host, group, break_lock, as_json)


def stop(host: Host = None, group: Ensemble = None, break_lock: BreakLock = False, as_json: Json = False) -> None:
    """Drain and stop; prove that processes, port and GPU memory are gone. It stays stopped over boots."""
    _control("stop", host, group, break_lock, as_json)


def restart(host: Host = None, group: Ensemble = None, break_lock: BreakLock = False, as_json: Json = False) -> None:
    """Stop and start the current release."""
    _control("restart", host, group, break_lock, as_json)


def status(
    host: Host = None,
    group: Annotated[str | None, typer.Option("--group", help="Group of the inventory, all its hosts at once.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit 6 when a host is not good.")] = False,
    as_json: Json = False,
) -> None:
    """Read the truth from the host: state, profile, release, uptime, acceptance, speed, environment."""
    from ops.fleet.parallel import each
    from ops.fleet.whole import whole
    from ops.flows.hosts import Project
    from ops.flows.status import status as flow
    from ops.model.result import document

    if host and group:
        raise ConfigError("--host and --group exclude each other")
    results = whole(each(Project.here().hosts(group or host), flow))
    found = document("status", results)
    if found["exit_code"] == 0 and check and not all(result.details.get("good") for result in results):
        found["exit_code"] = 6
    if as_json:
        output.print_json(found)
    else:
        for result in results:
            print(_status_line(result.model_dump()))
    raise typer.Exit(found["exit_code"])


def _status_line(row: dict[str, Any]) -> str:
    from ops.engine.phase_timer import shares_text

    details = row["details"]
    if details.get("state") == "unknown":
        return f"{row['host']}: unknown: {row['message']}" + (f"\nhint: {row['hint']}" if row["hint"] else "")
    parts = [f"{row['host']}: {details['state']}"]
    if row["release"]:
        parts.append(row["release"])
    if details["uptime_s"] is not None:
        parts.append(f"up {_duration(details['uptime_s'])}")
    if details["accept_length"]:
        parts.append(f"accept length {details['accept_length']:.2f}")
    if details["last_tok_s"]:
        parts.append(f"{details['last_tok_s']:.1f} tok/s last seen")
    if details.get("phase_shares"):
        parts.append(shares_text(details["phase_shares"]))
    if details["environment"]["ranks"]:
        verdict = details["environment"]["verdict"]
        parts.append(
            "env ok" if verdict == "ok" else f"env {verdict} {', '.join(details['environment']['missing'])}".strip()
        )
    node = details.get("node")
    if node:
        parts.append(f"rank {node['rank']} of {node['nodes']} of {node['ensemble']}")
    if row["release"] and not (node and node["rank"]):
        parts.append("admitted" if details["admitted"] else "takes no traffic")
    if details["last_gate"]:
        parts.append(f"gate {details['last_gate']['outcome']} {_duration(details['last_gate']['age_s'])} ago")
    if details["lock"]:
        lock = details["lock"]
        parts.append(f"locked by {lock['owner']}@{lock['host']} ({lock['message']}): {lock['meaning']}")
    if row["simulated"]:
        parts.append(f"SIMULATED {row['simulated']}")
    line = ", ".join(parts)
    if not details["good"] and sys.stdout.isatty():
        line = typer.style(line, fg="red")
    return f"{line}\n  {row['message']}" if row["message"] else line


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def logs(
    host: Host = None,
    release: Annotated[str | None, typer.Option("--release", help="A release id; the current one when absent.")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many lines.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Show a release's log; the log of a failed release is kept."""
    from ops.flows.history import logs as flow
    from ops.flows.hosts import Project

    spec = Project.here().host(host)
    found: list[str] = []
    try:
        flow(spec, release, lines, follow and not as_json, found.append if as_json else print)
    except KeyboardInterrupt:
        raise typer.Exit(0 if follow else 130) from None
    if as_json:
        output.print_json(
            {
                "schema": "ops/1",
                "command": "logs",
                "outcome": "shown",
                "exit_code": 0,
                "host": spec.name,
                "lines": found,
            }
        )


def history(host: Host = None, as_json: Json = False) -> None:
    """Show the host's journal: everything that was done to it."""
    from ops.flows.history import history as flow
    from ops.flows.hosts import Project

    spec = Project.here().host(host)
    events = flow(spec)
    if as_json:
        output.print_json(
            {
                "schema": "ops/1",
                "command": "history",
                "outcome": "shown",
                "exit_code": 0,
                "host": spec.name,
                "events": events,
            }
        )
        return
    for event in events:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(event["at"]))
        print(f"{stamp}  {event.get('run', '-'):<23}  {_event_words(event)}")


def _event_words(event: dict[str, Any]) -> str:
    kind = event["event"]
    if kind == "run-started":
        by = event["by"]
        return f"{event['command']} {event['release']} begun by {by['user']}@{by['host']}"
    if kind in ("step-started", "step-done", "step-failed"):
        extra = {"step-started": "begun", "step-done": f"done in {event.get('seconds', 0)} s"}.get(
            kind, f"FAILED: {event.get('error')}"
        )
        return f"  {'recovery: ' if event.get('recovery') else ''}{event['step']['kind']} {extra}"
    if kind == "gated":
        return f"  gate of {event['release']}: {event['outcome']}"
    if kind in ("restored", "fallback"):
        return f"{kind} {event.get('release')} by the {event.get('by')} ({event.get('reason')}), ungated"
    if kind == "run-ended":
        return f"ended: {event['outcome']}"
    rest = {key: value for key, value in event.items() if key not in ("at", "run", "event")}
    return f"{kind} " + ", ".join(f"{key} {value}" for key, value in rest.items())


def releases(host: Host = None, as_json: Json = False) -> None:
    """List the releases on a host and the links that name them."""
    from ops.flows.history import releases as flow
    from ops.flows.hosts import Project

    spec = Project.here().host(host)
    rows = flow(spec)
    if as_json:
        output.print_json(
            {
                "schema": "ops/1",
                "command": "releases",
                "outcome": "listed",
                "exit_code": 0,
                "host": spec.name,
                "releases": rows,
            }
        )
        return
    for row in rows:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(row["staged_at"]))
        print(f"{row['id']}  staged {stamp}  {' '.join(row['links'])}".rstrip())
