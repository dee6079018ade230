"""Prints the folder to put on ``PYTHONPATH`` to import this package as ``tensorizer``.

PYTHONPATH=$(python -m tensorizer_ops.alias) vllm serve …
"""

from tensorizer_ops._compat.as_tensorizer import FOLDER

if __name__ == "__main__":
    print(FOLDER)
