"""Prints the folder in which this package is called ``tensorizer``.

PYTHONPATH=$(python -m tensorizer_ops.alias) vllm serve …
"""

from tensorizer_ops._compat.as_tensorizer import FOLDER

if __name__ == "__main__":
    print(FOLDER)
