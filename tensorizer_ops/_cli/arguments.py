"""The arguments of every subcommand: one function for each, and those that several share."""

from __future__ import annotations

import argparse
from typing import get_args

from tensorizer_ops._base.options import Hashes, Verify

# The types that `convert --dtype` casts to: torch's real floating types that models have.
_DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def _option(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError("an option is NAME=VALUE")
    return name, value


def _pattern(text: str) -> tuple[str, str]:
    # The last one, because patterns such as (?=...) have others.
    pattern, separator, replacement = text.rpartition("=")
    if not pattern or not separator:
        raise argparse.ArgumentTypeError("a map is PATTERN=REPLACEMENT")
    return pattern, replacement


def _place(text: str) -> str:
    if text == "-":
        raise argparse.ArgumentTypeError(
            "'-' is no file: write /dev/stdin or /dev/stdout, or ./- for a file of that name"
        )
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def _depth(text: str) -> int:
    try:
        return _count(text)
    except argparse.ArgumentTypeError:
        # Usually the URI, since DEPTH may be left out.
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number from 1 on; write --by-prefix=DEPTH, or the URI first"
        ) from None


def _from_zero(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def _named(parser: argparse.ArgumentParser, *flags: str, dest: str, help: str) -> None:
    parser.add_argument(
        *flags,
        action="append",
        default=[],
        type=_option,
        metavar="NAME=VALUE",
        dest=dest,
        help=help,
    )


def _reads(parser: argparse.ArgumentParser, options: str = "--options") -> None:
    """Add the arguments of all commands that read a file."""
    _options(parser, options)
    _keys(parser)


def _options(parser: argparse.ArgumentParser, name: str = "--options") -> None:
    _named(
        parser,
        "-o",
        name,
        dest="options",
        help="an option for reading, such as connections=32; may be given several times",
    )


def _keys(parser: argparse.ArgumentParser, new: str = "") -> None:
    what = "the new key" if new else "the key of an encrypted file"
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        f"--{new}key",
        metavar="NAME",
        help=f"the name of {what}, not its value: env:NAME, file:PATH, passphrase-env:NAME or "
        "passphrase-file:PATH",
    )
    group.add_argument(f"--{new}key-file", metavar="FILE", help=f"a file with {what}: 32 bytes")
    group.add_argument(
        f"--{new}passphrase-file", metavar="FILE", help=f"a file with the passphrase of {what}"
    )
    group.add_argument(
        f"--ask-{new}passphrase",
        action="store_true",
        help=f"ask for the passphrase of {what} on the terminal",
    )


def _computes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads", type=_count, default=0, metavar="N", help="threads; every CPU by default"
    )


def _writes(parser: argparse.ArgumentParser, hashes: str | None = "chunked") -> None:
    """Add the arguments of all commands that write a file from another one."""
    _read_file(parser, "source")
    _written_file(parser, hashes, "the source")


def _read_file(parser: argparse.ArgumentParser, name: str, what: str = "the file to read") -> None:
    parser.add_argument(name, type=_place, metavar=name.upper(), help=f"the path or URI of {what}")


def _written_file(
    parser: argparse.ArgumentParser, hashes: str | None, like: str, optional: bool = False
) -> None:
    what = f"the path or URI of the file to write{f'; {like} by default' if optional else ''}"
    parser.add_argument(
        "target", nargs="?" if optional else None, type=_place, metavar="TARGET", help=what
    )
    _named(
        parser,
        "--target-options",
        dest="target_options",
        help="an option for writing, such as fsync=true; may be given several times",
    )
    parser.add_argument(
        "--hashes",
        choices=get_args(Hashes),
        default=hashes,
        help=f"the hashes to write; {hashes or f'those of {like}'} by default",
    )
    _computes(parser)


def _uris(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("uri", nargs="+", type=_place, metavar="URI", help="a path or a URI")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _filter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--filter",
        action="append",
        metavar="GLOB",
        help="only tensors whose names match, such as '*.weight'; may be given several times",
    )


