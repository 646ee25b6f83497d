"""`python -m ownpace.testing.torture_process`: what it does is in runner.py."""

import sys

from ownpace.testing.torture_process.runner import main

if __name__ == "__main__":
    sys.exit(main())
