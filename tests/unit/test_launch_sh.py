"""launch.sh starts the engine with exactly the profile, and no value of it can become shell.

If this fails, an argument or a variable reaches the engine changed, or a profile runs commands on a host.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ops.config import Resolved, resolve_profile
from ops.model.env_values import env_problems, value_problem
from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.release import Release
from ops.render import render
from ops.render.env_file import env_lines
from ops.render.files import template_folder
from tests.unit.release_hosts import lay_down, rendered

FAKE_ENGINE = """#!{python} -SE
import json, os, sys
seen = {{"argv": sys.argv, "environ": dict(os.environ), "cwd": os.getcwd(), "pid": os.getpid()}}
with open(os.environ["OPS_INSTANCE_DIR"] + "/seen.json", "w") as file:
    json.dump(seen, file)
print("the engine speaks")
"""
NASTY = [
    "",
    " ",
    "'",
    '"',
    "$HOME",
    "$(id)",
    "`id`",
    "a b",
    "a;b",
    "a\nb",
    "\\",
    "#x",
    "-x",
    "*",
    "~",
    "!",
    "é😀",
    "%s",
    "{{x}}",
]
TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\x00"), max_size=40)
SLOW = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def instance(tmp_path: Path) -> HostSpec:
    """A host whose folders are here and whose Python writes down how it was started."""
    python = tmp_path / "engine" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(FAKE_ENGINE.format(python=sys.executable))
    python.chmod(0o755)
    root = tmp_path / "it's a $(root);folder"
    return HostSpec(name="here", address="here", supervisor="supervisord", root=str(root), engine_python=str(python))


def started(
    release: Release, host: HostSpec, shell: str = "/bin/sh", environ: dict[str, str] | None = None
) -> dict[str, Any]:
    instance_dir = Path(host.instance_dir)
    folder = lay_down(release, instance_dir / "releases" / release.id)
    current = instance_dir / "current"
    current.unlink(missing_ok=True)
    current.symlink_to(folder)
    subprocess.run(
        [shell, str(current / "launch.sh")],
        env={"PATH": os.environ["PATH"], **(environ or {})},
        stdout=subprocess.DEVNULL,
        check=True,
        cwd="/",
        timeout=30,
    )
    seen: dict[str, Any] = json.loads((instance_dir / "seen.json").read_text())
    return seen


@pytest.fixture(scope="module")
def shipped(shipped_project: Path) -> Resolved:
    return resolve_profile(shipped_project, "eagle3-2step", environ={})


def changed(shipped: Resolved, env: dict[str, str] | None = None, flags: dict[str, Any] | None = None) -> Profile:
    document = shipped.profile.model_dump()
    document["env"] |= env or {}
    document["engine"]["flags"] |= flags or {}
    return Profile.model_validate(document)


def render_here(shipped: Resolved, profile: Profile, host: HostSpec) -> Release:
    return render(profile, shipped.stack, shipped.nccl, host)


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_launch_sh_starts_the_engine_with_exactly_the_profile(
    shipped_project: Path, instance: HostSpec, shell: str
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    release = rendered(shipped_project, "eagle3-2step", instance)

    seen = started(release, instance, shell)

    assert seen["argv"][1:] == ["-m", "sglang.launch_server", *release.manifest["argv"]]
    expected = release.manifest["environment"]
    assert {name: seen["environ"].get(name) for name in expected} == expected
    assert seen["environ"]["OPS_RELEASE"] == release.id
    assert seen["environ"]["OPS_INSTANCE_DIR"] == instance.instance_dir
    log = (Path(instance.instance_dir) / "logs" / f"{release.id}.log").read_text().splitlines()
    assert log[0].startswith(f"== ops start {release.id} at ")
    assert log[0].endswith(f"pid {seen['pid']}")
    assert log[1:] == ["the engine speaks"]


def test_what_the_callers_shell_has_set_does_not_change_the_engine(shipped_project: Path, instance: HostSpec) -> None:
    strange = {
        "NCCL_DEBUG": "TRACE",
        "NCCL_PROTO": "Simple",
        "SGLANG_SIMULATE_ACC_LEN": "9",
        "CDPATH": "/",
        "SGL_X": "1",
    }

    seen = started(rendered(shipped_project, "eagle3-2step", instance), instance, environ=strange)

    assert seen["environ"]["NCCL_PROTO"] == "LL"
    assert not {"NCCL_DEBUG", "SGLANG_SIMULATE_ACC_LEN", "SGL_X"} & set(seen["environ"])


def test_a_second_start_appends_to_the_log_with_its_own_header(shipped_project: Path, instance: HostSpec) -> None:
    release = rendered(shipped_project, "baseline", instance)
    started(release, instance)
    started(release, instance)

    log = (Path(instance.instance_dir) / "logs" / f"{release.id}.log").read_text()
    assert log.count(f"== ops start {release.id}") == 2


def test_through_a_symlinked_root_the_processes_carry_the_real_folder_that_guard_and_agent_look_for(
    shipped_project: Path, instance: HostSpec, tmp_path: Path
) -> None:
    Path(instance.root).mkdir()
    link = tmp_path / "link"
    link.symlink_to(instance.root)
    host = instance.model_copy(update={"root": str(link)})

    seen = started(rendered(shipped_project, "baseline", host), host)

    assert seen["environ"]["OPS_INSTANCE_DIR"] == str(Path(instance.root).resolve() / "default")


def test_a_release_moved_elsewhere_runs_from_its_own_folder(
    shipped_project: Path, instance: HostSpec, tmp_path: Path
) -> None:
    release = rendered(shipped_project, "baseline", instance)
    folder = lay_down(release, tmp_path / "by hand")

    subprocess.run(["./launch.sh"], cwd=folder, stdout=subprocess.DEVNULL, check=True, timeout=30)

    seen = json.loads((folder / "seen.json").read_text())
    assert (seen["cwd"], seen["environ"]["OPS_RELEASE"]) == (str(folder), "by hand")


@SLOW
@given(values=st.lists(TEXT, min_size=1, max_size=4))
@example(values=NASTY)
def test_no_flag_value_becomes_shell(shipped: Resolved, instance: HostSpec, values: list[str]) -> None:
    profile = changed(shipped, flags={"sleep-on-idle": True, "lora-paths": values})

    seen = started(render_here(shipped, profile, instance), instance)

    tail = seen["argv"][seen["argv"].index("--speculative-num-draft-tokens") + 2 :]
    expected = (
        [f"--lora-paths={values[0]}"] if len(values) == 1 and values[0].startswith("-") else ["--lora-paths", *values]
    )
    assert tail == [*expected, "--sleep-on-idle"]


@SLOW
@given(value=TEXT)
@example(value="$(touch /tmp/x)")
@example(value="a'b\"c;d|e&f")
@example(value="é😀%{}[]=\xa0x")
def test_an_environment_value_arrives_literally_or_is_refused(
    shipped: Resolved, instance: HostSpec, value: str
) -> None:
    try:
        profile = changed(shipped, env={"GREETING": value})
    except ValidationError:
        assert value_problem(value) is not None
        return

    seen = started(render_here(shipped, profile, instance), instance)

    assert value_problem(value) is None
    assert seen["environ"]["GREETING"] == value


@SLOW
@given(name=st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True))
@example(name="ops_line")
@example(name="ops_release_dir")
@example(name="OPTIND")
@example(name="line")
@example(name="IFS")
def test_an_environment_name_never_disturbs_the_script(shipped: Resolved, instance: HostSpec, name: str) -> None:
    try:
        profile = changed(shipped, env={name: "a b"})
    except ValidationError:
        assert list(env_problems({name: ""}, ()))
        return

    seen = started(render_here(shipped, profile, instance), instance, environ={"PATH": os.environ["PATH"]})

    assert seen["environ"][name] == "a b"
    assert seen["environ"]["SPT_NOENV"] == "1"


def read_as_systemd(text: str) -> dict[str, str]:
    """Read an EnvironmentFile= as systemd does (the states of parse_env_file_internal in src/basic/env-file.c)."""
    state, key, value, quiet, found = "pre-key", "", "", 0, {}
    for char in f"{text}\n":
        if state == "pre-key":
            if char in "#;":
                state = "comment"
            elif char not in " \t\n\r":
                state, key = "key", char
        elif state == "key":
            if char == "\n":
                state = "pre-key"
            elif char == "=":
                state, value, quiet = "pre-value", "", 0
            else:
                key += char
        elif state in ("pre-value", "value"):
            if char in "\n\r":
                found[key] = value[: len(value) - quiet] if quiet else value
                state = "pre-key"
            elif char == "'" and state == "pre-value":
                state = "single"
            elif char == '"' and state == "pre-value":
                state = "double"
            elif char == "\\":
                state, quiet = "escape", 0
            elif state == "value" or char not in " \t":
                state, value = "value", value + char
                quiet = quiet + 1 if char in " \t" else 0
        elif state == "escape":
            state = "value"
            value += "" if char in "\n\r" else char
        elif state == "single":
            state, value = ("pre-value", value) if char == "'" else (state, value + char)
        elif state == "double":
            state, value = ("pre-value", value) if char == '"' else (state, value + char)
        elif state == "comment" and char in "\n\r":
            state = "pre-key"
    return found


def read_as_docker(text: str) -> dict[str, str]:
    """Read an --env-file as the docker CLI does (cli/opts/file.go): literal after the first `=`, a final CR is cut."""
    lines = [line.removesuffix("\r").lstrip() for line in text.split("\n")]
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {key: value for key, _, value in pairs}


@settings(max_examples=400, deadline=None, derandomize=True)
@given(value=TEXT)
@example(value="{'a': \"b\"}")
@example(value="x # no comment")
@example(value="x ; y")
def test_systemd_and_docker_read_the_same_environment(value: str) -> None:
    if value_problem(value) is not None:
        return
    environment = {"FIRST": "1", "GREETING": value, "LAST": "1"}
    text = env_lines(environment).decode()

    assert read_as_systemd(text) == read_as_docker(text) == environment


@pytest.mark.parametrize("value", ["a\\b", "'a'", '"a"', " a", "a ", "a\rb", "a\nb"])
def test_what_the_readers_would_read_differently_is_refused(value: str) -> None:
    text = f"A={value}\n"
    assert value_problem(value) is not None
    assert not read_as_systemd(text) == read_as_docker(text) == {"A": value}


def test_every_value_in_the_script_is_quoted_or_safe_by_its_pattern() -> None:
    template = (template_folder() / "launch.sh.j2").read_text()
    # Names that the model restricts to lower-case letters, digits and dashes, and names that rendering itself sets.
    safe = {"profile.name", "host.instance", "secrets_file", "container_secrets"}

    for expression in re.findall(r"\{\{\s*(.*?)\s*\}\}", template):
        quoted = expression.endswith("|sh") or "|map('sh')|join(' ')" in expression
        assert quoted or expression in safe or expression.startswith("' \\\\' if "), expression
