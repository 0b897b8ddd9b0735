#!/usr/bin/env python3
"""Write the page of a run again from its document, after the report has changed. It measures nothing.

python tests/engine/gpu/rewrite.py engine-gpu.json --out docs/results
"""

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    import engine_results
    import gpu_report

    parser = argparse.ArgumentParser(description="write the page of a GPU run again from its document")
    parser.add_argument("document", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found = json.loads(options.document.read_text())
    found["rewritten"] = engine_results.today()
    gpu_report.write(found, found["failures"], options.out)


if __name__ == "__main__":
    main()
