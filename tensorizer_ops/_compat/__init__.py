"""The implementation of the modules with the API of ``tensorizer``."""
