"""What the rest of the package is built on."""
