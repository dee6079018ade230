"""``man``: the manual page, made of the arguments of all subcommands."""

from __future__ import annotations

import argparse
from argparse import Namespace

from tensorizer_ops import __version__
from tensorizer_ops._cli.completion import actions_of
from tensorizer_ops._cli.parsers import COMMANDS, PROGRAM, STATUSES


def man(given: Namespace) -> int:
    lines = [
        f'.TH TENSORIZER-OPS 1 "" "tensorizer_ops {__version__}"',
        ".SH NAME",
        _text(f"{PROGRAM} - inspect, verify, convert, copy and encrypt files of tensors"),
        ".SH SYNOPSIS",
        f".B {_text(PROGRAM)}",
        ".I COMMAND",
        "[arguments]",
        ".SH COMMANDS",
    ]
    for command in COMMANDS:
        actions = actions_of(command)
        places = [
            f"{a.metavar or a.dest}{' ...' if a.nargs == '+' else ''}"
            for a in actions
            if not a.option_strings
        ]
        lines += [
            f".SS {_text(' '.join([command.name, *places]))}",
            _text(command.description()),
        ]
        for action in actions:
            if action.option_strings:
                lines += [".TP", f".B {_text(_names(action))}", _text(action.help or "")]
        lines += [".PP", "Examples:", ".RS", ".nf"]
        lines += [_text(f"{PROGRAM} {example}") for example in command.examples]
        lines += [".fi", ".RE"]
    lines += [".SH EXIT STATUS", _text(STATUSES.partition(": ")[2])]
    print("\n".join(lines))
    return 0


def _names(action: argparse.Action) -> str:
    names = ", ".join(action.option_strings)
    if action.choices:
        return f"{names} {'|'.join(map(str, action.choices))}"
    if action.nargs == 0:
        return names
    return f"{names} [{action.metavar}]" if action.nargs == "?" else f"{names} {action.metavar}"


def _text(text: str) -> str:
    """Escape what roff would interpret."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
