"""What the configs of a folder, and the caller, ask for: a class, a type, devices."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import kind_of
from tensorizer_ops._base.folder import Folder
from tensorizer_ops._base.no_init import without_memory
from tensorizer_ops._base.private import temporary_folder
from tensorizer_ops._base.quoting import in_one_line, quoted
from tensorizer_ops._front.reader import Reader
from tensorizer_ops._hf.files import CONFIG, GENERATION_CONFIG, read_object, texts
from tensorizer_ops._hf.isolation import may_open

# The ends of the names in configs of numbers of layers and the like.
_COUNTS = ("blocks", "depth", "depths", "experts", "layers", "layers_per_block", "n_layer")
# As many are made in a few seconds.
_FEW_MODULES = 1000
_MOST_LABELS = 1_000_000
_SEVERAL_DEVICES = ("auto", "balanced", "balanced_low_0", "sequential")


def devices_of(
    device: torch.device | str | int | None, device_map: Any
) -> tuple[torch.device | None, Any]:
    """Return the device of all weights, or ``None`` if they are divided, and the device map."""
    if device is not None and device_map is not None:
        raise errors.InvalidArgument("device and device_map are both given: give one of them")
    given = device_map if device is None else device
    if given is None:
        return torch.get_default_device(), None
    if isinstance(given, str) and given in _SEVERAL_DEVICES:
        return None, given
    if isinstance(given, Mapping):
        devices = set(map(str, given.values()))
        if len(devices) != 1 or devices == {"disk"}:
            return None, given
        given = next(iter(given.values()))
    try:
        where = torch.device(given)
    except (RuntimeError, TypeError):
        shown = repr(given) if isinstance(given, str) else kind_of(given)
        raise errors.InvalidArgument(f"device_map is {shown}, and must be of devices") from None
    if where.type == "cuda" and where.index is None:
        current = torch.cuda.current_device() if torch.cuda.is_available() else 0
        where = torch.device("cuda", int(os.environ.get("LOCAL_RANK", current)))
    # A device map takes accelerate, which models on the CPU do without.
    plain = where == torch.get_default_device() == torch.device("cpu")
    return where, None if plain else {"": where}


def configs_of(
    folder: Folder, fields: dict[str, Any], model_class: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """Return the config and the generation config. Takes the values of the config from kwargs."""
    import transformers

    if not (
        model_class is None
        or hasattr(model_class, "_model_mapping")
        or (isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel))
    ):
        raise TypeError(
            f"model_class is {kind_of(model_class)}, and must be the class of a model of "
            "transformers or diffusers"
        )
    for kernel in _kernels(fields):
        if "/" in kernel:  # and downloaded it would be
            raise errors.InvalidFormat(
                f"{CONFIG} in {folder.label} asks for the kernel {quoted(kernel)}, which is code: "
                "call set_attn_implementation() of the loaded model if you want it"
            )
    _refuse_other_models(folder, fields)
    apart = {name: kwargs.pop(name) for name in ("quantization_config",) if name in kwargs}
    kind = getattr(model_class, "config_class", None) or transformers.AutoConfig
    # A folder with nothing else in it: transformers reads no other file, on no other machine.
    with temporary_folder(is_signed=folder.policy is not None) as own:
        made = str(own.path)
        may_open(made)
        Path(made, CONFIG).write_text(json.dumps(fields))
        try:
            config, unused = kind.from_pretrained(
                made,
                return_unused_kwargs=True,
                trust_remote_code=False,
                local_files_only=True,
                **kwargs,
            )
        except Exception as error:
            raise errors.InvalidFormat(
                f"transformers does not take the config of {folder.label}: "
                + in_one_line(error, str(error).replace(made, folder.name))
            ) from None
        own.check()
    for name in getattr(type(config), "extra_files", ()):
        if folder.has(name):
            raise errors.InvalidFormat(
                f"{folder.label} has weights in {name!r} as well, which only transformers itself "
                "takes: load it with that, and save it again"
            )
    unused.pop("trust_remote_code", None)
    kwargs.clear()
    kwargs |= unused | apart
    return config, _generation_config(folder, fields)


def refuse_counts(folder: Folder, fields: dict[str, Any], reader: Reader) -> None:
    """Raise for numbers of layers and labels that would all be made, which may have no end."""
    for each in _objects(fields):
        for name, value in each.items():
            if name == "num_labels":
                most = _MOST_LABELS
            elif name.endswith(_COUNTS):
                most = max(_FEW_MODULES, len(reader))
            else:
                continue
            counts = value if isinstance(value, list) else [value]
            for count in counts:
                if not isinstance(count, int | float) or count <= most:
                    continue
                raise errors.InvalidFormat(
                    f"{CONFIG} in {folder.label} has {name} {quoted(count)}, which is more than "
                    f"{most}: the file has {len(reader)} tensors"
                )


def _objects(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a config and those in it."""
    left: list[Any] = [fields]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            yield value
            left += value.values()
        elif isinstance(value, list):
            left += value


