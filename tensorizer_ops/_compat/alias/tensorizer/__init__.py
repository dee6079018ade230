"""An alias: imports ``tensorizer_ops`` under the name ``tensorizer``."""

from tensorizer_ops._compat.as_tensorizer import become_tensorizer

become_tensorizer()
