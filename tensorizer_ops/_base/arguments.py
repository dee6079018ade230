"""Checks the arguments of functions, so that a wrong one is an error of one sentence.

Torch and the bindings would print every argument of the call, tensors and secrets included.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import operator
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable

from tensorizer_ops import errors

_Parameters = typing.ParamSpec("_Parameters")
_Result = typing.TypeVar("_Result")

_FILE_OBJECT = "a binary file object"

# The types whose name in messages is another than in annotations.
_WORDS = {
    "PathLike": "os.PathLike",
    "dtype": "torch.dtype",
    "device": "torch.device",
    "Module": "a torch.nn.Module",
    "ScriptModule": "a scripted module (torch.jit.script)",
    "Mapping": "a dict",
    "dict": "a dict",
    "MutableMapping": "a dict of tensors",
    "Callable": "a function",
    "type": "a class",
    "Readable": _FILE_OBJECT,
    "Writable": _FILE_OBJECT,
    "NoneType": "None",
}

# What other libraries call arguments of the functions here: several names here may be meant.
_OTHER_NAMES = {
    "map_location": ("device",),
    "device_map": ("device",),
    "prefix": ("names",),
    "keys": ("names",),
    "tensors": ("names",),
    "tensor_names": ("names",),
    "filter": ("names",),
    "filter_func": ("names",),
    "pattern": ("names",),
    "path": ("uri", "source", "target", "filename"),
    "file": ("uri", "source", "target", "filename"),
    "file_obj": ("uri", "target"),
    "filename": ("uri", "target"),
    "filepath": ("uri", "target"),
    "f": ("uri", "target"),
    "url": ("uri", "source", "target"),
    "src": ("source", "uri"),
    "dst": ("target",),
    "state_dict": ("tensors", "state"),
    "obj": ("tensors", "state"),
    "model": ("module",),
    "torch_dtype": ("dtype",),
    "mmap": ("copy",),
    "verify_hash": ("verify",),
    "check_hash": ("verify",),
    "checksum": ("hashes", "verify"),
    "num_threads": ("threads",),
    "num_workers": ("threads",),
    "num_readers": ("threads",),
    "max_workers": ("threads",),
    "storage_options": ("options",),
    "encryption": ("options",),
    "key_file": ("options",),
    "show_progress": ("progress",),
    "user_metadata": ("metadata",),
}
# Arguments that choose what the functions here always do, or never.
_NEEDLESS = {
    "framework": "tensors are always those of torch",
    "pickle_module": "no file has a pickle",
    "pickle_protocol": "no file has a pickle",
    "safe_serialization": "no file has a pickle",
    "use_safetensors": "the file says which format it has",
    "weights_only": "no file has a pickle",
}

_NOT_UNICODE = "half of a surrogate pair, which is not Unicode"


def is_unicode(text: str) -> bool:
    """Return whether a text has no half of a surrogate pair, as ``os.fsdecode()`` may make."""
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def kind_of(value: object) -> str:
    """Return what a message calls a value: its type, and never the value itself."""
    if value is None:
        return "None"
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def wrong(name: str, value: object, wanted: str) -> TypeError:
    """Return the error for an argument of a wrong type."""
    return TypeError(f"{name} is {kind_of(value)}, and must be {wanted}")


def not_unicode(what: str) -> errors.InvalidArgument:
    """Return the error for a text for which :func:`is_unicode` is false."""
    return errors.InvalidArgument(f"{what} has {_NOT_UNICODE}")


def meant(given: str, known: Iterable[str]) -> str:
    """Return ": did you mean 'x'?" with the nearest known names, or nothing."""
    from tensorizer_ops import _core  # which is loaded after this module

    return _core.did_you_mean(given.encode(errors="replace"), list(known))


def at_least(name: str, value: int, least: int) -> int:
    """Return an argument as an int; raise for one that is too small."""
    if value < least:
        raise errors.InvalidArgument(f"{name} is {value}, and must be at least {least}")
    return int(value)


def check_names(argument: str, names: Iterable[object]) -> None:
    """Raise for a name of a tensor that no file can have."""
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{argument} has a name that is {kind_of(name)}, and must be str")
        if not is_unicode(name):
            raise not_unicode(f"the name {name!r} in {argument}")


def _is_index(value: object) -> typing.TypeGuard[typing.SupportsIndex]:
    try:
        operator.index(value)  # type: ignore[arg-type]
    except Exception:
        return False
    return True


def _fits(value: typing.SupportsIndex) -> bool:
    return -(1 << 63) <= operator.index(value) < 1 << 63


def _is_truth(value: object) -> bool:
    """Return whether a value is 0, 1 or a bool of NumPy."""
    return type(value).__name__ in ("bool", "bool_") or (_is_index(value) and value in (0, 1))


def _is_buffer(value: object) -> bool:
    try:
        memoryview(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def _is_list(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | os.PathLike)


def _has_methods_of(protocol: type) -> Callable[[object], bool]:
    methods = [name for name in vars(protocol) if not name.startswith("_")]
    return lambda value: all(hasattr(value, name) for name in methods)


# Values that are converted, and so are accepted in place of those of a type.
_CONVERTED: dict[object, Callable[[object], bool]] = {
    int: _is_index,
    float: _is_index,
    bool: _is_truth,
    bytes: _is_buffer,
    collections.abc.Sequence: _is_list,
}


class _Rule(typing.NamedTuple):
    """What an argument may be."""

    types: tuple[type, ...]
    others: tuple[Callable[[object], bool], ...]  # for values of other types
    wanted: str
    words: tuple[str, ...]  # the only texts that it may be; any if there are none

    def accepts(self, value: object) -> bool:
        return isinstance(value, self.types) or any(accepts(value) for accepts in self.others)

    def check_value(self, name: str, value: object) -> None:
        """Raise for a value of a right type that the library could not take."""
        if isinstance(value, str):
            # to_uri() checks paths, which need not be Unicode.
            if os.PathLike not in self.types and not is_unicode(value):
                raise not_unicode(name)
            if self.words and value not in self.words:
                raise errors.InvalidArgument(
                    f"{name} is {value!r}, and must be {self.wanted}{meant(value, self.words)}",
                )
        elif int in self.types and _is_index(value) and not _fits(value):
            raise errors.InvalidArgument(f"{name} is a number that does not fit 64 bits")


def _members(annotation: object) -> list[object]:
    """Return the members of a union, or the annotation itself."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [m for each in typing.get_args(annotation) for m in _members(each)]
    return [annotation]


