"""`python -m ownpace.testing.torture`: what it does is in runner.py, which other processes can import."""

import sys

from ownpace.testing.torture.runner import main

if __name__ == "__main__":
    sys.exit(main())
