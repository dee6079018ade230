"""Versions of a model that one process publishes, and any number follow."""
