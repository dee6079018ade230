"""Models of transformers and diffusers, for ``tensorizer_ops.hf``."""
