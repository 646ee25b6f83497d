"""Which algorithm is first where: over how unlike machines are, how long a sum takes, how many they are. `make map`."""
