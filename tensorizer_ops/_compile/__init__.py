"""What compilers are told of the ops: ``torch.compile``, ``torch.export`` and fake tensors."""
