"""Pages that are made from the code: if this fails, they describe another program (`make docs` makes them anew)."""

import subprocess
import sys
from pathlib import Path


def test_the_page_of_the_commands_is_what_the_commands_say(repository: Path, tmp_path: Path) -> None:
    made = tmp_path / "commands.md"
    makefile = (repository / "Makefile").read_text()
    recipe = next(line for line in makefile.splitlines() if "-m typer ops.cli.app" in line)
    title = recipe.partition('--title "')[2].partition('"')[0]
    words = ["-m", "typer", "ops.cli.app", "utils", "docs", "--name", "ops", "--title", title, "--output", str(made)]
    subprocess.run([sys.executable, *words], cwd=repository, check=True, capture_output=True)
    assert made.read_text() == (repository / "docs" / "commands.md").read_text()