def add_info(parser: argparse.ArgumentParser) -> None:
    _uris(parser)
    _filter(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--by-prefix",
        nargs="?",
        type=_depth,
        const=1,
        metavar="DEPTH",
        help="totals of the tensors that share the first DEPTH parts of their names, 1 by default",
    )
    what.add_argument("--names", action="store_true", help="only the names, one a line")
    what.add_argument("--json", action="store_true", help="one JSON object for each file")
    _reads(parser)


def add_verify(parser: argparse.ArgumentParser) -> None:
    _uris(parser)
    parser.add_argument(
        "--verify",
        choices=("all", "crc32"),
        default="all",
        help="which hashes are compared; all by default",
    )
    parser.add_argument(
        "--trust",
        metavar="FILE",
        help="check every byte of every file by a signature, of whoever FILE trusts: a public key, "
        "or a policy",
    )
    parser.add_argument(
        "--signature",
        type=_place,
        metavar="FILE",
        help="where the signature is; beside the file or in the folder by default",
    )
    _computes(parser)
    _reads(parser)


def add_sign(parser: argparse.ArgumentParser) -> None:
    _read_file(parser, "model", "a folder of this machine, or a file anywhere")
    key = parser.add_mutually_exclusive_group(required=True)
    key.add_argument("--key-file", metavar="FILE", help="a file with the private key, in PEM")
    key.add_argument("--key", metavar="NAME", help="the name of it: env:NAME or file:PATH")
    parser.add_argument(
        "--passphrase",
        metavar="NAME",
        help="the name of the passphrase of an encrypted key, not its value: env:NAME or file:PATH",
    )
    parser.add_argument(
        "--certificate",
        action="append",
        default=[],
        metavar="FILE",
        help="the certificate of the key, then those that lead to a root",
    )
    parser.add_argument(
        "--signature",
        type=_place,
        metavar="FILE",
        help="the file to write; model.sig in the folder or FILE.sig by default",
    )
    parser.add_argument(
        "--method",
        choices=("shards", "files"),
        default="shards",
        help="sign parts of files, which loads can check one by one, or whole files",
    )
    parser.add_argument(
        "--shard-size", type=_from_zero, metavar="BYTES", help="bytes of a part; 1 MiB up to 16 GB"
    )
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="NAME",
        help="a file or folder of the model that is left out",
    )
    _computes(parser)
    _options(parser)


def add_digest(parser: argparse.ArgumentParser) -> None:
    _uris(parser)
    parser.add_argument(
        "--version",
        type=int,
        choices=(1, 2),
        default=1,
        help="1 hashes tensors, 2 hashes chunks and is the same in both formats; 1 by default",
    )
    parser.add_argument(
        "--listed",
        action="store_true",
        help="make the digest of what the file lists, and read no data",
    )
    _computes(parser)
    _reads(parser)


def add_convert(parser: argparse.ArgumentParser) -> None:
    _writes(parser)
    parser.add_argument(
        "--entry", metavar="KEY", help="the entry of a PyTorch checkpoint that has the tensors"
    )
    parser.add_argument(
        "--dtype", choices=_DTYPES, help="the type to cast floating-point tensors to"
    )
    _filter(parser)
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        type=_pattern,
        metavar="PATTERN=REPLACEMENT",
        help="rename tensors: a regular expression, and what to put in place of what matches, with "
        "\\1 for a group; may be given several times, and the first that matches a name counts",
    )
    _reads(parser, "--source-options")


def add_consolidate(parser: argparse.ArgumentParser) -> None:
    _writes(parser)
    parser.add_argument(
        "--prefix",
        default="",
        help="only tensors whose names begin so, without it, such as model.",
    )
    parser.add_argument(
        "--verify",
        choices=get_args(Verify),
        default="all",
        help="which hashes are compared; all by default",
    )
    _reads(parser, "--source-options")


def add_copy(parser: argparse.ArgumentParser) -> None:
    _writes(parser, hashes=None)
    parser.add_argument(
        "--update",
        action="store_true",
        help="fetch only what the local TARGET lacks; SOURCE needs digests of chunks",
    )
    _reads(parser, "--source-options")


def add_delta(parser: argparse.ArgumentParser) -> None:
    _read_file(parser, "base", "the older model")
    _read_file(parser, "new", "the newer model")
    _written_file(parser, "chunked", "the source")
    _reads(parser)


