"""Storage, planners and staging for ``torch.distributed.checkpoint``."""
