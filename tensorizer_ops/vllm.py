"""What vLLM knows as ``tensorizer_ops``: a load format, an engine, and what workers can do.

See ``docs/guides/vllm.md``.

vLLM calls :func:`register` in each of its processes. It finds the function as a plugin, by the
metadata of the installed package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any
from weakref import WeakKeyDictionary

import torch

from tensorizer_ops import errors
from tensorizer_ops._front.serving import LOAD_FORMAT, Settings, weights
from tensorizer_ops._front.tied import Tied

__all__ = ["WorkerExtension", "register"]


class WorkerExtension:
    """What vLLM's workers get by ``--worker-extension-cls tensorizer_ops.vllm.WorkerExtension``."""

    def attest(self, uri: str, options: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Do what :func:`tensorizer_ops.attest` does with the weights of this rank.

        Returns:
            The attributes of an :class:`tensorizer_ops.Attestation`.
        """
        from tensorizer_ops._vllm.attest import attest_model

        model = self.get_model()  # type: ignore[attr-defined]
        engine = self.parallel_config.data_parallel_index  # type: ignore[attr-defined]
        found = attest_model(model, uri, {} if options is None else options, engine)
        return {"equal": found.equal, **asdict(found)}


def register() -> None:
    """Make ``--load-format tensorizer_ops``, and the engine of that name, known to vLLM."""
    from vllm.config import LoadConfig, ModelConfig, VllmConfig
    from vllm.distributed import get_tp_group
    from vllm.model_executor import model_loader as vllm

    # The root digests of the signed folders that the weights of each model came from.
    roots: WeakKeyDictionary[torch.nn.Module, dict[str, str]] = WeakKeyDictionary()

    class TensorizerOpsLoader(vllm.BaseModelLoader):  # type: ignore[misc]
        """Loads the weights of a model with tensorizer_ops."""

        def __init__(self, load_config: LoadConfig) -> None:
            super().__init__(load_config)
            self._settings = Settings(load_config.model_loader_extra_config)
            self._drafts = False

        def load_model(self, vllm_config: VllmConfig, **given: Any) -> torch.nn.Module:
            self._drafts = vllm_config.speculative_config is not None
            model: torch.nn.Module = super().load_model(vllm_config=vllm_config, **given)
            return model

        def download_model(self, model_config: ModelConfig) -> None:
            """Do nothing: weights are read from where they are."""

        def get_all_weights(
            self, model_config: ModelConfig, model: torch.nn.Module
        ) -> Iterator[tuple[str, torch.Tensor]]:
            # Only the ranks of the last stage of a pipeline load what drafts tokens.
            is_draft = model_config.runner_type == "draft"
            group = get_tp_group().cpu_group if is_draft else None
            place = model_config.model_weights or model_config.model
            # vLLM makes another loader to load the weights of a model again.
            drafts = self._drafts and not is_draft
            known = roots.setdefault(model, {})
            found = weights(self._settings, place, group, known, drafts)
            return Tied(model).refusing(found)

        def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
            if getattr(model, "secondary_weights", None):
                raise errors.InvalidArgument(
                    f"{type(model).__name__} takes weights from two places, which the load format "
                    f"{LOAD_FORMAT} cannot do: use another load format",
                )
            found = self.get_all_weights(model_config, model)
            loaded: set[str] | None = model.load_weights(found)  # type: ignore[operator]
            if loaded is not None and model_config.quantization is None:
                # As for vLLM's own formats: raises for what the files do not have.
                vllm.DefaultModelLoader(LoadConfig()).track_weights_loading(model, loaded)

    vllm.register_model_loader(LOAD_FORMAT)(TensorizerOpsLoader)
    _register_engine()


def _register_engine() -> None:
    try:
        from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    except ImportError:  # an older vLLM
        return
    place = ("tensorizer_ops._vllm.engine", "Engine")
    WeightTransferEngineFactory.register_engine(LOAD_FORMAT, *place)
