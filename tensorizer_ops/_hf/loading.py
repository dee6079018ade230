"""Making a model of a config and weights, by the library that it is of."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.folder import Folder
from tensorizer_ops._base.private import PrivateFolder
from tensorizer_ops._base.progress import Progress
from tensorizer_ops._base.quoting import in_one_line
from tensorizer_ops._front.reader import Reader
from tensorizer_ops._front.serving import signed_contents
from tensorizer_ops._front.state_dict import AllAtOnce, one_by_one
from tensorizer_ops._hf import configs, files, models
from tensorizer_ops._hf.files import CONFIG
from tensorizer_ops._hf.isolation import isolated

# What transformers raises for a config that it cannot use, but not only for that.
_OF_CONFIGS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)


class Asked(NamedTuple):
    """What a caller of ``from_pretrained()`` asks for."""

    model_class: type[Any] | None
    weights: str | None
    device: torch.device | None  # None: the device_map says it
    device_map: Any
    dtype: torch.dtype | str
    how: dict[str, Any]  # to read the weights
    progress: Progress | None
    kwargs: Mapping[str, Any]  # for transformers


def loaded(folder: Folder, asked: Asked) -> tuple[Any, list[str]]:
    """Return a model, and texts that differ for others that are signed."""
    fields = files.read_object(folder, CONFIG)
    # All of a model is wanted, but not at once.
    first = {"hash_first": "true"} if folder.policy else {}
    name = asked.weights or files.found_weights(folder)
    opened = Reader(folder.uri(name), options=folder.loads | first, **asked.how)
    is_of_diffusers = asked.model_class is not None and hasattr(asked.model_class, "load_config")
    with opened as reader, isolated(folder) as outside:
        configs.refuse_counts(folder, fields, reader)
        if is_of_diffusers:
            return _of_diffusers(folder, fields, reader, outside, asked), []
        made = _of_transformers(folder, fields, reader, outside, asked)
        return made, [] if folder.policy is None else signed_contents([reader])


def _of_diffusers(
    folder: Folder, fields: Any, reader: Reader, outside: Callable[..., Any], asked: Asked
) -> Any:
    assert asked.model_class is not None
    if asked.device is None or asked.kwargs:
        given = [*asked.kwargs, *(["device_map"] if asked.device is None else [])]
        raise errors.InvalidArgument(f"models of diffusers take no {', '.join(given)}")
    model = configs.made_of(folder, partial(asked.model_class.from_config, fields))
    if not models.is_model(model):
        raise errors.InvalidFormat(
            f"{CONFIG} in {folder.label} makes a {type(model).__name__}, which is no model"
        )
    return outside(_filled, model, reader, asked.device, asked.dtype, asked.progress)


def _filled(
    model: Any,
    reader: Reader,
    device: torch.device,
    dtype: torch.dtype | str,
    progress: Progress | None,
) -> Any:
    """Load a model of diffusers without weights, whose own from_pretrained() takes no tensors."""
    wanted = None if dtype == "auto" else configs.dtype_of(dtype, None, reader)
    for name, tensor in model.state_dict(keep_vars=True).items():
        if tensor.is_floating_point() and name in reader:
            stored = reader.dtype(name)
            kept = wanted is not None and models.stays_in_float32(model, name, wanted)
            tensor.data = tensor.data.to(torch.float32 if kept else wanted or stored)
    reader.load_into(model, device=device, cast=True, progress=progress)
    return model.to(device).eval()


def _of_transformers(
    folder: Folder, fields: Any, reader: Reader, outside: Callable[..., Any], asked: Asked
) -> Any:
    kwargs = {**asked.kwargs}
    offload = kwargs.get("offload_folder")
    if offload is not None and folder.policy is not None:
        # Weights are read from there in every call of the model.
        offload = PrivateFolder(Path(offload), is_signed=True)
        kwargs["offload_folder"] = str(offload.path)
    given_generation = kwargs.pop("generation_config", None)
    config, generation_config = configs.configs_of(folder, fields, asked.model_class, kwargs)
    wanted = configs.dtype_of(asked.dtype, config, reader)
    if (
        asked.how["verify"] == "none"
        and not asked.progress
        and configs.takes_each(wanted, config, reader, asked.device, kwargs)
    ):
        state: Mapping[str, Any] = one_by_one(reader)
    else:
        state = AllAtOnce(reader, lambda: outside(reader.load, progress=asked.progress))
    kind = configs.class_of(config, asked.model_class)
    if hasattr(kind, "decide") and kwargs.get("decision_config") is None:
        # Models that decide have more settings, which transformers does not look for by None.
        from transformers.decision import DecisionConfig

        kwargs["decision_config"] = DecisionConfig.from_pretrained("None")
    # Transformers makes buffers on the default device, and copies them.
    on_meta = torch.get_default_device().type == "meta" and str(asked.device) != "meta"
    try:
        with torch.device("cpu") if on_meta else contextlib.nullcontext():
            made = kind.from_pretrained(
                None,
                config=config,
                state_dict=state,
                dtype=wanted,
                device_map=asked.device_map,
                trust_remote_code=False,
                **kwargs,
            )
    except (errors.Error, MemoryError):
        raise
    except Exception as error:
        # The config may be at fault, if not the weights and the arguments.
        configs.made_of(folder, partial(kind, config))
        is_asked = bool(kwargs or asked.progress) or asked.dtype != "auto" or asked.device is None
        if (why := _fault_of_files(folder, error, asked.device, is_asked)) is not None:
            raise errors.InvalidFormat(why) from None
        raise
    model = made[0] if isinstance(made, tuple) else made
    if isinstance(offload, PrivateFolder):
        offload.check()
    _name(model, folder)
    if generation_config is not None and model.can_generate():
        model.generation_config = given_generation or generation_config
    return made


def _name(model: Any, folder: Folder) -> None:
    """Say where a model is from. Transformers reads more files there later, and compares nothing.

    Until now, the name is ``None``, also in its parts.
    """
    import transformers

    parts = [part for part in model.modules() if isinstance(part, transformers.PreTrainedModel)]
    for part in parts:
        if folder.policy is not None or part.config is model.config:
            part.name_or_path = part.config.name_or_path = files.name_of_loaded(folder)


def _fault_of_files(
    folder: Folder, error: Exception, device: torch.device | None, is_asked: bool
) -> str | None:
    """Return what is wrong with the files of a model, if an error of transformers says so.

    It may as well say so of what the caller has asked for.
    """
    if "ignore_mismatched_sizes" in str(error) or "size mismatch" in str(error):
        return f"tensors in {folder.label} have other shapes than {CONFIG} there gives them"
    is_on_cpu = str(device) == "cpu"
    # So says torch of a device that it was not built for.
    is_of_device = isinstance(error, AssertionError) and not is_on_cpu
    if is_asked or is_of_device:
        return None
    # Raised for all that fails in there, such as a device without memory.
    if is_on_cpu and "during automatic conversion" in str(error):
        return (
            f"transformers cannot make the tensors of {CONFIG} in {folder.label} of those in its "
            "weights, such as experts: its log says why"
        )
    if isinstance(error, _OF_CONFIGS):
        return f"transformers does not take the config of {folder.label}: {in_one_line(error)}"
    return None
