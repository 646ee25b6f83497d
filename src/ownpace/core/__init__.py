"""What everything else stands on: what an algorithm is and may ask for, flat models, events, errors.

Imports nothing else of ownpace.
"""
