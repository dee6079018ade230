"""Parts of a matrix, as loaders of weights take them, by operations that read nothing."""

from __future__ import annotations

from collections.abc import Callable

import torch

ROWS, COLUMNS = 64, 48

VIEWS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x.narrow(0, 16, 8),
    lambda x: x.narrow(1, 3, 7),
    lambda x: x.narrow(1, 3, 0),
    lambda x: x[-1],
    lambda x: x[2, 3],
    lambda x: x[..., ::3][4:],
    lambda x: x[:, 5:9].select(0, 2),
    lambda x: x.chunk(3, 1)[2],
    lambda x: x.split([10, 20, 34])[1],
    lambda x: x.tensor_split(5)[4],
    lambda x: list(x)[3],
    lambda x: x.detach().data[1:],
]
