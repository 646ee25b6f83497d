"""That every rank of a script is there, from `ownpace.join` to the end, whatever it is doing.

presence               a rank's line to rank 0
listener, lines        what the others say, and on which lines
place, roll            how far this rank has come; rank 0 compares the places
attendance             who is there, as rank 0 has it
past, readmission      ranks that are started again: what they have missed, and how rank 0 lets them in
"""
