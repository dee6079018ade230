"""The weight transfer engine ``tensorizer_ops`` of vLLM: see ``docs/guides/vllm.md``.

vLLM makes one in each of its workers, on the first use of the name.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.weight_transfer import WeightTransferEngine
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.logger import init_logger
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
    layerwise,
)
from vllm.platforms import current_platform

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import wrong
from tensorizer_ops._front.serving import LOAD_FORMAT, Settings, weights
from tensorizer_ops._front.tied import Tied
from tensorizer_ops._versions.checksums import checksums
from tensorizer_ops._versions.elements import NotInPlace, changed_weights
from tensorizer_ops._versions.in_place import InPlace
from tensorizer_ops._versions.node import Node
from tensorizer_ops._vllm.layers import hidden_copy, is_made_over, pack_again
from tensorizer_ops._vllm.ranks import all_succeed

# vLLM shows the records of its own loggers.
logger = init_logger("vllm.tensorizer_ops")


@dataclass
class InitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """What the client gives first: where the versions are, and where the node keeps them."""

    uri: str
    folder: str = "/dev/shm"
    options: dict[str, str | None] = field(default_factory=dict)
    interval: float = 1.0


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Which version the server gets, and for how many seconds it is waited for."""

    version: int
    patience: float = 600.0

    def __post_init__(self) -> None:
        if not isinstance(self.version, int):
            raise wrong("version", self.version, "int")


def _has_plain_weights(model: torch.nn.Module) -> bool:
    """Return whether the weights of a model are those of files, and nothing is made of them."""
    return not any(hidden_copy(module) or is_made_over(module) for module in model.modules())


class Engine(WeightTransferEngine[InitInfo, UpdateInfo]):  # type: ignore[misc]
    """Takes the weights of a version over from the file of the node."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False  # the version is that of one model

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._node: Node | None = None
        self._between: list[int | None] = []  # the versions that a failed update has mixed
        self._version: int | None = None  # that the weights are; None at first
        self._file: Path | None = None  # of that version
        # Of the weights of that version, if they are as in files. Others may load weights as well.
        self._checksums: list[int] | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        def begin() -> None:
            self.shutdown()
            options = self._with_trust(init_info.options)
            self._node = Node(init_info.uri, init_info.folder, options, init_info.interval)

        all_succeed(begin)

    def _with_trust(self, options: Mapping[str, str | None]) -> dict[str, Any]:
        """Let whom the load format trusts sign the versions, unless ``trust`` is given or null."""
        given = {**options}
        load = self.vllm_config.load_config
        if "trust" not in given and load.load_format == LOAD_FORMAT:
            given["trust"] = Settings(load.model_loader_extra_config).options.get("trust")
        if given.get("trust") is None:
            given.pop("trust", None)
        return given

    def start_weight_update(self) -> None:
        pass  # receive_weights() does it all, when the version is here

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        version = update_info.version
        paths: list[str] = []

        def find() -> str:
            if self._node is None:
                raise errors.InvalidArgument(
                    "the place of the versions is not known: call init_weight_transfer_engine first"
                )
            path = self._node.file(version, update_info.patience)
            paths.append(str(path))
            return path.name  # which has the digest

        if not all_succeed(find, f"ranks have different models as version {version}"):
            return
        since = time.monotonic()
        how: list[str] = []
        done = False
        try:
            done = all_succeed(lambda: how.append(self._take_over(version, paths[0])))
        finally:
            if not done:
                self._go_back(version)
        if done:
            self._version, self._file, self._between = version, Path(paths[0]), []
            seconds = time.monotonic() - since
            logger.info("version %d was taken over by %s in %.3f s", version, how[0], seconds)

    def _take_over(self, version: int, path: str) -> str:
        if self._replace_elements(version, path):
            return "elements"
        self._load_layers(path)
        return "layers"

    def _load_layers(self, path: str) -> None:
        self._checksums = None
        # Layers to which adapters can be added have their own weights one level below.
        names = (name.replace(".base_layer.", ".") for name, _ in self.model.named_parameters())
        wanted = {*names}
        assert self._node is not None
        self._node.check()
        Tied(self.model).refuse(path)
        if current_platform.is_cpu():  # elsewhere, graphs of the device may have the kernels
            for module in self.model.modules():
                pack_again(module)
        initialize_layerwise_reload(self.model)
        # The hashes of the file were compared when it was made.
        loaded = self.model.load_weights(weights(Settings({"uri": path}), path))
        if loaded is not None and (missing := sorted(wanted - loaded)):
            raise errors.InvalidArgument(f"{path!r} lacks the tensor {missing[0]!r}")
        finalize_layerwise_reload(self.model, self.model_config)
        if _has_plain_weights(self.model):
            self._checksums = checksums(self.model)
        self._node.check()  # the files were opened by name

    def _replace_elements(self, version: int, path: str) -> bool:
        """Put what differs from the last version in place, if the weights are that version."""
        assert self._node is not None
        if self._file is None or self._checksums is None:
            return False
        changes = self._node.changes(self._file, Path(path))
        if not changes.exists():
            return False
        if checksums(self.model) != self._checksums:
            logger.warning(
                "all of version %d is loaded: the weights are no longer those of version %s",
                *(version, self._version),
            )
            return False
        try:
            with torch.no_grad(), InPlace(self.model):
                self.model.load_weights(changed_weights(changes, Path(path)))
        except (NotInPlace, errors.NotFound) as error:  # the next version may remove the changes
            logger.warning("all of version %d is loaded: %s", version, str(error))
            return False
        self._checksums = checksums(self.model)
        self._node.check()
        return True

    def _go_back(self, failed: int) -> None:
        """Load the version before again. If that fails too, weights of several versions stay."""
        self._put_back()
        if self._file is not None and not self._between and self._is_loaded_again(self._file):
            logger.error("the weights are those of version %s again", self._version)
            return
        self._between = sorted({*self._between, self._version, failed}, key=str)
        logger.error(
            "the weights are between the versions %s: update to one of them",
            " and ".join(map(str, self._between)),
        )

    def _is_loaded_again(self, file: Path) -> bool:
        done = False
        with suppress(Exception):  # the first error is what the caller gets
            done = all_succeed(lambda: self._load_layers(str(file)))
        if not done:
            self._put_back()
        return done

    def _put_back(self) -> None:
        """Give modules that did not get all of their weights the ones that they had."""
        for module in self.model.modules():
            info = layerwise.get_layerwise_info(module)
            if info.can_load():
                layerwise._place_kernel_tensors(module, info)
                info.reset()
        layerwise.LOADING_LAYERS.clear()
        self._checksums = None

    def finish_weight_update(self) -> None:
        pass  # receive_weights() has done it all

    def shutdown(self) -> None:
        if self._node is not None:
            self._node.close()
            self._node = None