def _listed(words: list[str]) -> str:
    """Return "a, b or c", each word once."""
    once = list(dict.fromkeys(words))
    return once[0] if len(once) == 1 else f"{', '.join(once[:-1])} or {once[-1]}"


def _word(kind: typing.Any) -> str:
    name: str = kind.__name__
    return _WORDS.get(name, name)


def _rule(annotation: object) -> _Rule | None:
    """Return the rule of an annotation; ``None`` if it allows what this module cannot check."""
    found: list[typing.Any] = []
    others: list[Callable[[object], bool]] = []
    words: list[str] = []
    texts: tuple[str, ...] = ()
    for member in _members(annotation):
        if member is typing.Any:
            return None
        if typing.is_typeddict(member):
            continue  # it is for type checkers, beside the mapping that it is at run time
        origin, of = typing.get_origin(member), typing.get_args(member)
        if origin is typing.Literal:
            found.append(type(of[0]))
            words += map(repr, of)
            texts = tuple(word for word in of if isinstance(word, str))
            continue
        kind = origin or member
        # The functions say more themselves of what cannot be saved.
        holds = getattr(of[-1], "__name__", "") if of else ""
        is_saved = kind in (dict, collections.abc.Mapping) and holds == "Tensor"
        if not isinstance(kind, type) or is_saved:
            return None
        if getattr(kind, "_is_protocol", False):
            others.append(_has_methods_of(kind))
        else:
            found.append(kind)
        is_bytes = issubclass(kind, bytearray | memoryview) and os.PathLike not in found
        if kind is collections.abc.Sequence:
            each = [_word(typing.get_origin(one) or one) for one in _members(of[0])]
            words.append(f"a list of {_listed(each)}")
        elif not is_bytes:  # "bytes" says it
            words.append(_word(kind))
    exact: list[object] = []
    if collections.abc.Callable in found:
        exact.append(bool)  # 1 is not True where a function may be given
    if os.PathLike in found:
        exact.append(bytes)  # a path is no other buffer
    others += [_CONVERTED[kind] for kind in found if kind in _CONVERTED and kind not in exact]
    # A str is a Sequence, and no list.
    kinds = tuple(list if kind is collections.abc.Sequence else kind for kind in found)
    return _Rule(kinds, tuple(others), _listed(words), texts)


