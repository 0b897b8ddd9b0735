"""What is imported when: if this fails, `ops --help` takes seconds, or code reaches a host that cannot run it."""

import ast
import subprocess
import sys
from pathlib import Path

HEAVY = ("fabric", "paramiko", "docker", "ansible", "scipy", "asyncssh", "requests", "jinja2")


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom ops.cli.app import main\ncode = main(['--help'])\n"
        f"print(code, [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_what_runs_on_a_host_needs_only_pythons_standard_library(repository: Path) -> None:
    allowed = sys.stdlib_module_names | {"ops"}
    for file in sorted((repository / "ops" / "remote").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
                if node.module and node.module.startswith("ops"):
                    assert node.module.startswith("ops.remote"), f"{file.name} imports {node.module}"
            assert {name.split(".")[0] for name in names} <= allowed, f"{file.name} imports {names}"


def test_what_runs_on_a_host_is_written_for_python_3_9(repository: Path) -> None:
    for file in sorted((repository / "ops" / "remote").glob("*.py")):
        ast.parse(file.read_text(), feature_version=(3, 9))


def test_only_the_sandbox_knows_of_faults_and_of_simulation(repository: Path) -> None:
    from ops.sandbox.engine.sglang.faults import PRESETS

    names = {*PRESETS, "orphan-on-port", "ssh-cut"}
    for file in sorted((repository / "ops").rglob("*.py")):
        if "sandbox" in file.relative_to(repository).with_suffix("").parts:  # its package and its commands
            continue
        text = file.read_text()
        assert not [name for name in names if name in text], file
        # What a server says of itself is never read; that figures are simulated is known from the inventory.
        assert '"SIMULATED"' not in text and "'SIMULATED'" not in text, file
