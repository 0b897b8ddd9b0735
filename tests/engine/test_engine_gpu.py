"""The whole product against the real SGLang on a GPU: every claim of `gpu/gpu_claims.py`.

If this fails, what the README promises does not hold on the machines it is made for. Half an hour:
`OPS_LAB_ENGINE_PYTHON=<a Python with SGLang> make test-engine-gpu`; see gpu/README.md.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import engine_results
import pytest

sys.path.append(str(Path(__file__).parent / "gpu"))

import gpu_claims
from gpu_main import main

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(7200)]

CLAIMS = [words for words, _, _ in gpu_claims.claims({})]


@pytest.fixture(scope="module")
def found(unavailable: Callable[[str], NoReturn]) -> dict[str, Any]:
    """What a whole run found; phases that an earlier, unfinished run of this commit did are not done again."""
    python = os.environ.get("OPS_LAB_ENGINE_PYTHON")
    if shutil.which("nvidia-smi") is None or not python:
        unavailable("needs an NVIDIA GPU (nvidia-smi) and OPS_LAB_ENGINE_PYTHON, a Python that has SGLang")
    main(["--engine-python", python, "--down"])
    document: dict[str, Any] = json.loads((engine_results.RESULTS / "engine-gpu.json").read_text())
    return document


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_claim_holds(found: dict[str, Any], claim: str) -> None:
    judged = {row["claim"]: row for row in found["claims"]}
    if claim not in judged:
        pytest.skip("needs two GPUs")
    assert judged[claim]["holds"] is True, judged[claim]["seen"]


def test_nothing_failed_on_the_way(found: dict[str, Any]) -> None:
    assert found["failures"] == {}
