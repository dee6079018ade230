"""The functions and classes of the package."""
