"""`python -m ownpace` is the command `ownpace`."""

from ownpace.cli.main import main

if __name__ == "__main__":
    main()
