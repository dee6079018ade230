"""Chains of checkpoints: steps in a folder, of which the newest that is whole is loaded."""
