"""`ops sandbox up|down|status|fault`: a host on your own machine, with a SIMULATED engine."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli import output
from ops.errors import ConfigError, Exit

if TYPE_CHECKING:
    from ops.sandbox.host import Sandbox, State

app = typer.Typer(
    help="A host on your own machine, reached over SSH like any other; its engine is SIMULATED.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(help="Name of the sandbox; several can live side by side.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


@app.command()
def up(
    name: Name = "sandbox",
    time_scale: Annotated[
        float | None, typer.Option(help="Virtual seconds per second; 10, or as it was, when absent.")
    ] = None,
    noise: Annotated[
        str | None, typer.Option(help="Spread between runs: off or story; story, or as it was, when absent.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the noise; 1, or as it was, when absent.")] = None,
    load_s: Annotated[
        float | None, typer.Option(help="Length of a model load, virtual seconds; 8, or as it was, when absent.")
    ] = None,
    root_size_mib: Annotated[
        int | None,
        typer.Option(help="Put the host's root folder on a disk of this size (needs the right to mount); 0: no limit."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Bring a sandbox up; one that is up stays as it is, one that lost its processes gets them back."""
    from ops.sandbox.host import Sandbox

    if noise not in (None, "off", "story"):
        raise ConfigError(f"--noise {noise} is neither 'off' nor 'story'")
    started = time.monotonic()
    sandbox = Sandbox.up(
        name,
        time_scale=time_scale,
        noise="off" if noise == "off" else "story" if noise == "story" else None,
        seed=seed,
        load_s=load_s,
        root_size_mib=root_size_mib,
    )
    state = sandbox.state()
    if as_json:
        _print_json("sandbox up", "up", [_as_dict(sandbox, state)])
        return
    print(f"{name}: up in {time.monotonic() - started:.1f} s; {_line(state)}")
    for line in _how_to_use(sandbox, state):
        print(f"  {line}")


@app.command()
def down(
    name: Name = "sandbox",
    every: Annotated[bool, typer.Option("--all", help="All sandboxes of this project.")] = False,
    as_json: Json = False,
) -> None:
    """Stop everything that belongs to a sandbox and delete its folder, the host's disk included."""
    from ops.sandbox.host import Sandbox, all_sandboxes

    sandboxes = all_sandboxes() if every else [Sandbox.open(name)] if _exists(name) else []
    done = [(sandbox.layout.folder.name, sandbox.down()) for sandbox in sandboxes]
    if as_json:
        hosts = [{"host": host, "outcome": "down", "processes_ended": ended} for host, ended in done]
        _print_json("sandbox down", "down", hosts)
        return
    for host, ended in done:
        print(f"{host}: down; {ended} processes ended, folder deleted")
    if not done:
        print("no sandbox is there, nothing to do" if every else f"{name}: there is no such sandbox, nothing to do")


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(help="Name of the sandbox; all when left out.")] = None,
    as_json: Json = False,
) -> None:
    """Say what is up, where, at which time scale, and which faults are set."""
    from ops.sandbox.host import Sandbox, all_sandboxes

    sandboxes = [Sandbox.open(name)] if name else all_sandboxes()
    seen = [(sandbox, sandbox.state()) for sandbox in sandboxes]
    if as_json:
        _print_json("sandbox status", "read", [_as_dict(sandbox, state) for sandbox, state in seen])
        return
    for _, state in seen:
        print(f"{state.name}: {_line(state)}")
        for fault in state.faults:
            print(f"  fault {_fault_line(fault)}")
    if not seen:
        print("no sandbox is there; bring one up: ops sandbox up")


