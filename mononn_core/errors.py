"""Every error the compiler raises: what happened, where in the model, what to do next.

The command line prints ``str(error)`` as one sentence and leaves with status 2.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """Where something comes from: the ONNX node's name (or its first output's) and its operator type; ``joined`` are
    the names of others that became one with it, such as products of the same matrix."""

    name: str
    op_type: str
    joined: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All the nodes it stands for."""
        return (self.name, *self.joined)

    def __str__(self) -> str:
        return f"{self.op_type} node {self.name!r}"


class MononnError(Exception):
    """Base of every error of this package. ``str(error)`` is one sentence: cause, place, next step."""


class ModelError(MononnError):
    """The model file cannot be read: not ONNX, truncated, or its external data missing or outside its folder."""


class ShapeError(MononnError):
    """A dimension is dynamic and was not given, or shapes do not fit an operator."""


class UnsupportedError(MononnError):
    """The model uses an operator, attribute or type that this compiler has no form for."""


class InputError(MononnError):
    """A run was given a wrong input: unknown or missing name, other shape, other dtype, an index out of range."""


class ArtifactError(MononnError):
    """A ``.mono`` file is truncated, altered, or made for another machine or version."""


class ToolchainError(MononnError):
    """No usable C++ compiler, or it refused the generated source."""


class DeviceError(MononnError):
    """No GPU, a driver that is too old, a GPU that is too small for the code, or one whose memory is full."""


class DeviceHangError(DeviceError):
    """A kernel did not end in time. The GPU cannot be used by this process any more."""


class OptionError(MononnError):
    """An option or argument has a value that makes no sense."""


class VerifyError(MononnError):
    """An internal stage produced something illegal (a race, a deadlock, an access out of bounds). A compiler bug."""
