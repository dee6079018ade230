"""Comparing the weights that a program has in memory with a file of them."""
