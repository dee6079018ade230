"""The command ``tensorizer-ops``.

``parsers`` has the arguments of every subcommand, and ``main`` runs one. Each other file does the
work of the subcommands that its name states. It is imported when one of them runs, so that those
that need no torch start without it.
"""
