"""Describes the ops to ``torch.compile``, ``torch.export`` and fake tensors."""
