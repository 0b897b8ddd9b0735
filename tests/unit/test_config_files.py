"""Variants, OPS_… overrides and `--origin` say the same thing.

If this fails, an operator deploys another value than the one that `ops profile show` printed.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from ops.config import (
    find_project,
    load_nccl,
    load_profile,
    load_settings,
    load_stack,
    resolve_profile,
    secret_values,
)
from ops.config.source import read_yaml, scalar
from ops.errors import ConfigError

Write = Callable[[str, str], Path]


def test_a_variant_merges_maps_and_replaces_lists_and_scalars(project: Path, write: Write) -> None:
    write("profiles/a.yaml", "extends: baseline\nenv: {ONE: '1'}\ntraffic: {concurrency: [4]}\nengine: {port: 8100}\n")

    profile = load_profile(project, "a", environ={})

    assert profile.env == {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1", "ONE": "1"}
    assert profile.traffic.concurrency == (4,)
    assert (profile.engine.port, profile.engine.tensor_parallel) == (8100, 8)


def test_null_removes_what_the_parent_said(project: Path, write: Write) -> None:
    write(
        "profiles/a.yaml",
        "extends: eagle3-2step\nspeculation: null\nfallback: null\nenv: {EAGLE3_PROFILE: null}\n"
        "engine: {served_model_name: null}\ngates: {acceptance: null}\n",
    )

    profile = load_profile(project, "a", environ={})

    assert profile.speculation is None
    assert "EAGLE3_PROFILE" not in profile.env
    assert profile.engine.served_model_name is None
    assert profile.gates.acceptance.min_accept_length is None


def test_a_description_is_not_inherited(project: Path, write: Write) -> None:
    write("profiles/a.yaml", "extends: baseline\n")

    assert load_profile(project, "a", environ={}).description == ""


def test_extending_in_a_circle_is_refused_with_the_circle(project: Path, write: Write) -> None:
    write("profiles/a.yaml", "extends: b\n")
    write("profiles/b.yaml", "extends: a\n")

    with pytest.raises(ConfigError, match=r"b\.yaml:1: extends: a -> b -> a goes in a circle"):
        load_profile(project, "a", environ={})


def test_extending_an_unknown_profile_names_near_ones(project: Path, write: Write) -> None:
    write("profiles/a.yaml", "extends: basline\n")

    with pytest.raises(ConfigError, match=r"a\.yaml:1: extends: unknown profile 'basline'; did you mean baseline"):
        load_profile(project, "a", environ={})


def test_each_value_names_the_file_and_line_it_came_from(project: Path, write: Write) -> None:
    write("profiles/a.yaml", "extends: eagle3-2step\n\nengine:\n  mem_fraction_static: 0.8\n")

    resolved = resolve_profile(project, "a", environ={"OPS_TIMEOUTS__STOP_TIMEOUT_S": "30"})

    assert resolved.chain == ("a", "eagle3-2step", "baseline")
    assert resolved.origin(("engine", "mem_fraction_static")) == "envs/profiles/a.yaml:4"
    assert resolved.origin(("speculation", "steps")).startswith("envs/profiles/eagle3-2step.yaml:")
    assert resolved.origin(("engine", "tensor_parallel")).startswith("envs/profiles/baseline.yaml:")
    assert resolved.origin(("timeouts", "stop_timeout_s")) == "environment OPS_TIMEOUTS__STOP_TIMEOUT_S"
    assert resolved.origin(("timeouts", "load_timeout_s")) == "default"
    assert {resolved.origin(path).partition(":")[0] for path, _ in resolved.values()} == {
        *(f"envs/profiles/{name}.yaml" for name in resolved.chain),
        "environment OPS_TIMEOUTS__STOP_TIMEOUT_S",
        "default",
    }


def test_the_environment_overrides_any_key(project: Path) -> None:
    environ = {
        "OPS_ENGINE__PORT": "8001",
        "OPS_TRAFFIC__CONCURRENCY": "[1, 2, 4]",
        "OPS_ENGINE__FLAGS__WATCHDOG_TIMEOUT": "700",
        "OPS_ENGINE__TRUST_REMOTE_CODE": "false",
        "OPS_ENV__NCCL_DEBUG": "INFO",
        "OPS_ENV__http_proxy": "proxy.internal",
        "OPS_ENV__NUMBER": "5",
        "OPS_NCCL": "default",
        "UNRELATED": "x",
        "OPS_SANDBOX": "not a profile key",
    }

    profile = load_profile(project, "eagle3-2step", environ=environ)

    assert profile.engine.port == 8001
    assert profile.traffic.concurrency == (1, 2, 4)
    assert profile.engine.flags == {"watchdog-timeout": 700}
    assert profile.engine.trust_remote_code is False
    assert profile.env["NCCL_DEBUG"] == "INFO"
    assert profile.env["http_proxy"] == "proxy.internal"
    assert profile.env["NUMBER"] == "5"
    assert profile.nccl == "default"


def test_the_environment_wins_over_dotenv_and_dotenv_over_files(project: Path) -> None:
    (project / ".env").write_text("OPS_ENGINE__PORT=8001\nOPS_KEEP_RELEASES=7\nOPS_INVENTORY=here.yml\n")

    resolved = resolve_profile(project, "baseline", environ={"OPS_ENGINE__PORT": "8002"})

    assert (resolved.profile.engine.port, resolved.profile.keep_releases) == (8002, 7)
    assert resolved.origin(("keep_releases",)) == ".env OPS_KEEP_RELEASES"
    assert load_settings(project, {"OPS_HOST": "gpu-a"}).inventory == Path("here.yml")
    assert load_settings(project, {"OPS_HOST": "gpu-a"}).host == "gpu-a"


def test_overrides_of_speculation_leave_the_baseline_alone(project: Path) -> None:
    environ = {"OPS_SPECULATION__STEPS": "4", "OPS_SPECULATION__DRAFT_TOKENS": "5"}

    speculation = load_profile(project, "eagle3-2step", environ=environ).speculation

    assert speculation is not None
    assert speculation.steps == 4
    assert load_profile(project, "baseline", environ=environ).speculation is None


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("OPS_ENGIN__PORT", "1", "OPS_ENGIN__PORT: a profile has no key `engin`; did you mean engine?"),
        ("OPS_ENGINE__PROT", "1", "environment OPS_ENGINE__PROT: engine.prot: unknown key"),
        ("OPS_ENGINE__PORT", "-1", "environment OPS_ENGINE__PORT: engine.port: -1"),
        ("OPS_TRAFFIC__CONCURRENCY", "[1", "OPS_TRAFFIC__CONCURRENCY: '[1' cannot be read"),
        ("OPS_SPECULATION__STEPS", "5", "steps + 1 = 6"),
    ],
)
def test_a_wrong_override_names_the_variable(project: Path, variable: str, value: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_profile(project, "eagle3-2step", environ={variable: value})

    assert says in caught.value.message


def test_overrides_from_the_command_line_win(project: Path) -> None:
    environ = {"OPS_ENGINE__PORT": "8001"}

    assert load_profile(project, "baseline", {"engine": {"port": 8009}}, environ=environ).engine.port == 8009


def test_secrets_come_from_the_environment_or_dotenv_and_are_never_shown(project: Path) -> None:
    (project / ".env").write_text("HF_TOKEN=from-dotenv\n")

    assert secret_values(("HF_TOKEN",), project, {}) == {"HF_TOKEN": "from-dotenv"}
    with pytest.raises(ConfigError) as caught:
        secret_values(("HF_TOKEN", "SGLANG_API_KEY"), project, {})
    assert "SGLANG_API_KEY" in caught.value.message
    assert "from-dotenv" not in str(caught.value) + caught.value.hint


def test_the_project_is_found_from_below_and_by_variable(project: Path, tmp_path: Path) -> None:
    below = project / "a" / "b"
    below.mkdir(parents=True)

    assert find_project(below, {}) == project
    assert find_project(tmp_path, {"OPS_PROJECT": str(project)}) == project
    with pytest.raises(ConfigError, match="OPS_PROJECT"):
        find_project(project, {"OPS_PROJECT": str(below)})
    with pytest.raises(ConfigError, match="no folder envs/profiles"):
        find_project(tmp_path, {})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, text) for text in ("on", "no", "012", "1_000", "12:30", "2024-01-01", "LL,Simple")),
        *(("8", 8), ("-3", -3), ("0.5", 0.5), ("1e3", 1000.0), ("true", True), ("~", None), ("[1, 8]", [1, 8])),
    ],
)
def test_scalars_are_what_one_reads(text: str, value: object) -> None:
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)


def test_a_key_written_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("a: 1\nb: 2\na: 3\nb: 4\n")

    with pytest.raises(ConfigError) as caught:
        read_yaml(file, "x.yaml")

    assert "x.yaml:3: `a` is written twice (first on line 1)" in caught.value.message
    assert "x.yaml:4: `b` is written twice (first on line 2)" in caught.value.message


@pytest.mark.parametrize("text", ["", "[1]", "text", "a: &x [*x]", "a: \x00"])
def test_a_file_that_is_no_map_of_keys_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=r"^x\.yaml"):
        read_yaml(file, "x.yaml")


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(b"a: \xff\n")

    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(file, "x.yaml")


def test_the_shipped_sets_and_stack_are_the_storys(project: Path) -> None:
    tuned = load_nccl(project, "pcie-blackwell-ll")

    assert tuned.env == {
        "NCCL_PROTO": "LL",
        "NCCL_ALGO": "Ring",
        "NCCL_P2P_LEVEL": "SYS",
        "NCCL_MAX_NCHANNELS": "16",
        "NCCL_BUFFSIZE": "16777216",
        "NCCL_NTHREADS": "512",
    }
    assert tuned.topology == "pcie"
    assert load_nccl(project, "default").env == {}
    assert load_stack(project, "kimi-k25-eagle3").engine_version == "0.5.23"


def test_a_wrong_nccl_value_is_named_in_the_sets_own_file(project: Path, write: Write) -> None:
    write("nccl/mine.yaml", "topology: pcie\nenv:\n  NCCL_ALGO: Ring\n  NCCL_PROTO: NOPE\n")
    write("profiles/a.yaml", "extends: baseline\nnccl: mine\n")

    with pytest.raises(ConfigError) as caught:
        load_profile(project, "a", environ={})

    assert "envs/profiles/a.yaml:2: nccl:" in caught.value.message
    assert "envs/nccl/mine.yaml:4: env.NCCL_PROTO: 'NOPE'" in caught.value.message
