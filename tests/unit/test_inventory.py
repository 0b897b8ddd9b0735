"""The inventory means to `ops` what it means to `ansible-playbook`.

If this fails, the two deploy to different hosts, or to the right host at the wrong place.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ops.config import default_host, hosts_of, load_inventory
from ops.errors import ConfigError
from ops.model.inventory import HostSpec

FLEET = """
all:
  vars:
    ansible_user: deploy
    ops_root: /srv/ops
  children:
    gpu:
      vars:
        ansible_port: 2200
        ops_engine_python: /opt/sglang/bin/python
      hosts:
        gpu[01:03]:
        gpu-big:
          ansible_host: 10.0.0.9
          ansible_port: 22
      children:
        pcie:
          vars: {ansible_port: 2300}
          hosts:
            gpu02:
    router:
      hosts:
        edge: {ansible_become: true}
"""


def inventory_file(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "hosts.yml"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_default_host_is_the_sandbox_with_its_own_paths(repository: Path) -> None:
    host = default_host(load_inventory(repository, environ={}))

    base = f"{repository}/.sandbox/sandbox"
    assert (host.name, host.address, host.port, host.bind) == ("sandbox", "127.0.77.1", 2222, "127.0.77.1")
    assert (host.root, host.engine_python) == (f"{base}/root", f"{base}/engine/bin/python")
    assert host.path("/shared/models/Kimi-K2.5") == f"{base}/paths/shared/models/Kimi-K2.5"
    assert host.known_hosts == f"{base}/ssh/known_hosts"
    assert f"UserKnownHostsFile={repository}/envs/../.sandbox/sandbox/ssh/known_hosts" in host.ssh_args
    assert (host.supervisor, host.time_scale) == ("supervisord", 10)


def test_groups_ranges_and_precedence_are_ansibles(tmp_path: Path) -> None:
    file = inventory_file(tmp_path, FLEET)
    inventory = load_inventory(tmp_path, file, environ={})

    binary = Path(sys.executable).with_name("ansible-inventory")
    environ = {**os.environ, "ANSIBLE_LOCAL_TEMP": str(tmp_path / "tmp"), "ANSIBLE_HOME": str(tmp_path)}
    listed = subprocess.run(
        [binary, "-i", str(file), "--list"], capture_output=True, text=True, check=True, env=environ, timeout=60
    )
    theirs = json.loads(listed.stdout)
    variables = theirs["_meta"]["hostvars"]

    assert set(inventory.names) == set(variables) == {"gpu01", "gpu02", "gpu03", "gpu-big", "edge"}
    for host in inventory.hosts:
        expected = variables[host.name]
        assert host.port == expected.get("ansible_port", 22), host.name
        assert host.user == expected["ansible_user"]
        assert host.root == expected["ops_root"]
        assert host.address == expected.get("ansible_host", host.name)
    assert set(inventory.groups["gpu"]) == {"gpu01", "gpu02", "gpu03", "gpu-big"}
    assert set(inventory.groups["pcie"]) == {"gpu02"} == set(theirs["pcie"]["hosts"])


def test_hosts_are_chosen_by_name_group_or_list(tmp_path: Path) -> None:
    inventory = load_inventory(tmp_path, inventory_file(tmp_path, FLEET), environ={})

    assert [h.name for h in hosts_of(inventory, "pcie,edge")] == ["gpu02", "edge"]
    with pytest.raises(ConfigError, match=r"no host or group 'gpu04'.*did you mean gpu"):
        hosts_of(inventory, "gpu04")
    with pytest.raises(ConfigError, match="which host"):
        default_host(inventory)
    assert default_host(inventory, "edge").name == "edge"


def test_the_variable_ops_inventory_names_another_file(tmp_path: Path) -> None:
    file = inventory_file(tmp_path, "all: {hosts: {only: }}\n")

    assert load_inventory(tmp_path / "elsewhere", environ={"OPS_INVENTORY": str(file)}).names == ("only",)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("ops_rot: /x", "hosts.yml:4: all.hosts.a.ops_rot: unknown variable; did you mean ops_root"),
        ("ansible_port: 99999", "hosts.yml:4: ansible_port: 99999: must be less than or equal to 65535"),
        ("ops_root: relative", "hosts.yml:4: ops_root"),
        ("ops_supervisor: runit", "hosts.yml:4: ops_supervisor: 'runit': must be 'systemd' or 'supervisord'"),
        ("ops_time_scale: 0", "hosts.yml:4: ops_time_scale: 0"),
        ("ops_paths: /x", "hosts.yml:4: ops_paths: a map of path prefixes is expected"),
        ("ops_paths: {/a: b}", "hosts.yml:4: ops_paths"),
        ("ops_root: \"{{ lookup('env', 'HOME') }}\"", "only {{ inventory_dir }} and variables of the host"),
        ("ops_search_path: /x", "hosts.yml:4: ops_search_path"),
        ("ops_bind: localhost", "hosts.yml:4: ops_bind: 'localhost': an IP address is expected"),
    ],
)
def test_a_wrong_variable_is_named_with_its_line(tmp_path: Path, body: str, says: str) -> None:
    file = inventory_file(tmp_path, f"all:\n  hosts:\n    a:\n      {body}\n")

    with pytest.raises(ConfigError) as caught:
        load_inventory(tmp_path, file, environ={})

    assert says in caught.value.message


def test_variables_that_only_ansible_would_see_are_refused(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()

    with pytest.raises(ConfigError, match="group_vars/ beside it"):
        load_inventory(tmp_path, inventory_file(tmp_path, "all: {hosts: {a: }}\n"), environ={})


def test_a_missing_inventory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"envs/hosts\.yml: no such file"):
        load_inventory(tmp_path, environ={})


def test_the_longest_path_prefix_wins_and_only_at_a_folder() -> None:
    host = HostSpec(name="a", address="a", paths={"/data": "/mnt", "/data/models/": "/fast/", "/dat": "/no"})

    assert host.path("/data/models/x") == "/fast/x"
    assert host.path("/data/models") == "/fast"
    assert host.path("/data/other") == "/mnt/other"
    assert host.path("/database/x") == "/database/x"
