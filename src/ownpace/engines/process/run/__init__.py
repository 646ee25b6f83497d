"""How a run comes about, and how it ends."""
