"""What the papers claim, and what we do, shown in virtual time with real gradients: `python -m claims`."""
