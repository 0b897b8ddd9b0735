"""The `ops` command: groups its parts, and maps every error to text, JSON and an exit code in one place."""

import sys
import traceback

import typer

from ops.cli import host, image, nccl, output, profile, release, render, sandbox, stack, verify
from ops.errors import Exit, Interrupted, OpsError, Refused
from ops.model.result import SCHEMA

app = typer.Typer(
    help="Deploy SGLang servers with speculative decoding: proved, kept, and undone.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    release.deploy,
    release.rollback,
    release.gate,
    release.start,
    release.stop,
    release.restart,
    release.status,
    release.logs,
    release.history,
    release.releases,
    render.render,
    verify.verify,
):
    app.command()(command)
app.add_typer(host.app, name="host")
app.add_typer(image.app, name="image")
app.add_typer(nccl.app, name="nccl")
app.add_typer(profile.app, name="profile")
app.add_typer(sandbox.app, name="sandbox")
app.add_typer(stack.app, name="stack")


def main(argv: list[str] | None = None) -> int:
    """Run a command line and return its exit code; a traceback is printed for bugs only."""
    words = sys.argv[1:] if argv is None else argv
    as_json = "--json" in words
    command = " ".join(word for word in words[:2] if not word.startswith("-"))
    try:
        code = app(words, standalone_mode=False, prog_name="ops")
        return int(code or 0)
    except typer.Exit as done:
        return done.exit_code
    except typer.TyperException as error:
        return _fail(command, Refused(error.format_message(), hint=f"ops {command} --help"), int(Exit.REFUSED), as_json)
    except OpsError as error:
        return _fail(command, error, int(error.exit_code), as_json)
    except (KeyboardInterrupt, typer.Abort):
        return _fail(command, Interrupted("interrupted before anything was touched"), int(Exit.INTERRUPTED), as_json)
    except Exception as error:
        traceback.print_exc()
        return _fail(command, OpsError(f"a bug in ops: {error}"), int(Exit.BUG), as_json)


def _fail(command: str, error: OpsError, code: int, as_json: bool) -> int:
    if as_json:
        outcome = {2: "refused", 4: "unsafe", 130: "interrupted"}.get(code, "failed")
        output.print_json(
            {
                "schema": SCHEMA,
                "command": command,
                "outcome": outcome,
                "exit_code": code,
                "error": {"message": str(error), "hint": error.hint},
                "hosts": [],
            }
        )
    print(f"ops: {error}", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)
    return code
