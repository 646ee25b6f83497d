"""How the processes of a run talk."""
