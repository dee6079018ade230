"""Registers the ops with torch, as soon as it is imported."""
