# Written by the build (setup.py).
TORCH: str  # the X.Y of the torch that the library was built against