@app.command()
def fault(
    fault_name: Annotated[str | None, typer.Argument(metavar="[FAULT]", help="See --list.")] = None,
    sandbox_name: Annotated[str, typer.Option("--sandbox", help="Which sandbox.")] = "sandbox",
    on: Annotated[
        str,
        typer.Option(help="next (the next release that is deployed), current (what runs now) or a profile or release."),
    ] = "next",
    for_s: Annotated[
        float | None, typer.Option("--for", help="ssh-cut, reboot: how long, seconds of the clock on the wall.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="orphan-on-port: leaves at the rollback (default) or stays until cleared.")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Undo every fault.")] = False,
    show: Annotated[bool, typer.Option("--list", help="Show every fault there is, and which are set.")] = False,
    as_json: Json = False,
) -> None:
    """Make something go wrong on a sandbox, on purpose."""
    from ops.sandbox.host import Sandbox

    if (fault_name is not None) + clear + show != 1:
        raise ConfigError("say one of: a fault's name, --clear, --list", hint="ops sandbox fault --list")
    if show:
        _show_faults(sandbox_name, as_json)
        return
    sandbox = Sandbox.open(sandbox_name)
    if fault_name is None:
        sandbox.clear_faults()
    else:
        sandbox.fault(fault_name, on, for_s=for_s, until=until)
    state = sandbox.state()
    if as_json:
        _print_json("sandbox fault", "cleared" if clear else "set", [_as_dict(sandbox, state)])
        return
    print(f"{state.name}: {'faults cleared' if clear else f'{fault_name} set'}; {len(state.faults)} set now")
    for active in state.faults:
        print(f"  fault {_fault_line(active)}")


def _show_faults(sandbox_name: str, as_json: bool) -> None:
    from ops.sandbox.faults import known
    from ops.sandbox.host import Sandbox

    active = Sandbox.open(sandbox_name).state().faults if _exists(sandbox_name) else []
    if as_json:
        faults = [{"name": name, "description": text} for name, text in known().items()]
        output.print_json({"faults": faults, "set": active})
        return
    for name, text in known().items():
        print(f"{name:28} {text}")
    for entry in active:
        print(f"set on {sandbox_name}: {_fault_line(entry)}")


def _exists(name: str) -> bool:
    from ops.sandbox.layout import folder_of

    return folder_of(name).is_dir()


def _line(state: "State") -> str:
    what = "up" if state.up else "down" if not (state.sshd or state.supervisord) else "partly up"
    missing = [word for word, there in (("SSH server", state.sshd), ("supervisord", state.supervisord)) if not there]
    notes = [f"not running: {' and '.join(missing)} (ops sandbox up {state.name})"] if missing else []
    if state.cut_s:
        notes.append(f"SSH cut for another {state.cut_s:.0f} s")
    settings = state.settings
    return "; ".join(
        [
            f"{what} at {state.address}:{state.ssh_port}",
            f"engine SIMULATED x {settings.time_scale:g}, noise {settings.noise}, seed {settings.seed}",
            f"{state.processes} processes",
            *notes,
        ]
    )


def _how_to_use(sandbox: "Sandbox", state: "State") -> list[str]:
    from ops.sandbox.layout import DEFAULT_NAME, SSH_USER, Settings

    layout = sandbox.layout
    lines = [
        f"log in: ssh -p {state.ssh_port} -i {layout.client_key} -o UserKnownHostsFile={layout.known_hosts} "
        f"-o IdentitiesOnly=yes {SSH_USER}@{state.address}"
    ]
    if state.name != DEFAULT_NAME:
        lines.append(f"deploy to it: OPS_INVENTORY={layout.inventory} ops deploy --host {state.name} --profile ...")
    elif state.settings.time_scale != Settings().time_scale:
        lines.append(
            f"envs/hosts.yml says time scale {Settings().time_scale:g}; for right figures at "
            f"{state.settings.time_scale:g} use OPS_INVENTORY={layout.inventory}"
        )
    return lines


def _fault_line(entry: dict[str, Any]) -> str:
    rest = ", ".join(f"{key} {value}" for key, value in entry.items() if key not in ("name", "on") and value)
    return f"{entry.get('name') or 'without a name'} on {entry.get('on')}" + (f" ({rest})" if rest else "")


def _as_dict(sandbox: "Sandbox", state: "State") -> dict[str, Any]:
    return {
        "host": state.name,
        "outcome": "up" if state.up else "down",
        "address": state.address,
        "ssh_port": state.ssh_port,
        "inventory": str(sandbox.inventory),
        "folder": str(state.folder),
        "engine": "SIMULATED",
        **state.settings.model_dump(),
        "sshd": state.sshd,
        "supervisord": state.supervisord,
        "processes": state.processes,
        "ssh_cut_s": state.cut_s,
        "faults": state.faults,
    }


def _print_json(command: str, outcome: str, hosts: list[dict[str, Any]]) -> None:
    from ops.model.result import SCHEMA

    head = {"schema": SCHEMA, "command": command, "outcome": outcome, "exit_code": int(Exit.DONE)}
    output.print_json({**head, "hosts": hosts})
