"""How several processes share a load: what ``tensorizer_ops.distributed`` is made of."""
