"""`python -m ops` and the console script `ops`."""

import sys


def main() -> None:
    from ops.cli.app import main as run

    sys.exit(run())


if __name__ == "__main__":
    main()
