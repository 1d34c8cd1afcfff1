"""What a template is to a Program: the operands and parameters of its tasks, the tile they store, and its meaning.

A template is one file of :mod:`mononn_core.templates`, found here by its name. That package stands above this one: what
else a template is (how groups are dealt, its calls in C++ and CUDA) the layers that ask for it say in classes of their
own, and a template has all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar, Generic, Protocol, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from mononn_core.program.expr import Const, Expr, Var, op
from mononn_core.program.ir import Operand, Task
from mononn_core.program.rules import matrix_dims
from mononn_core.program.windows import Windows

Array = np.ndarray[Any, Any]
Extent = Callable[[str, int], Array]
"""(operand's role, 0 for its rows or 1 for its columns) -> its extent in every task; int64[tasks]."""
NEST = "nest"
"""The template without a kernel: a task is its generated loops."""
FOLDER = "mononn_core.templates"
P = TypeVar("P")


@dataclass(frozen=True)
class Elements:
    """The elements of a tile: an extent an axis, and the conditions under which one is there."""

    extents: tuple[int, ...]
    conditions: tuple[Expr, ...]


class Running(Protocol):
    """A task on the virtual machine, as a template's meaning sees it."""

    def matrix(self, role: str) -> Array:
        """An operand's box as a matrix; types narrower than float32 are widened to it."""

    def corner(self, role: str) -> tuple[int, ...]:
        """Where an operand's box starts in its buffer."""

    def index(self, e: Expr) -> int:
        """The value of an expression of the task's place in its domain."""

    def prologue(self, name: str, scores: Array) -> Array:
        """The task's prologue for every element of ``scores``, which is what it gives where there is none."""


@dataclass(frozen=True)
class NoParams:
    """Of a template without parameters."""


class Template(ABC, Generic[P]):
    """One template.

    Attributes:
        name: what a Task calls it.
        roles: the operands it reads, matrices all.
        parameters: the frozen dataclass of its parameters; the names and types of ``Task.params``.
        axes: how many axes its results have.
        prologues: expressions it takes in its middle, by name, with the axes they are over.
        filled: the operand that the task's body may compute in the worker's own memory, or "".
        weights: the operand whose first rows a worker may ask for before a barrier, or "".
        rounded: the type that it rounds its first operand to before it multiplies; "": it takes it as it is.
    """

    name: ClassVar[str]
    roles: ClassVar[tuple[str, ...]] = ()
    parameters: type[P]
    axes: ClassVar[int] = 2
    prologues: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    filled: ClassVar[str] = ""
    weights: ClassVar[str] = ""
    rounded: ClassVar[str] = ""

    def params(self, task: Task) -> P:
        """The task's parameters; raises ValueError where one is missing, unknown or of another type."""
        return read_params(self.parameters, task.params)

    def mismatch(self, task: Task) -> str:
        """Why parameters and boxes do not go together; "" where they do."""
        return ""

    def windows(self, task: Task) -> Windows | None:
        """The windows it slides over an image that operand "a" holds; None where it does not."""
        return None

    @abstractmethod
    def contraction(self, task: Task, extent: Extent) -> str:
        """Why the operands' extents do not fit each other; "" where they do."""

    @abstractmethod
    def elements(self, task: Task, axes: tuple[str, ...], prologue: str = "") -> Elements:
        """What a result over ``axes`` stores, or a prologue is evaluated for."""

    def parts(self, task: Task) -> int:
        """How many accumulators an element of its tile has."""
        return 1

    @abstractmethod
    def compute(self, task: Task, running: Running) -> Array:
        """Its accumulators in NumPy, an axis of the result each, in front of them one of the parts where there are
        several."""


@cache
def get(name: str) -> Template[Any]:
    """The template of a name; raises KeyError where no file of :mod:`mononn_core.templates` is it."""
    found: Template[Any] | None = None
    if name in _files():
        found = getattr(import_module(f"{FOLDER}.{name}"), "TEMPLATE", None)
    if found is None:
        raise KeyError(name)
    return found


@cache
def known() -> tuple[Template[Any], ...]:
    """Every template, by name."""
    modules = ((name, import_module(f"{FOLDER}.{name}")) for name in _files())
    return tuple(module.TEMPLATE for _, module in modules if hasattr(module, "TEMPLATE"))


@cache
def _files() -> tuple[str, ...]:
    return tuple(sorted(module.name for module in iter_modules(import_module(FOLDER).__path__)))


def operand(task: Task, role: str) -> Operand:
    """The operand of a role."""
    return next(o for o in task.operands if o.role == role)


def sides(task: Task, axes: tuple[str, ...], walked: tuple[tuple[str, int], ...]) -> Elements:
    """The elements whose axes walk along operands' rows (0) or columns (1), as far as their boxes reach."""
    extents, conditions = [], []
    for axis, (role, side) in zip(axes, walked, strict=True):
        box = operand(task, role).box
        d = matrix_dims(box.size)[side]
        extents.append(box.size[d])
        conditions.append(op("lt", box.offset[d] + Var(axis), Const(box.bound[d])))
    return Elements(tuple(extents), tuple(conditions))


def read_params(kind: type[P], values: Mapping[str, Any]) -> P:
    """The dataclass ``kind`` of a task's parameters; raises ValueError as :meth:`Template.params`."""
    hints = _hints(kind)  # type: ignore[arg-type]  # a class is hashable
    for name, value in values.items():
        if name not in hints:
            raise ValueError(f"parameter {name!r} means nothing to it")
        if not _is(value, hints[name]):
            raise ValueError(f"parameter {name!r} is {value!r}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"a parameter is missing: {error}") from error


@cache
def _hints(kind: type[Any]) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _is(value: object, hint: Any) -> bool:
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        return isinstance(value, tuple) and len(value) == len(kinds) and all(map(_is, value, kinds))
    return type(value) is hint
