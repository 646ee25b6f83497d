"""The command `ownpace`, and `python -m ownpace`: all is imported here, so that Ctrl-C ends that in one line, too."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from ownpace.cli.main import main as run
    except KeyboardInterrupt:
        print("ownpace: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
