"""A release is the same bytes every time, its id tells what runs, and its files are what supervisors and shells accept.

If this fails, two deploys of one profile differ, a secret leaks into a manifest, or a unit is refused on the host.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from supervisor.options import ServerOptions

from ops.config import profile_names, resolve_profile
from ops.errors import ConfigError
from ops.model.inventory import HostSpec
from ops.model.stack import Image
from ops.render import render
from tests.unit.release_hosts import HOSTS, rendered


def test_rendering_twice_gives_the_same_bytes_whatever_the_hash_seed(shipped_project: Path, repository: Path) -> None:
    program = (
        "import sys, hashlib; from pathlib import Path\n"
        "from tests.unit.release_hosts import rendered\n"
        "r = rendered(Path(sys.argv[1]), 'eagle3-2step')\n"
        "print(r.id, [(f.name, hashlib.sha256(f.content).hexdigest(), f.mode) for f in r.files])\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program, str(shipped_project)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            cwd=repository,
        ).stdout
        for seed in ("1", "2")
    }

    assert len(outputs) == 1
    assert rendered(shipped_project, "eagle3-2step").id in outputs.pop()


def test_the_id_names_the_profile_and_changes_with_what_runs(shipped_project: Path) -> None:
    base = rendered(shipped_project, "eagle3-2step")
    ids = {
        base.id,
        rendered(shipped_project, "eagle3-2step", overrides={"engine": {"mem_fraction_static": 0.5}}).id,
        rendered(shipped_project, "eagle3-2step", overrides={"env": {"NCCL_DEBUG": "INFO"}}).id,
        rendered(shipped_project, "eagle3-2step", overrides={"timeouts": {"stop_timeout_s": 61}}).id,
        rendered(shipped_project, "eagle3-2step", overrides={"nccl": "default"}).id,
        rendered(shipped_project, "eagle3-2step", HOSTS["systemd"]).id,
    }

    assert len(ids) == 6
    assert all(name.startswith("eagle3-2step-") and len(name) == len("eagle3-2step-") + 12 for name in ids)
    assert rendered(shipped_project, "eagle3-2step", overrides={"gates": {"soak": {"requests": 5}}}).id == base.id


def test_a_secret_reaches_its_file_and_nothing_else(shipped_project: Path) -> None:
    wanted = {"secrets": ["HF_TOKEN", "SGLANG_API_KEY"]}
    one = {"HF_TOKEN": "sentinel-token-one", "SGLANG_API_KEY": "sentinel-key-one"}
    two = {"HF_TOKEN": "other-token", "SGLANG_API_KEY": "other-key"}

    release = rendered(shipped_project, "eagle3-2step", overrides=wanted, secrets=one)

    holders = {file.name for file in release.files if b"sentinel" in file.content}
    assert holders == {"engine.env", "secrets.yaml"}
    assert all(release.file(name).mode == 0o600 for name in holders)
    assert b"HF_TOKEN=sentinel-token-one\n" in release.file("engine.env").content
    assert release.file("secrets.yaml").content == b'api-key: "sentinel-key-one"\n'
    again = rendered(shipped_project, "eagle3-2step", overrides=wanted, secrets=two)
    assert (again.id, again.manifest) == (release.id, release.manifest)
    assert b'--config "$ops_release_dir/secrets.yaml"' in release.file("launch.sh").content


def test_a_missing_secret_is_refused_by_name(shipped_project: Path) -> None:
    with pytest.raises(ConfigError, match="needs the secret HF_TOKEN"):
        rendered(shipped_project, "baseline", overrides={"secrets": ["HF_TOKEN"]}, secrets={})


def test_a_secret_that_cannot_be_written_is_refused_without_showing_it(shipped_project: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        rendered(shipped_project, "baseline", overrides={"secrets": ["HF_TOKEN"]}, secrets={"HF_TOKEN": "senti\nnel"})
    assert "HF_TOKEN" in str(caught.value)
    assert "senti" not in str(caught.value)


def test_the_manifest_says_what_to_expect_of_the_running_server(shipped_project: Path) -> None:
    release = rendered(shipped_project, "eagle3-2step")
    manifest = release.manifest

    assert json.loads(release.file("manifest.json").content) == manifest
    assert manifest["release"] == release.id
    assert manifest["expect"]["server_info"]["speculative_num_draft_tokens"] == 3
    assert manifest["expect"]["server_info"]["model_path"] == "/workspace/shared/models/Kimi-K2.5"
    assert manifest["expect"]["ranks"] == 8
    assert manifest["pins"]["draft"]["layer_ids"] == [2, 30, 58]
    assert manifest["environment"]["SPT_NOENV"] == "1"
    assert set(manifest["files"]) == {"launch.sh", "engine.env", "supervisor.conf"}


@pytest.mark.parametrize("keeper", sorted(HOSTS))
def test_every_profile_keeps_rank_environments_readable(shipped_project: Path, keeper: str) -> None:
    for name in profile_names(shipped_project):
        assert b"SPT_NOENV=1\n" in rendered(shipped_project, name, HOSTS[keeper]).file("engine.env").content


@pytest.mark.parametrize("runtime", ["native", "docker"])
@pytest.mark.parametrize("keeper", sorted(HOSTS))
@pytest.mark.parametrize("secrets", [(), ("SGLANG_API_KEY",)])
def test_every_rendered_script_passes_bash_and_shellcheck(
    shipped_project: Path, tmp_path: Path, keeper: str, runtime: str, secrets: tuple[str, ...]
) -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    scripts = []
    for name in profile_names(shipped_project):
        resolved = resolve_profile(shipped_project, name, {"secrets": list(secrets)}, environ={})
        stack = resolved.stack.model_copy(
            update={"image": Image(repository="registry.internal/sglang", digest=f"sha256:{'a' * 64}")}
        )
        profile = resolved.profile.model_copy(update={"runtime": runtime})
        release = render(profile, stack, resolved.nccl, HOSTS[keeper], secrets=dict.fromkeys(secrets, "k"))
        script = tmp_path / f"{name}.sh"
        script.write_bytes(release.file("launch.sh").content)
        subprocess.run(["bash", "-n", script], check=True)
        subprocess.run(["sh", "-n", script], check=True)
        scripts.append(script)

    checked = subprocess.run([shellcheck, *scripts], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_docker_without_a_known_digest_is_refused(shipped_project: Path) -> None:
    with pytest.raises(ConfigError, match="has no image digest"):
        rendered(shipped_project, "baseline", overrides={"runtime": "docker"})


def test_a_container_gets_the_models_read_only_and_the_literal_environment(shipped_project: Path) -> None:
    resolved = resolve_profile(shipped_project, "eagle3-2step", {"runtime": "docker"}, environ={})
    digest = f"sha256:{'b' * 64}"
    stack = resolved.stack.model_copy(update={"image": Image(repository="registry.internal/sglang", digest=digest)})

    script = render(resolved.profile, stack, resolved.nccl, HOSTS["systemd"]).file("launch.sh").content.decode()

    assert '--env-file "$ops_release_dir/engine.env"' in script
    assert "--mount type=bind,src=/shared/models/Kimi-K2.5,dst=/shared/models/Kimi-K2.5,readonly" in script
    assert f"registry.internal/sglang@{digest}" in script


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("all", ["all"]),
        ("2", ["2"]),
        ("device=1", ["device=1"]),
        ("device=0,1", ['"device=0,1"']),
        ("device=GPU-a1,GPU-b2,capabilities=utility", ['"device=GPU-a1,GPU-b2",capabilities=utility']),
        ("none", []),
    ],
)
def test_docker_gets_several_gpus_as_one_option(shipped_project: Path, value: str, words: list[str]) -> None:
    resolved = resolve_profile(shipped_project, "baseline", {"runtime": "docker"}, environ={})
    stack = resolved.stack.model_copy(update={"image": Image(repository="r/sglang", digest=f"sha256:{'b' * 64}")})
    host = HOSTS["systemd"].model_copy(update={"container_gpus": value})

    script = render(resolved.profile, stack, resolved.nccl, host).file("launch.sh").content.decode()

    lines = [shlex.split(line.removesuffix("\\")) for line in script.splitlines() if "--gpus" in line]
    assert lines == ([["--gpus", *words]] if words else [])


def test_replicas_and_stages_are_expected_on_the_host(shipped_project: Path) -> None:
    flags = {"engine": {"flags": {"dp-size": 2, "pp-size": 2}}}

    assert rendered(shipped_project, "baseline", overrides=flags).manifest["expect"]["ranks"] == 32


def test_a_host_of_unknown_supervisor_is_refused(shipped_project: Path) -> None:
    host = HostSpec(name="a", address="a")
    resolved = resolve_profile(shipped_project, "baseline", environ={})

    with pytest.raises(ConfigError, match="systemd or supervisord"):
        render(resolved.profile, resolved.stack, resolved.nccl, host)
    found = render(resolved.profile, resolved.stack, resolved.nccl, host, supervisor="systemd")
    assert {file.name for file in found.files} == {"launch.sh", "engine.env", "engine.service", "manifest.json"}


def test_the_stop_deadline_is_in_wall_seconds_of_the_host(shipped_project: Path) -> None:
    fast = HOSTS["supervisord"].model_copy(update={"time_scale": 10.0})

    assert b"stopwaitsecs=6\n" in rendered(shipped_project, "baseline", fast).file("supervisor.conf").content
    assert (
        b"TimeoutStopSec=60\n" in rendered(shipped_project, "baseline", HOSTS["systemd"]).file("engine.service").content
    )


@pytest.mark.parametrize("root", ["/opt/ops", "/srv/a b/100%/it's", "/x/$HOME;y"])
def test_supervisord_reads_the_program_as_meant(shipped_project: Path, tmp_path: Path, root: str) -> None:
    host = HOSTS["supervisord"].model_copy(update={"root": root})
    conf = rendered(shipped_project, "baseline", host).file("supervisor.conf").content.decode()
    main = tmp_path / "supervisord.conf"
    main.write_text(f"[supervisord]\nlogfile={tmp_path}/log\npidfile={tmp_path}/pid\nidentifier=x\n{conf}")
    options = ServerOptions()
    options.realize(["-c", str(main)])
    (group,) = options.process_group_configs
    (program,) = group.process_configs

    assert shlex.split(program.command) == ["/bin/sh", f"{root}/default/guard/guard.sh", "run", f"{root}/default"]
    assert (program.name, program.autostart, program.stopasgroup, program.killasgroup) == (
        "engine-default",
        False,
        True,
        True,
    )
    assert program.stopwaitsecs == 60


def test_a_root_that_supervisord_cannot_express_is_refused(shipped_project: Path) -> None:
    with pytest.raises(ConfigError, match="start of a comment"):
        rendered(shipped_project, "baseline", HOSTS["supervisord"].model_copy(update={"root": "/a ;b"}))


@pytest.mark.parametrize("root", ["/opt/ops", "/srv/a b/100%/it's", "/x/$HOME"])
@pytest.mark.parametrize("run_as", [None, "daemon"])
def test_systemd_accepts_the_unit(shipped_project: Path, tmp_path: Path, root: str, run_as: str | None) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    host = HOSTS["systemd"].model_copy(update={"root": root})
    unit = tmp_path / "sglang-default.service"
    unit.write_bytes(
        rendered(shipped_project, "eagle3-2step", host, overrides={"run_as": run_as}).file("engine.service").content
    )

    checked = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, check=False, timeout=60)

    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_unit_holds_what_keeps_a_server_alive_over_a_reboot(shipped_project: Path) -> None:
    unit = (
        rendered(shipped_project, "eagle3-2step", HOSTS["systemd"]).file("engine.service").content.decode().splitlines()
    )

    for line in (
        "EnvironmentFile=-/opt/ops/default/current/engine.env",
        "ExecStartPre=+/bin/sh /opt/ops/default/guard/guard.sh pre-start /opt/ops/default",
        "ExecStart=/bin/sh /opt/ops/default/current/launch.sh",
        "KillMode=control-group",
        "Restart=on-failure",
        "LimitMEMLOCK=infinity",
        "RequiresMountsFor=/shared/models/Kimi-K2.5",
        "RequiresMountsFor=/data/models/kimi-k2.5-eagle3",
        "WantedBy=multi-user.target",
    ):
        assert line in unit


def test_nccl_conf_is_written_only_when_asked_for(shipped_project: Path) -> None:
    assert "nccl.conf" not in {file.name for file in rendered(shipped_project, "baseline").files}
    content = rendered(shipped_project, "baseline", overrides={"nccl_conf": True}).file("nccl.conf").content.decode()
    assert "NCCL_PROTO=LL\n" in content
    assert content.count("=") == 6
