"""The engine on real processes: torch.distributed between workers, ZeroMQ to servers, the wall clock."""
