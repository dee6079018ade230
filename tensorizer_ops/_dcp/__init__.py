"""Storage, planners and staging for ``torch.distributed.checkpoint``."""

# The file that a save of many ranks writes last, and that lists the others.
FILE = "checkpoint.tensors"
# The key of the list in its metadata.
KEY = "tensorizer_ops.distributed_checkpoint"
