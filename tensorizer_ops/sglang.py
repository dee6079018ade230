"""The load format ``tensorizer_ops`` of SGLang: see ``docs/guides/sglang.md``.

SGLang calls :func:`register` in each of its processes. It finds the function as a plugin, by the
metadata of the installed package.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tensorizer_ops import errors
from tensorizer_ops._front.serving import LOAD_FORMAT, Settings, weights

__all__ = ["register"]


def register() -> None:
    """Make ``--load-format tensorizer_ops`` known to SGLang. Calling it again has no effect."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.server_args import LOAD_FORMAT_CHOICES, add_load_format_choices

    if LOAD_FORMAT in LOAD_FORMAT_CHOICES:
        return
    add_load_format_choices([LOAD_FORMAT])
    target = "sglang.srt.configs.load_config.LoadConfig.__post_init__"
    HookRegistry.register(target, _name_to_class, HookType.AROUND)


def _name_to_class(check: Callable[[Any], None], config: Any) -> None:
    """Replace our name in a ``LoadConfig`` by our class, which SGLang takes as well."""
    if config.load_format == LOAD_FORMAT:
        config.load_format = _loader()
    check(config)


@functools.cache
def _loader() -> type:
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.model_loader.loader import BaseModelLoader, DefaultModelLoader

    class TensorizerOpsLoader(DefaultModelLoader):  # type: ignore[misc]
        """Loads the weights of a model with tensorizer_ops."""

        def __init__(self, load_config: LoadConfig) -> None:
            BaseModelLoader.__init__(self, load_config)  # the other one refuses our settings
            self._settings = Settings(load_config.model_loader_extra_config or {})

        def download_model(self, model_config: ModelConfig) -> None:
            """Do nothing: weights are read from where they are."""

        def _get_weights_iterator(
            self, source: DefaultModelLoader.Source, **prefetch: object
        ) -> Iterator[tuple[str, torch.Tensor]]:
            if source.model_config is None:
                raise errors.InvalidArgument(
                    f"the model takes weights from {source.model_or_path!r} as well, which the "
                    f"load format {LOAD_FORMAT} cannot do: use another load format",
                )
            tower = getattr(source.model_config.hf_config, "mm_vision_tower", None)
            if tower is not None and "trust" in self._settings.options:
                raise errors.InvalidArgument(
                    f"the model takes its vision tower from {tower!r}, which is not compared with "
                    "what was signed: SGLang cannot load it with the option 'trust'",
                )
            found = weights(self._settings, source.model_or_path, may_be_led=True)
            layer = self.load_config.draft_model_idx
            if layer is not None:
                found = self._filter_mtp_weights(found, "", layer)
            return ((source.prefix + name, tensor) for name, tensor in found)

    return TensorizerOpsLoader