def _kernels(fields: dict[str, Any]) -> Iterator[str]:
    """Yield what a config, and those in it, name as implementations, of attention or of experts."""
    for each in _objects(fields):
        for name, value in each.items():
            if "_implementation" in name:
                yield from (text for _, text in texts(value))


def _refuse_other_models(folder: Folder, fields: dict[str, Any]) -> None:
    """Raise for a config that changes other models, or for which the Hub would give another one.

    The names of timm's models are no names on the Hub. Their weights would come from there.
    """
    for each in _objects(fields):
        if each.get("fusion_config"):
            raise errors.InvalidFormat(
                f"{CONFIG} in {folder.label} has a fusion_config, which would change the classes "
                "of all later models of this process: remove it"
            )
        backbone = each.get("backbone")
        of_timm = each.get("use_timm_backbone") is True or each.get("model_type") == "timm_backbone"
        if isinstance(backbone, str) and not (of_timm and re.fullmatch(r"[\w.-]+", backbone)):
            raise errors.InvalidFormat(
                f"{CONFIG} in {folder.label} names {quoted(backbone)} as its backbone, which is "
                "another model: its config must have a backbone_config"
            )
        if each.get("use_pretrained_backbone"):
            each["use_pretrained_backbone"] = False


def _generation_config(folder: Folder, fields: dict[str, Any]) -> Any:
    """Return the generation config; one of the same values in the config if there is no file."""
    import transformers

    kind: Any = transformers.GenerationConfig
    if folder.has(GENERATION_CONFIG):
        given = read_object(folder, GENERATION_CONFIG)
        try:
            return kind.from_dict(given)
        except Exception as error:
            raise errors.InvalidFormat(
                f"transformers does not take {GENERATION_CONFIG} in {folder.label}: "
                + in_one_line(error)
            ) from None
    known = kind().to_dict()
    values = {name: value for name, value in fields.items() if name in known}
    return kind.from_dict(values)


def class_of(config: Any, model_class: type[Any] | None) -> Any:
    """Return the class of transformers for a config.

    Of an Auto class, that is what it stands for: it takes no state dict itself.
    """
    import transformers

    given = getattr(config, "architectures", None)
    named = [each for each in given if type(each) is str] if isinstance(given, list) else []
    if model_class is None:
        for name in named:
            found = getattr(transformers, name, None)
            if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
                return found
        auto: Any = transformers.AutoModel
        if type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
            auto = transformers.AutoModelForCausalLM
    elif not hasattr(model_class, "_model_mapping"):
        return model_class
    else:
        auto = model_class
    try:
        known = auto._model_mapping[type(config)]
    except KeyError:
        raise errors.InvalidArgument(
            f"{auto.__name__} has no model for a {type(config).__name__}"
        ) from None
    classes = known if isinstance(known, tuple) else (known,)
    return next((each for each in classes if each.__name__ in named), classes[0])


def made_of(folder: Folder, make: Callable[[], Any]) -> Any:
    """Return the model that is made of the config, without weights; raise if it cannot be made."""
    try:
        with without_memory():
            return make()
    except MemoryError:
        raise
    except Exception as error:
        raise errors.InvalidFormat(
            f"no model can be made of {CONFIG} in {folder.label}: {in_one_line(error)}"
        ) from None


def dtype_of(dtype: torch.dtype | str, config: Any, reader: Reader) -> torch.dtype:
    """Return the type to give the weights: the one asked for, in the config, or in the file."""
    what = "dtype"
    if dtype == "auto":
        what = f"dtype in {CONFIG}"
        dtype = getattr(config, "dtype", None) or _stored_dtype(reader)
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype, dtype)
    if not isinstance(dtype, torch.dtype):
        raise errors.InvalidArgument(f"{what} is {dtype!r}, and must be 'auto' or a torch.dtype")
    return dtype


def _stored_dtype(reader: Reader) -> torch.dtype:
    """Return the type of the first floating-point tensor."""
    types = (reader.dtype(name) for name in reader)
    return next((t for t in types if t.is_floating_point), torch.get_default_dtype())


def takes_each(
    dtype: torch.dtype,
    config: Any,
    reader: Reader,
    device: torch.device | None,
    kwargs: Mapping[str, Any],
) -> bool:
    """Return whether transformers changes all tensors that it is given, and takes them one by one.

    Then loading all of them at once would take the memory for the file as well.
    """
    import transformers

    if int(transformers.__version__.partition(".")[0]) < 5:
        return False
    quantized = kwargs.get("quantization_config") or getattr(config, "quantization_config", None)
    cast = all(reader.dtype(name) != dtype for name in reader)
    return device is None or are_parts(kwargs) or bool(quantized) or cast


def are_parts(kwargs: Mapping[str, Any]) -> bool:
    """Return whether each rank takes a part of the model."""
    names = ("device_mesh", "distributed_config", "tp_plan", "tp_size")
    return any(kwargs.get(name) is not None for name in names)
