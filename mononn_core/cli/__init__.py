"""The command line: ``mononn compile | run | inspect | trace | bisect | check``. One file a command.

Every :class:`MononnError` is printed as one sentence and ends with exit status 2.
"""

from mononn_core.cli.main import main

__all__ = ["main"]
