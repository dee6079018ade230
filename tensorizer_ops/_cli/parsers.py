"""All subcommands: help, completions and the man page are made of their table."""

from __future__ import annotations

import argparse
import difflib
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

from tensorizer_ops._base.tables import safe
from tensorizer_ops._cli import arguments
from tensorizer_ops._cli.output import red

PROGRAM = "tensorizer-ops"

# The exit statuses, beside those of signals.
DIFFERENT = 1  # a difference or a failed verification
WRONG_USAGE = 2
FAILED = 3

STATUSES = (
    "Exit status: 0 success, 1 a difference, a failed verification or a pattern that matches "
    "nothing, 2 wrong usage, 3 any other error, 130 after Ctrl-C, 141 if nobody reads what it "
    "prints."
)


class UsageError(Exception):
    """Arguments that do not fit together."""


# Options by names that they had before, or have in Python, and what each command calls them.
_OTHER_NAMES = {
    "--check": ("--verify",),
    "--option": ("--options", "--source-options"),
    "--options": ("--source-options",),
    "--target-option": ("--target-options",),
    "--old-key": ("--key",),
    "--names": ("--filter",),
    "--rename": ("--map",),
}
# What other programs call the commands.
_OTHER_COMMANDS = {
    **dict.fromkeys(("show", "inspect", "stat", "metadata", "names"), "info"),
    **dict.fromkeys(("validate", "test", "fsck"), "verify"),
    **dict.fromkeys(("hash", "checksum", "sha256sum"), "digest"),
    "cp": "copy",
    **dict.fromkeys(("push", "put", "sync"), "upload"),
    **dict.fromkeys(("pull", "get", "fetch"), "download"),
    **dict.fromkeys(("cmp", "compare"), "diff"),
    **dict.fromkeys(("benchmark", "profile", "time"), "bench"),
    **dict.fromkeys(("export", "import", "save"), "convert"),
    **dict.fromkeys(("merge", "gather"), "consolidate"),
    "genkey": "keygen",
    "version": "env",
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and repeat no value that could be a secret."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_USAGE, f"{complaint(message)} (see {self.prog} --help)\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse ignores errors here.
        (file or sys.stderr).write(message)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        words = map(self._as_known, sys.argv[1:] if args is None else args)
        given, unknown = super().parse_known_args([*words], namespace)
        # argparse leaves over the files that stand behind an option which stands behind a file.
        files = getattr(given, "uri", None)
        for word in unknown:
            if word.startswith("-"):
                name = word.partition("=")[0]
                self.error(f"unknown argument {name}" + _meant(name, self._option_string_actions))
            if not isinstance(files, list):
                self.error(f"one argument too many: {word}")
            files.append(word)
        return given, []

    def _as_known(self, word: str) -> str:
        name, equals, value = word.partition("=")
        known = self._option_string_actions
        if name in known:
            return word
        names = (other for other in _OTHER_NAMES.get(name, ()) if other in known)
        return f"{next(names, name)}{equals}{value}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            meant = _OTHER_COMMANDS.get(str(value), "")
            advice = (
                _meant(meant if meant in known else str(value), known)
                or f": choose from {', '.join(known)}"
            )
            raise argparse.ArgumentError(action, f"{value!r} is unknown{advice}")


def complaint(text: str) -> str:
    """Return a line for standard error that says what is wrong."""
    return f"{red(PROGRAM)}: {safe(text)}"


def _meant(word: str, known: Iterable[str]) -> str:
    """Return a question that names the known word most like this one; empty if there is none."""
    close = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {close[0]}?" if close else ""


class Command(NamedTuple):
    """A subcommand: what it does, examples, and the file beside with a function of its name."""

    name: str
    help: str
    examples: tuple[str, ...]
    file: str
    add: Callable[[argparse.ArgumentParser], None]
    details: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    def description(self) -> str:
        return f"{self.help[0].upper()}{self.help[1:]}. {self.details}".strip()


_ASKS = "Without one of the options for keys, it asks for a passphrase on the terminal."

COMMANDS = (
    Command(
        "info",
        "show the tensors of a file, and how it stores them",
        (
            "info model.tensors",
            "info https://example.com/model.safetensors --by-prefix=2",
            "info model.tensors --filter '*.bias' --json",
        ),
        "info",
        arguments.add_info,
        "Reads only the index, and needs no key. On a terminal, it shows as many tensors as fit; a "
        "pipe or a file gets all of them. ls and list are other names of this command.",
        ("ls", "list"),
    ),
    Command(
        "verify",
        "compare the data of a file with its hashes",
        (
            "verify model.tensors",
            "verify --key-file release.key s3://bucket/secret.tensors",
            "verify --trust release.pub ./model",
        ),
        "check",
        arguments.add_verify,
        "Names everything that is damaged. With --trust, checks a signature that sign has made, or "
        "any other tool for OpenSSF Model Signing.",
    ),
    Command(
        "sign",
        "sign a model, so that loads can refuse every other one",
        (
            "sign ./model --key-file release.pem",
            "sign s3://bucket/model.tensors --key env:SIGNING_KEY --certificate chain.pem",
        ),
        "signatures",
        arguments.add_sign,
        "Writes a bundle of OpenSSF Model Signing v1.0, and prints the root digest, which tells "
        "this model from all others.",
    ),
    Command(
        "digest",
        "print a digest of the content of a file",
        ("digest model.tensors", "digest --version 2 --listed s3://bucket/model.tensors"),
        "check",
        arguments.add_digest,
        "It depends on names, types, shapes and data, and not on encryption or order.",
    ),
    Command(
        "convert",
        "write a copy in another format",
        (
            "convert model.safetensors model.tensors",
            "convert pytorch_model.bin model.safetensors",
            "convert ./llama s3://bucket/llama.tensors --dtype bfloat16",
            "convert training.tensors model.tensors --filter 'model.*' --map '^model\\.='",
            "convert big.tensors big.safetensors --target-options max_shard_size=5000000000",
        ),
        "rewriting",
        arguments.add_convert,
        "The name of TARGET decides: a safetensors file if it ends so, otherwise a .tensors file. "
        "SOURCE may be a file of either format, a folder or index of Hugging Face, or a PyTorch "
        "checkpoint on this machine, which is loaded without running its code.",
    ),
    Command(
        "consolidate",
        "write what many ranks have saved as one file",
        (
            "consolidate run/step10 step10.tensors",
            "consolidate run/step10 model.safetensors --prefix model.",
            "consolidate s3://bucket/step10 ./model/ --prefix model.",
        ),
        "rewriting",
        arguments.add_consolidate,
        "SOURCE is a folder that checkpoint.save has written in a job. A .tensors file is what one "
        "process saves, unless --prefix leaves out some of it. If TARGET ends in a slash, it is a "
        "folder, which gets model.safetensors, or shards and their index.",
    ),
    Command(
        "copy",
        "copy a file from any place to any place",
        (
            "copy model.tensors s3://bucket/model.tensors",
            "copy https://example.com/model.tensors model.tensors --update",
        ),
        "rewriting",
        arguments.add_copy,
        "Every hash is checked on the way; format and hashes stay the same. An encrypted file "
        "needs its key, and stays encrypted with it, for which a passphrase costs the same.",
    ),
    Command(
        "delta",
        "write what turns one version of a model into another",
        ("delta step1.tensors step2.tensors step2.delta.tensors",),
        "deltas",
        arguments.add_delta,
        "A step of training changes few elements, by little: the delta is 1 to 5 % of the model.",
    ),
    Command(
        "apply",
        "make the new version of a model from the old one and a delta",
        (
            "apply step2.delta.tensors step1.tensors step2.tensors",
            "apply s3://bucket/step2.delta.tensors model.tensors",
        ),
        "deltas",
        arguments.add_apply,
        "Without TARGET, the new version replaces BASE, unless BASE is the new version already. "
        "BASE is compared with what the delta was made from, and the result with what it should "
        "be, before anything appears.",
    ),
    Command(
        "publish",
        "write a model as the next of its versions, which others follow",
        ("publish model.tensors s3://bucket/run --step 100 --scratch /var/tmp/run",),
        "versions",
        arguments.add_publish,
        "Writes what has changed since the last version, and sometimes all of the model. -o passes "
        "options for both loads and saves.",
    ),
    Command(
        "follow",
        "bring a file to each version of a model that is published",
        ("follow s3://bucket/run /dev/shm/model.tensors",),
        "versions",
        arguments.add_follow,
        "Prints a line when TARGET is a version, which appears in one step. Fetches what has "
        "changed since the version that TARGET is. Ends at Ctrl-C, and exits with 1 if --patience "
        "is over before there is any version.",
    ),
    Command(
        "upload",
        "copy a folder to a server, and go on with one that was stopped",
        ("upload ./llama s3://bucket/llama",),
        "folders",
        arguments.add_upload,
        "Files of tensors are compared with their hashes first. SHA256SUMS on the server lists the "
        "SHA-256 of every file that is complete, as sha256sum does; files that it lists are not "
        "sent again. Folders whose names begin with a dot are left out.",
    ),
    Command(
        "download",
        "copy a folder from a server, and check every file",
        ("download s3://bucket/llama ./llama", "download hf://Qwen/Qwen3-0.6B ./qwen"),
        "folders",
        arguments.add_download,
        "Every file is compared with SHA256SUMS, which upload writes, and gets its name when it is "
        "right; files that are there are not fetched again. Of a folder without that list, it "
        "fetches what hf.from_pretrained reads.",
    ),
    Command(
        "diff",
        "compare the tensors of two files",
        ("diff old.tensors new.tensors", "diff model.safetensors s3://bucket/model.tensors --json"),
        "diff",
        arguments.add_diff,
        "Exit status 1 if they differ. Neither order nor metadata counts.",
    ),
    Command(
        "encrypt",
        "write an encrypted copy of a file",
        (
            "encrypt model.tensors secret.tensors --key-file release.key",
            "encrypt model.tensors secret.tensors",
        ),
        "encryption",
        arguments.add_encrypt,
        _ASKS,
    ),
    Command(
        "decrypt",
        "write an unencrypted copy of an encrypted file",
        ("decrypt secret.tensors model.tensors --key-file release.key",),
        "encryption",
        arguments.add_decrypt,
        _ASKS,
    ),
    Command(
        "rekey",
        "write a copy of an encrypted file with another key",
        ("rekey s.tensors s.tensors --key-file old.key --new-key-file new.key",),
        "encryption",
        arguments.add_rekey,
        "Without options for a key, it asks for its passphrase on the terminal.",
    ),
    Command(
        "keygen",
        "create a file with a random key",
        ("keygen release.key", "keygen --hex"),
        "encryption",
        arguments.add_keygen,
        "The file has 32 bytes, which only you may read. A file that exists is never replaced.",
    ),
    Command(
        "bench",
        "measure how fast a file loads here, and what takes the time",
        ("bench model.tensors --cold", "bench s3://bucket/model.tensors -o connections=32"),
        "bench",
        arguments.add_bench,
        "Takes as much memory as the tensors.",
    ),
    Command(
        "env",
        "show versions, processor and limits, for a bug report",
        ("env", "env --json"),
        "env",
        arguments.add_json,
    ),
    Command(
        "completion",
        "print a completion script for a shell",
        (
            "completion bash > ~/.local/share/bash-completion/completions/tensorizer-ops",
            "completion zsh > ~/.zfunc/_tensorizer-ops",
            "completion fish > ~/.config/fish/completions/tensorizer-ops.fish",
        ),
        "completion",
        arguments.add_completion,
    ),
    Command(
        "man",
        "print the manual page",
        ("man > ~/.local/share/man/man1/tensorizer-ops.1",),
        "manual",
        arguments.add_nothing,
    ),
)


def fill(parser: argparse.ArgumentParser, command: Command) -> None:
    """Add all arguments of a subcommand."""
    command.add(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="print no progress and no notes")
    parser.add_argument("-v", "--verbose", action="store_true", help="print tracebacks of errors")
    parser.set_defaults(file=command.file, run=command.name)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from tensorizer_ops import __version__

        print(f"{PROGRAM} {__version__}")
        parser.exit()


def _wrapped(text: str) -> str:
    return textwrap.fill(text, min(shutil.get_terminal_size().columns - 2, 100))


def make_parser() -> argparse.ArgumentParser:
    statuses = _wrapped(STATUSES)
    parser = Parser(
        prog=PROGRAM,
        description=_wrapped(
            "Inspects, verifies, converts, copies and encrypts .tensors and safetensors files, on "
            "disk, web servers, S3, Azure and Redis."
        ),
        epilog=f"{PROGRAM} COMMAND --help describes a command.\n{statuses}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for command in COMMANDS:
        examples = "".join(f"\n  {PROGRAM} {example}" for example in command.examples)
        added = commands.add_parser(
            command.name,
            aliases=command.aliases,
            help=command.help,
            description=_wrapped(command.description()),
            epilog=f"Examples:{examples}\n\n{statuses}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        fill(added, command)
    return parser
