"""What runs in the workers of vLLM."""
