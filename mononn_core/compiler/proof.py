"""The proof between a Program and its code, the same for both targets."""

from __future__ import annotations

from mononn_core.errors import OptionError, VerifyError
from mononn_core.program.ir import Program
from mononn_core.program.verify import verify


def prove(program: Program, given: bool) -> None:
    """Verify a Program; ``given``: whether its Schedule came from the user, who may have left out a barrier.

    Raises:
        OptionError: a given Schedule's Program is refused; the message says why.
        VerifyError: another Program is, which is a bug of the compiler.
    """
    try:
        verify(program)
    except VerifyError as error:
        if given:
            raise OptionError(f"the schedule is not legal: {error}") from error
        raise
