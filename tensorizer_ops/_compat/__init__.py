"""What the modules with the API of ``tensorizer`` are made of."""
