"""Templates to bytes: StrictUndefined, no auto-escape, and a quoting filter for every value."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ops.render import quoting


def template_folder() -> Path:
    """Where the templates are: inside the installed package, or beside it in a checkout.

    Raises: FileNotFoundError when the installation is broken.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_templates", package.parent / "templates"):
        if (folder / "launch.sh.j2").is_file():
            return folder
    raise FileNotFoundError(f"no templates in {package / '_templates'} nor {package.parent / 'templates'}")


@cache
def _environment(folder: Path) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        autoescape=False,  # shell and units, not HTML: every value has its own quoting filter
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        sh=quoting.sh,
        systemd_word=quoting.systemd_word,
        systemd_command=quoting.systemd_command,
        systemd_path=quoting.systemd_path,
        supervisor=quoting.supervisor,
        supervisor_value=quoting.supervisor_value,
    )
    return environment


def fill(template: str, values: dict[str, Any]) -> bytes:
    """Fill one template; a name that `values` lacks is an error, never an empty string."""
    return _environment(template_folder()).get_template(template).render(values).encode()