class _Signature(typing.NamedTuple):
    """What a function takes."""

    called: str
    positional: tuple[str, ...]
    rules: dict[str, _Rule | None]
    takes_more: bool  # *args
    takes_others: bool  # **kwargs

    def check(self, given: tuple[object, ...], keywords: dict[str, object]) -> None:
        if len(given) > len(self.positional) and not self.takes_more:
            raise self.too_many(given)
        for name, value in (*zip(self.positional, given, strict=False), *keywords.items()):
            rule = self.rules.get(name)
            if rule is not None:
                if not isinstance(value, rule.types) and not rule.accepts(value):
                    raise self.refusal(name, value, rule, given)
                rule.check_value(name, value)
            elif name not in self.rules and not self.takes_others:
                raise self.unknown(name)

    def refusal(
        self, name: str, value: object, rule: _Rule, given: tuple[object, ...]
    ) -> TypeError:
        """Return the error for an argument of a wrong type, perhaps in another's place."""
        error = wrong(name, value, rule.wanted)
        if _FILE_OBJECT in rule.wanted and hasattr(value, "open"):  # as of fsspec.open()
            return TypeError(f"{error}: give what its open() returns")
        torch = sys.modules.get("torch")
        if torch is not None and torch.dtype in rule.types and isinstance(value, str):
            dtype = value.removeprefix("torch.")
            if isinstance(getattr(torch, dtype, None), torch.dtype):
                return TypeError(f"{error}: did you mean torch.{dtype}?")
        positional = dict(zip(self.positional, given, strict=False))
        for other, there in positional.items() if name in positional else ():
            own = self.rules[other]
            if rule.accepts(there) and not (own and own.accepts(there)):
                order = ", ".join(each for each in positional if each != "self")
                return TypeError(f"{error}: the order is {self.called}({order})")
        return error

    def unknown(self, name: str) -> TypeError:
        return TypeError(
            f"{self.called}() got an unexpected keyword argument {name!r}{self.advice(name)}"
        )

    def advice(self, name: str) -> str:
        """Return what may have been meant by an argument of a name that the function lacks."""
        from tensorizer_ops import _core  # which is loaded after this module

        if "options" in self.rules and name in _core.option_names():
            return f": it is an option, so give options={{{name!r}: ...}}"
        for ours in _OTHER_NAMES.get(name, ()):
            if ours in self.rules:
                return f": did you mean {ours!r}?"
        if name in _NEEDLESS:
            return f": leave it out, as {_NEEDLESS[name]}"
        return meant(name, self.rules)

    def too_many(self, given: tuple[object, ...]) -> TypeError:
        """Return the error for an argument without a keyword that needs one."""
        method = self.positional[:1] == ("self",)
        most, count = len(self.positional) - method, len(given) - method
        value = given[len(self.positional)]
        keywords = [name for name in self.rules if name not in self.positional]
        fitting = [name for name in keywords if (rule := self.rules[name]) and rule.accepts(value)]
        advice = f": give the others as keywords, such as {(fitting or keywords)[0]}="
        return TypeError(
            f"{self.called}() takes {most} positional argument{'s' * (most != 1)}, and {count} "
            f"were given{advice if keywords else ''}"
        )


def _signature(function: Callable[..., object]) -> _Signature:
    code = typing.cast(types.FunctionType, function).__code__
    hints = typing.get_type_hints(function)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    rules = {name: _rule(hints.get(name, typing.Any)) for name in names}
    called = function.__qualname__.removesuffix(".__init__")
    more = bool(code.co_flags & inspect.CO_VARARGS)
    others = bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return _Signature(called, names[: code.co_argcount], rules, more, others)


def checked(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Make a function raise ``TypeError`` for an argument that its annotation does not allow."""
    # The annotations may have names that are not defined before the first call.
    signature = functools.cache(lambda: _signature(function))
    # Compilers trace the function itself, and see the values of its arguments only when it runs.
    torch = sys.modules.get("torch")

    @functools.wraps(function)
    def call(*given: _Parameters.args, **keywords: _Parameters.kwargs) -> _Result:
        if torch is None or not torch.compiler.is_compiling():
            signature().check(given, keywords)
        return function(*given, **keywords)

    return call
