"""The papers' headlines: each method at its own best learning rate, three seeds, rivals as the papers had them."""