def add_apply(parser: argparse.ArgumentParser) -> None:
    _read_file(parser, "delta", "what `delta` has written")
    _read_file(parser, "base", "the older model")
    _written_file(parser, None, "BASE", optional=True)
    _reads(parser)


def add_publish(parser: argparse.ArgumentParser) -> None:
    _read_file(parser, "source", "the model")
    parser.add_argument("uri", type=_place, metavar="URI", help="the folder of the versions")
    parser.add_argument(
        "--step", type=_from_zero, required=True, metavar="N", help="the step of the training"
    )
    parser.add_argument(
        "--scratch",
        metavar="FOLDER",
        help="a folder, to which only this user may write, that keeps the last version, which the "
        "next delta is made from; without it, all of the model is written",
    )
    parser.add_argument(
        "--whole-every",
        type=_count,
        default=20,
        metavar="N",
        help="after how many versions all of the model is written; 20 by default",
    )
    parser.add_argument(
        "--grace",
        type=_from_zero,
        default=600,
        metavar="SECONDS",
        help="how long the files of removed versions stay; 600 by default",
    )
    parser.add_argument(
        "--sign-key-file",
        metavar="FILE",
        help="a file with the private key that signs every file, in PEM",
    )
    parser.add_argument(
        "--fenced",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether two publishers exclude each other, which not all servers can do",
    )
    _computes(parser)
    _reads(parser)


def add_follow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("uri", type=_place, metavar="URI", help="the folder of the versions")
    parser.add_argument(
        "target", type=_place, metavar="TARGET", help="the file that is to be each version"
    )
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="how often to look for a new version; 1 by default",
    )
    parser.add_argument(
        "--patience",
        type=_seconds,
        metavar="SECONDS",
        help="end after so long without a new version, 0 for the newest one only; never by default",
    )
    _named(
        parser,
        "--target-options",
        dest="target_options",
        help="an option for TARGET, such as fsync=true; may be given several times",
    )
    _computes(parser)
    _reads(parser)


def add_diff(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="a path or a URI")
    parser.add_argument("b", metavar="B", help="a path or a URI")
    _named(
        parser,
        "--target-options",
        dest="target_options",
        help="an option for reading B; those of -o and the key are for both",
    )
    add_json(parser)
    _computes(parser)
    _reads(parser)


def _transfers(parser: argparse.ArgumentParser, first: str, second: str) -> None:
    parser.add_argument(first, type=_place, metavar=first.upper(), help=_FOLDERS[first])
    parser.add_argument(second, type=_place, metavar=second.upper(), help=_FOLDERS[second])
    _named(
        parser,
        "-o",
        "--options",
        dest="options",
        help="an option for the server, such as connections=32; may be given several times",
    )


_FOLDERS = {"folder": "a folder on this machine", "uri": "the URI of a folder"}


def add_upload(parser: argparse.ArgumentParser) -> None:
    _transfers(parser, "folder", "uri")


def add_download(parser: argparse.ArgumentParser) -> None:
    _transfers(parser, "uri", "folder")
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace also files that were changed on this machine",
    )


def _kdf(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kdf",
        default="moderate",
        metavar="COST",
        help="the cost of deriving a key from a passphrase: interactive, moderate (default), "
        "sensitive, or PASSES,BYTES",
    )


def add_encrypt(parser: argparse.ArgumentParser) -> None:
    _writes(parser)
    _kdf(parser)
    _reads(parser, "--source-options")


def add_decrypt(parser: argparse.ArgumentParser) -> None:
    _writes(parser)
    _reads(parser, "--source-options")


def add_rekey(parser: argparse.ArgumentParser) -> None:
    add_encrypt(parser)
    _keys(parser, "new-")


def add_keygen(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("path", nargs="?", metavar="FILE", help="the file to create")
    where.add_argument(
        "--hex",
        action="store_true",
        help="print the key as 64 hexadecimal digits instead, for an environment variable",
    )


def add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("uri", metavar="URI", help="a path or a URI")
    parser.add_argument(
        "--cold",
        action="store_true",
        help="drop a local file from the page cache before each measurement",
    )
    add_json(parser)
    _computes(parser)
    _reads(parser)


def add_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")


def add_nothing(parser: argparse.ArgumentParser) -> None:
    pass
