"""The drop-in inside frameworks that have a training loop of their own: Lightning, Fabric, Transformers, Accelerate.

Each module needs its framework installed (`pip install ownpace[lightning]`, `ownpace[hf]`); nothing else imports them.

lightning          a strategy for Lightning's Trainer, with a loop of its own over an epoch (lightning_loop), and what
                   training steps have logged (lightning_metrics)
fabric             a strategy for Fabric; processes: what both believe about devices and hosts
hf                 a Trainer for Transformers: when it logs, evaluates, saves and stops (trainer_flow), what its
                   checkpoints have besides (trainer_checkpoint), what Accelerate believes (accelerate_state)
training_data      a framework's training data, as its loop sees them
closures, modes    optimizers whose step is given a closure, or that have two modes
"""
