"""``completion``: scripts that complete subcommands, options, choices and files."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterator
from itertools import product

from tensorizer_ops._cli.parsers import COMMANDS, PROGRAM, Command, Parser, fill


def completion(given: Namespace) -> int:
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[given.shell]())
    return 0


def actions_of(command: Command) -> list[argparse.Action]:
    """Return the arguments of a subcommand."""
    parser = Parser(prog=f"{PROGRAM} {command.name}", allow_abbrev=False)
    fill(parser, command)
    return parser._actions


def _options(command: Command) -> list[argparse.Action]:
    return [action for action in actions_of(command) if action.option_strings]


def _choices(action: argparse.Action) -> str:
    return " ".join(map(str, action.choices or ()))


def _bash() -> str:
    commands = " ".join(name for command in COMMANDS for name in command.names)
    lines = [
        "_tensorizer_ops() {",
        '  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"',
        "  local words=",
        "  if [ $COMP_CWORD -eq 1 ]; then",
        f'    words="{commands} --help --version"',
        "  else",
        '    case "${COMP_WORDS[1]} $previous" in',
    ]
    for command in COMMANDS:
        for action in _options(command):
            if action.choices:
                pairs = product(command.names, action.option_strings)
                names = "|".join(f'"{command} {option}"' for command, option in pairs)
                lines.append(f'      {names}) words="{_choices(action)}" ;;')
    lines += ["      *)", '        case "${COMP_WORDS[1]}" in']
    for command in COMMANDS:
        options = [name for action in _options(command) for name in action.option_strings]
        positional = [
            _choices(a) for a in actions_of(command) if not a.option_strings and a.choices
        ]
        lines.append(
            f'          {"|".join(command.names)}) words="{" ".join([*positional, *options])}" ;;'
        )
    lines += [
        "        esac ;;",
        "    esac",
        "  fi",
        "  # Options only where one has begun, so that files come first.",
        '  if [[ $words != -* || $current == -* ]]; then COMPREPLY=($(compgen -W "$words" -- '
        '"$current")); fi',
        "}",
        f"complete -o default -F _tensorizer_ops {PROGRAM}",
    ]
    return "\n".join(lines)


def _zsh_text(text: str) -> str:
    """Escape a text for a single-quoted specification of ``_arguments`` or ``_describe``."""
    for special in ("\\", "[", "]", ":"):
        text = text.replace(special, f"\\{special}")
    return text.replace("'", "'\\''")


def _fish_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _takes_value(action: argparse.Action) -> bool:
    return action.nargs != 0


def _zsh() -> str:
    lines = [f"#compdef {PROGRAM}", "", "local -a commands", "commands=("]
    lines += [f"  '{command.name}:{_zsh_text(command.help)}'" for command in COMMANDS]
    lines += [
        ")",
        "if (( CURRENT == 2 )); then",
        "  _describe command commands",
        "  return",
        "fi",
        'local chosen="$words[2]"',
        "shift words",
        "(( CURRENT-- ))",
        'case "$chosen" in',
    ]
    for command in COMMANDS:
        specs = list(_zsh_specs(command))
        lines += [f"  {'|'.join(command.names)})", "    _arguments -s \\"]
        lines += [f"      {spec} \\" for spec in specs[:-1]]
        lines += [f"      {specs[-1]}", "    ;;"]
    return "\n".join([*lines, "esac"])


def _zsh_specs(command: Command) -> Iterator[str]:
    for action in actions_of(command):
        words = f"({_choices(action)})" if action.choices else "_files"
        if not action.option_strings:
            several = "*" if action.nargs == "+" else ""
            yield f"'{several}:{action.metavar or action.dest}:{words}'"
            continue
        text = _zsh_text(action.help or "")
        for name in action.option_strings:
            value = f":{action.metavar or action.dest}:{words}" if _takes_value(action) else ""
            yield f"'*{name}[{text}]{value}'"


def _fish() -> str:
    begin = f"complete -c {PROGRAM}"
    lines = []
    for command in COMMANDS:
        lines.append(
            f"{begin} -n __fish_use_subcommand -f -a {command.name} -d '{_fish_text(command.help)}'"
        )
    for command in COMMANDS:
        where = f"{begin} -n '__fish_seen_subcommand_from {' '.join(command.names)}'"
        for action in actions_of(command):
            if not action.option_strings:
                if action.choices:
                    lines.append(f"{where} -f -a '{_choices(action)}'")
                continue
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in action.option_strings
            )
            value = f" -x -a '{_choices(action)}'" if action.choices else ""
            if not value and _takes_value(action):
                value = " -r"
            lines.append(f"{where} {names}{value} -d '{_fish_text(action.help or '')}'")
    return "\n".join(lines)
