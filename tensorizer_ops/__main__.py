"""The command ``python -m tensorizer_ops``, which is the same as ``tensorizer-ops``."""

import sys

from tensorizer_ops._cli.main import main

if __name__ == "__main__":
    sys.exit(main())
