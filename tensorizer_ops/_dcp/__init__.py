"""Storage, planners and staging for ``torch.distributed.checkpoint``."""

import re

# The file that a save of many ranks writes last, and that lists the others.
FILE = "checkpoint.tensors"
# The list of a chain of checkpoints.
CHAIN = "chain.tensors"
# The key of the list in its metadata.
KEY = "tensorizer_ops.distributed_checkpoint"
# The metadata of a data file has its name, so that no other file can take its place.
NAME_KEY = "tensorizer_ops.distributed_checkpoint.file"
# The files of ranks. No other names are read, or deleted.
DATA_FILE = re.compile(r"rank-[0-9]{1,9}-[0-9a-f]{16}\.tensors")
