"""``tensorizer_ops`` under the name ``tensorizer``."""

from tensorizer_ops._as_tensorizer import become_tensorizer

become_tensorizer()
