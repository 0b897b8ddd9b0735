"""`ops profile …` and `ops render`: what they print, and that they change nothing they should not.

If this fails, an operator reads something else than what will be deployed, or loses a folder to `--out`.
"""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from ops.cli.profile import app as profile_app
from ops.cli.render import render
from ops.config.reference import with_table
from ops.config.schema import file_schema
from ops.errors import ConfigError
from ops.model.result import SCHEMA
from tests.unit.release_hosts import rendered

app = typer.Typer()
app.add_typer(profile_app, name="profile")
app.command("render")(render)


@pytest.fixture
def ops(project: Path, monkeypatch: pytest.MonkeyPatch) -> "Ops":
    monkeypatch.chdir(project)
    for name in [name for name in os.environ if name.startswith("OPS_")]:
        monkeypatch.delenv(name)
    return Ops()


class Ops:
    """Run a command in the project; errors keep their class."""

    def __call__(self, *argv: str) -> Result:
        result = CliRunner().invoke(app, argv)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result

    def json(self, *argv: str) -> dict[str, object]:
        document: dict[str, object] = json.loads(self(*argv, "--json").stdout)
        assert (document["schema"], document["exit_code"]) == (SCHEMA, 0)
        return document


def test_list_has_a_line_a_profile_and_names_the_broken_one(ops: Ops, project: Path) -> None:
    (project / "envs/profiles/broken.yaml").write_text("extends: baseline\nengine: {port: -1}\n")

    lines = ops("profile", "list").stdout.splitlines()

    assert len([line for line in lines if not line.startswith("lab-")]) == 7
    assert [line for line in lines if "BROKEN" in line] == [lines[1]]
    assert "broken.yaml:2: engine.port: -1" in lines[1]
    rows = ops.json("profile", "list")["profiles"]
    assert isinstance(rows, list)
    assert [row["name"] for row in rows if not row["valid"]] == ["broken"]


def test_show_prints_the_resolved_profile_and_on_request_the_origins(ops: Ops) -> None:
    assert "draft_tokens: 3" in ops("profile", "show", "eagle3-2step").stdout
    lines = ops("profile", "show", "eagle3-2step", "--origin").stdout.splitlines()
    (port,) = [line for line in lines if line.startswith("engine.port ")]
    assert port.split()[1:] == ["8000", "envs/profiles/baseline.yaml:11"]
    (row,) = ops.json("profile", "show", "eagle3-2step", "--origin")["profiles"]  # type: ignore[misc]
    assert row["profile"]["speculation"]["steps"] == 2
    assert row["origins"]["timeouts.drain_timeout_s"] == "default"
    assert row["extends"] == ["baseline"]


def test_validate_passes_what_is_shipped_and_tells_every_broken_profile(ops: Ops, project: Path) -> None:
    shipped = len(list((project / "envs/profiles").glob("*.yaml")))
    assert shipped >= 6
    assert ops("profile", "validate").stdout.count(": valid") == shipped
    for name in ("one", "two"):
        (project / f"envs/profiles/{name}.yaml").write_text("extends: baseline\nengine: {port: -1}\n")

    with pytest.raises(ConfigError) as caught:
        ops("profile", "validate")

    assert "one.yaml:2" in caught.value.message
    assert "two.yaml:2" in caught.value.message


def test_diff_names_the_keys_that_differ_and_the_nccl_values(ops: Ops) -> None:
    rows = ops.json("profile", "diff", "eagle3-2step", "eagle3-10step")["differences"]
    assert isinstance(rows, list)
    differences = {row["key"]: (row["a"], row["b"]) for row in rows}

    assert differences["speculation.draft_tokens"] == (3, 11)
    assert differences["nccl.env.NCCL_PROTO"] == ("LL", None)
    assert "engine.port" not in differences
    assert "the same" in ops("profile", "diff", "baseline", "baseline").stdout


def test_schema_lets_a_variant_leave_keys_out_and_null_them(ops: Ops) -> None:
    schema = json.loads(ops("profile", "schema").stdout)

    assert schema == file_schema("profile")
    assert "extends" in schema["properties"]
    assert "required" not in schema
    assert schema["additionalProperties"] is False
    assert {"type": "null"} in schema["properties"]["engine"]["anyOf"]
    assert file_schema("stack")["required"] == ["engine_version"]


def test_render_writes_exactly_what_would_be_uploaded(ops: Ops, project: Path) -> None:
    out = project / "out"
    (row,) = ops.json("render", "--profile", "eagle3-2step", "--out", str(out))["hosts"]  # type: ignore[misc]

    manifest = json.loads((out / "manifest.json").read_text())
    assert row["release"] == manifest["release"]
    assert sorted(p.name for p in out.iterdir()) == ["engine.env", "launch.sh", "manifest.json", "supervisor.conf"]
    assert stat.S_IMODE((out / "engine.env").stat().st_mode) == 0o600
    assert stat.S_IMODE((out / "launch.sh").stat().st_mode) == 0o755


def test_render_replaces_only_a_folder_it_wrote_itself(ops: Ops, project: Path) -> None:
    out = project / "out"
    ops("render", "--profile", "eagle3-2step", "--out", str(out))
    ops("render", "--profile", "baseline", "--out", str(out))
    assert json.loads((out / "manifest.json").read_text())["profile"]["name"] == "baseline"

    (out / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds notes\.txt, not written by ops"):
        ops("render", "--profile", "eagle3-2step", "--out", str(out))
    assert (out / "notes.txt").read_text() == "mine"
    assert json.loads((out / "manifest.json").read_text())["profile"]["name"] == "baseline"


def test_render_for_an_unknown_host_names_near_ones(ops: Ops, project: Path) -> None:
    with pytest.raises(ConfigError, match=r"no host or group 'sandbx'.*did you mean sandbox"):
        ops("render", "--profile", "baseline", "--host", "sandbx", "--out", str(project / "out"))
    assert not (project / "out").exists()


def test_render_gives_the_files_of_the_library(ops: Ops, project: Path) -> None:
    from ops.config import default_host, load_inventory

    release = rendered(project, "baseline", default_host(load_inventory(project, environ={})))
    ops("render", "--profile", "baseline", "--out", str(project / "out"))

    assert {f.name: f.content for f in release.files} == {p.name: p.read_bytes() for p in (project / "out").iterdir()}


def test_the_table_of_keys_in_the_docs_is_current(repository: Path) -> None:
    text = (repository / "docs" / "profiles.md").read_text()

    assert with_table(text) == text, "run: make docs"
    assert "| `speculation.draft_tokens` |" in text


def test_the_commands_load_nothing_heavy_until_they_run() -> None:
    program = (
        "import sys; import ops.cli.profile, ops.cli.render;"
        "print([m for m in ('jinja2', 'yaml', 'pydantic', 'fabric', 'ansible', 'docker') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.strip() == "[]"
