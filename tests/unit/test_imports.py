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


def imports_of(file: Path, modules: set[str]) -> set[str]:
    """Modules of the product that a file imports, at its top or inside its functions."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inner & modules) or {node.module}
    return found & modules


KNOWN_CIRCLES = {"ops.flows.gating", "ops.flows.hosts", "ops.sandbox.faults", "ops.sandbox.host"}
"""Modules that import each other still."""


def test_no_two_modules_import_each_other(repository: Path) -> None:
    """What cannot be read from the bottom up cannot be tested from the bottom up either."""
    files = {
        ".".join(file.relative_to(repository).with_suffix("").parts).removesuffix(".__init__"): file
        for file in (repository / "ops").rglob("*.py")
    }
    waiting = {name: imports_of(file, set(files)) - {name} for name, file in files.items()}
    while ready := {name for name, needed in waiting.items() if not needed & waiting.keys()}:
        for name in ready:
            del waiting[name]
    # What is left is in a circle, or stands above one.
    while top := {name for name in waiting if not any(name in needed for needed in waiting.values())}:
        for name in top:
            del waiting[name]
    assert set(waiting) <= KNOWN_CIRCLES, "these import each other"
