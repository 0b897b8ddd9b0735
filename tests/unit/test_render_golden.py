"""What each shipped profile renders to, for both supervisors, reviewed as files.

If this fails, the next deploy replaces running servers with other bytes than anybody has read. Read the difference,
then write it with `pytest tests/unit/test_render_golden.py --update-golden`.
"""

from pathlib import Path

import pytest

from ops.config import profile_names
from tests.unit.release_hosts import HOSTS, lay_down, rendered

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.mark.parametrize("keeper", sorted(HOSTS))
@pytest.mark.parametrize(
    "name", ["baseline", "eagle3-1step", "eagle3-2step", "eagle3-3step", "eagle3-5step", "eagle3-10step"]
)
def test_the_rendered_files_are_the_reviewed_ones(
    shipped_project: Path, name: str, keeper: str, request: pytest.FixtureRequest
) -> None:
    release = rendered(shipped_project, name, HOSTS[keeper])
    folder = GOLDEN / name / keeper
    if request.config.getoption("--update-golden"):
        lay_down(release, folder)

    reviewed = {file.name: file.read_text() for file in folder.iterdir()}

    assert {file.name: file.content.decode() for file in release.files} == reviewed


def test_every_shipped_profile_that_serves_has_reviewed_files(shipped_project: Path) -> None:
    """Profiles `lab-*` serve nobody; the real engine judges what they render to (tests/engine)."""
    serving = [name for name in profile_names(shipped_project) if not name.startswith("lab-")]
    assert sorted(folder.name for folder in GOLDEN.iterdir() if folder.is_dir()) == serving
