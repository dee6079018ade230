"""Converts a model of transformers or a pipeline of diffusers to `.tensors` files and back.

    python examples/hugging_face.py save MODEL PREFIX
    python examples/hugging_face.py load PREFIX FOLDER

MODEL is a folder or a name on the Hugging Face Hub. PREFIX is a folder or s3://BUCKET/FOLDER.

`save` writes `model-config.json`, `model.tensors`, `model.zip` (the generation config and the other
files that `save_pretrained` writes besides weights) and `tokenizer.zip`. For a pipeline it writes
these files for each component, and `model_index.json`. It keeps existing files, unless --force is
given.

`load` fills models on the meta device, so that weights are in memory once, and writes them to
FOLDER in the formats of transformers and diffusers. Weights keep the types that they have in the
file. It also reads the files of `hf_serialization.py`, an example of CoreWeave's tensorizer.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import logging
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from tensorizer_ops import TensorDeserializer, TensorSerializer
from tensorizer_ops.stream_io import open_stream
from tensorizer_ops.utils import get_mem_usage, no_init_or_tensor

MODEL, TOKENIZER, INDEX = "model", "tokenizer", "model_index.json"
WEIGHTS = ("*.safetensors", "*.bin", "*.index.json")
# The components of a pipeline that hf_serialization.py writes, without an index.
STABLE_DIFFUSION = {
    "_class_name": "StableDiffusionPipeline",
    "vae": ["diffusers", "AutoencoderKL"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "scheduler": ["diffusers", "PNDMScheduler"],
    "safety_checker": [None, None],
    "feature_extractor": [None, None],
    "requires_safety_checker": False,
}
# Components whose files have another name.
FILES = {"text_encoder": "encoder"}

logger = logging.getLogger("hugging_face")


class Place:
    """The folder, local or in S3, with the files of one model."""

    def __init__(self, prefix: str, force: bool = False) -> None:
        self._prefix = prefix.rstrip("/")
        self._force = force

    def uri(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def read(self, name: str, size: int = -1) -> bytes | None:
        """Return up to ``size`` bytes of a file, or ``None`` if it does not exist."""
        try:
            with open_stream(self.uri(name), "rb") as stream:
                return bytes(stream.read(size))
        except FileNotFoundError:
            return None

    def read_json(self, name: str) -> dict[str, Any]:
        content = self.read(name)
        if content is None:
            raise FileNotFoundError(self.uri(name))
        fields: dict[str, Any] = json.loads(content)
        return fields

    def write(self, name: str, content: bytes) -> None:
        if self.wants(name):
            with open_stream(self.uri(name), "wb") as stream:
                stream.write(content)

    def wants(self, name: str) -> bool:
        """Whether to write a file: it does not exist, or --force is given."""
        if not self._force and self.read(name, 1):
            logger.warning("keeping the existing %s (--force replaces it)", self.uri(name))
            return False
        logger.info("writing %s", self.uri(name))
        return True

    def write_folder(self, name: str, folder: Path) -> None:
        """Write a folder as a zip file, unless it is empty."""
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        if not files:
            return
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in files:
                archive.write(file, file.relative_to(folder))
        self.write(name, content.getvalue())

    def unzip(self, name: str, folder: str | Path) -> bool:
        content = self.read(name)
        if content is not None:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                archive.extractall(folder)
        return content is not None


@contextmanager
def temporary_folder() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


# One model, or one component of a pipeline


def save_model(place: Place, name: str, model: Any) -> None:
    fields = model.config.to_dict() if hasattr(model.config, "to_dict") else dict(model.config)
    place.write(f"{name}-config.json", json.dumps(fields, indent=2, default=str).encode())
    if place.wants(f"{name}.tensors"):
        # Includes non-persistent buffers: they are small, and need not be computed after a load.
        with TensorSerializer(place.uri(f"{name}.tensors")) as serializer:
            serializer.write_module(model)
    if isinstance(model, transformers.PreTrainedModel):
        with temporary_folder() as folder:
            model.save_pretrained(folder, state_dict={})
            for pattern in ("config.json", *WEIGHTS):
                for file in folder.glob(pattern):
                    file.unlink()
            place.write_folder(f"{name}.zip", folder)


def load_model(
    place: Place, name: str, make: Callable[[dict[str, Any]], Any], device: str = "cpu"
) -> Any:
    with no_init_or_tensor():
        model = make(place.read_json(f"{name}-config.json"))
    with TensorDeserializer(place.uri(f"{name}.tensors"), device=device) as deserializer:
        deserializer.load_into_module(model)
    tensors = {**model.state_dict(), **dict(model.named_buffers())}
    if missing := [tensor for tensor, value in tensors.items() if value.is_meta]:
        raise SystemExit(f"{place.uri(name)}.tensors does not contain {', '.join(missing)}")
    with temporary_folder() as folder:
        if place.unzip(f"{name}.zip", folder) and (folder / "generation_config.json").exists():
            model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    logger.info("loaded %s.tensors, %s", place.uri(name), get_mem_usage())
    return model.to(device).eval()


def language_model(fields: dict[str, Any]) -> Any:
    config = transformers.AutoConfig.for_model(**fields)
    if not config.architectures:
        return transformers.AutoModelForCausalLM.from_config(config)
    return getattr(transformers, config.architectures[0])(config)


def class_of(library: str, name: str) -> Any:
    """Find a class by its entry in a pipeline's index: a library or a pipeline, and a name."""
    known = library in ("diffusers", "transformers")
    return getattr(
        importlib.import_module(library if known else f"diffusers.pipelines.{library}"), name
    )


