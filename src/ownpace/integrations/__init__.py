"""The drop-in inside frameworks that have a training loop of their own: Lightning, Fabric, Transformers, Accelerate.

Each module needs its framework installed (`pip install ownpace[lightning]`, `ownpace[hf]`); nothing else imports them.
"""
