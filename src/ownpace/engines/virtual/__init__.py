"""The engine of virtual time: SimPy's clock, models of compute, network and faults, real gradients or none."""