def part_of_pipeline(kind: Any) -> Callable[[dict[str, Any]], Any]:
    if issubclass(kind, transformers.PreTrainedModel):
        return lambda fields: kind(kind.config_class.from_dict(fields))
    return kind.from_config


# Whole models and pipelines


def load_all(place: Place, device: str = "cpu") -> tuple[Any, Any]:
    """Return a model and its tokenizer, or a pipeline and ``None``."""
    if place.read(f"{MODEL}-config.json", 1) is None:
        return load_pipeline(place, device), None
    tokenizer = None
    with temporary_folder() as folder:
        if place.unzip(f"{TOKENIZER}.zip", folder):
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return load_model(place, MODEL, language_model, device), tokenizer


def load_pipeline(place: Place, device: str) -> Any:
    index = place.read_json(INDEX) if place.read(INDEX, 1) else dict(STABLE_DIFFUSION)
    parts: dict[str, Any] = {}
    for name, described in index.items():
        if name.startswith("_"):
            continue
        parts[name] = described
        if isinstance(described, list):
            parts[name] = (
                None if described[0] is None else load_part(place, name, described, device)
            )
    return class_of("diffusers", index["_class_name"])(**parts)


def load_part(place: Place, name: str, described: list[str], device: str) -> Any:
    kind = class_of(*described)
    file = FILES.get(name, name)
    if place.read(f"{file}-config.json", 1) is not None:
        return load_model(place, file, part_of_pipeline(kind), device)
    with temporary_folder() as folder:
        if not place.unzip(f"{file}.zip", folder):
            raise FileNotFoundError(place.uri(f"{file}.zip"))
        return kind.from_pretrained(folder)


def save_language_model(source: str, place: Place) -> tuple[Any, Any]:
    config = transformers.AutoConfig.from_pretrained(source)
    kind = transformers.AutoModelForCausalLM
    if config.architectures:
        kind = getattr(transformers, config.architectures[0])
    model = kind.from_pretrained(source, torch_dtype="auto")
    save_model(place, MODEL, model)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError):
        return model, None  # the model has no tokenizer
    with temporary_folder() as folder:
        tokenizer.save_pretrained(folder)
        place.write_folder(f"{TOKENIZER}.zip", folder)
    return model, tokenizer


def save_pipeline(source: str, place: Place) -> Any:
    import diffusers

    pipeline = diffusers.DiffusionPipeline.from_pretrained(source, torch_dtype="auto")
    for name, part in pipeline.components.items():
        file = FILES.get(name, name)
        if isinstance(part, torch.nn.Module):
            save_model(place, file, part)
        elif hasattr(part, "save_pretrained"):
            with temporary_folder() as folder:
                part.save_pretrained(folder)
                place.write_folder(f"{file}.zip", folder)
    index = {"_class_name": type(pipeline).__name__, **pipeline.config}
    place.write(INDEX, json.dumps(index, indent=2).encode())
    return pipeline


def modules_of(model: Any) -> dict[str, Any]:
    parts = getattr(model, "components", {MODEL: model})
    return {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}


def validate(place: Place, saved: Any, tokenizer: Any) -> None:
    """Load the saved files and compare them with what was saved."""
    again, tokenizer_again = load_all(place)
    loaded = modules_of(again)
    for name, module in modules_of(saved).items():
        here, there = module.state_dict(), loaded[name].state_dict()
        if here.keys() != there.keys():
            raise SystemExit(f"{name}: the names of the loaded tensors differ from the saved ones")
        for tensor, value in here.items():
            if value.dtype != there[tensor].dtype or not torch.equal(value, there[tensor]):
                raise SystemExit(f"{name}: {tensor} differs from the saved tensor")
    if tokenizer is not None and tokenizer.get_vocab() != tokenizer_again.get_vocab():
        raise SystemExit("the loaded tokenizer differs from the saved one")
    logger.info("validated: the loaded tensors equal the saved ones")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    does = parser.add_subparsers(dest="do", required=True)
    saving = does.add_parser("save")
    saving.add_argument("model")
    saving.add_argument("prefix")
    saving.add_argument(
        "--model-type",
        choices=["transformers", "diffusers"],
        help="the library of MODEL; by default, decided by the files in its folder",
    )
    saving.add_argument("--validate", action="store_true", help="load the saved files, and compare")
    saving.add_argument("--force", action="store_true", help="replace existing files")
    loading = does.add_parser("load")
    loading.add_argument("prefix")
    loading.add_argument("folder")
    for command in (saving, loading):
        command.add_argument("-q", "--quiet", action="count", default=0, help="log less")
        command.add_argument("-v", "--verbose", action="count", default=0, help="log more")
    arguments = parser.parse_args()
    level = logging.INFO + 10 * (arguments.quiet - arguments.verbose)
    logging.basicConfig(level=level, format="%(levelname)s %(message)s")
    if level > logging.INFO:
        transformers.utils.logging.disable_progress_bar()

    if arguments.do == "save":
        place = Place(arguments.prefix, arguments.force)
        kind = arguments.model_type
        if kind == "diffusers" or (kind is None and (Path(arguments.model) / INDEX).exists()):
            saved, tokenizer = save_pipeline(arguments.model, place), None
        else:
            saved, tokenizer = save_language_model(arguments.model, place)
        if arguments.validate:
            validate(place, saved, tokenizer)
        return
    place = Place(arguments.prefix)
    model, tokenizer = load_all(place)
    model.save_pretrained(arguments.folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(arguments.folder)
    place.unzip(f"{MODEL}.zip", arguments.folder)


if __name__ == "__main__":
    main()
