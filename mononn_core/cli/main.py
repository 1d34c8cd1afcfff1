"""Arguments of every command, and the dispatch. A command's module is imported only when it is called, so that running
a compiled network loads neither ONNX nor the compiler."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from argparse import BooleanOptionalAction
from collections.abc import Sequence

from mononn_core.cli.words import assignment, parse_shape, parse_value, whole
from mononn_core.errors import MononnError
from mononn_core.options import ACTIVATIONS, ARCHITECTURES, FORMS, LAUNCHES, PRECISIONS, TARGETS, Options

BAD_INPUT = 2
CHOICE = "of a file of several shapes, run the one with an input so: input_ids=1x128; repeat for more"


class Parser(argparse.ArgumentParser):
    """argparse, with its errors as one sentence."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status: 0, 1 for a finding (bisect, check), 2 for bad input."""
    options = parser().parse_args(arguments)
    try:
        command = importlib.import_module(f"mononn_core.cli.{options.command}")
        status: int = command.run(options)
        sys.stdout.flush()
        return status
    except MononnError as error:
        print(f"mononn {options.command}: {error}", file=sys.stderr)
        return BAD_INPUT
    except MemoryError:
        print(f"mononn {options.command}: out of memory; free some, or use a larger machine", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def parser() -> Parser:
    """The whole command line."""
    top = Parser(prog="mononn", description="Compiles a neural network into one function and runs it.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    sub = commands.add_parser("compile", help="an ONNX model to one .mono file")
    _model(sub)
    sub.add_argument("-o", "--output", required=True, metavar="OUT")
    _compilation(sub)
    _switches(sub)
    help_text = "several shapes in one file: a line for each, as input_ids=1x128 attention_mask=1x128"
    sub.add_argument("--shapes-file", default="", metavar="FILE", help=help_text)
    help_text = "what to write: a .mono file, a library with a C header, its one C++ file, or a Python wheel"
    sub.add_argument("--emit", choices=("mono", *FORMS), default="mono", help=help_text)
    help_text = "of a library: inside it, or beside it in a file of their own (default: beside source, else inside)"
    sub.add_argument("--weights", choices=("inside", "beside"), default="", help=help_text)
    help_text = "use this schedule, as mononn inspect --schedule prints one, in place of the cost model's"
    sub.add_argument("--schedule", dest="given_schedule", default="", metavar="FILE", help=help_text)

    sub = commands.add_parser("run", help="run a .mono file on given or seeded inputs")
    sub.add_argument("artifact", metavar="OUT.mono")
    _inputs(sub)
    _shapes(sub, CHOICE)
    sub.add_argument("--repeat", type=int, default=1, metavar="N", help="time N runs after the first")
    sub.add_argument("--output", metavar="DIR", help="write every output to DIR/NAME.npy")
    _threads(sub)

    sub = commands.add_parser("inspect", help="what a .mono file or an ONNX model becomes")
    sub.add_argument("file", metavar="FILE", help="a .mono file, or an ONNX model")
    what = sub.add_mutually_exclusive_group()
    for stage in ("graph", "schedule", "program", "source"):
        what.add_argument(f"--{stage}", dest="text", action="store_const", const=stage, help=f"print the {stage}")
    _compilation(sub)
    _switches(sub)

    _trace(commands.add_parser("trace", help="time stamps per phase and worker"))

    sub = commands.add_parser("bisect", help="the first node where our value leaves the reference (exit status 1)")
    _model(sub)
    _inputs(sub)
    sub.add_argument("--tolerance", type=float, default=1e-4, metavar="X", help="relative L2 error that is still right")
    _compilation(sub)

    _check(commands.add_parser("check", help="each operator: native, expanded or unsupported (exit status 1)"))

    for sub in commands.choices.values():
        sub.add_argument("--json", action="store_true", help="print JSON for scripts")
    return top


def _check(sub: argparse.ArgumentParser) -> None:
    _model(sub)
    _shapes(sub)
    _values(sub)
    _precision(sub)
    _activations(sub)


def _trace(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("artifact", metavar="OUT.mono")
    sub.add_argument("-o", "--output", metavar="TRACE.json", help="a file that opens in Perfetto")
    sub.add_argument("--table", action="store_true", help="print time, floor, share of peak, wait, imbalance")
    below = "of the table only phases under PERCENT of their ceilings that take over 1 %% of the run"
    sub.add_argument("--below", type=float, metavar="PERCENT", help=below)
    sub.add_argument("--model", action="store_true", help="print what the cost model expected beside what was measured")
    _inputs(sub)
    _shapes(sub, CHOICE)
    sub.add_argument("--repeat", type=int, default=20, metavar="N", help="runs the table's medians are over")
    _threads(sub)


def _model(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("model", metavar="MODEL.onnx")


def _shapes(
    sub: argparse.ArgumentParser, help_text: str = "static shape of an input, as input_ids=1x128; repeat for more"
) -> None:
    sub.add_argument("--shape", action="append", default=[], type=parse_shape, metavar="NAME=1x128", help=help_text)


def _values(sub: argparse.ArgumentParser) -> None:
    help_text = "value of an input, which becomes a constant: a number for all its elements, or a file; repeat for more"
    sub.add_argument(
        "--value", action="append", default=[], type=parse_value, metavar="NAME=1|FILE.npy", help=help_text
    )


def _compilation(sub: argparse.ArgumentParser) -> None:
    _shapes(sub)
    _values(sub)
    sub.add_argument("--target", choices=TARGETS, default="cpu")
    _precision(sub)
    _activations(sub)
    help_text = f"GPU architecture to compile for, of {', '.join(ARCHITECTURES)}; repeat for more"
    sub.add_argument("--arch", action="append", default=[], metavar="sm_90a", help=help_text)
    sub.add_argument("--gpu", default="", metavar="NAME", help="GPU the schedule is made for, as H100")
    _threads(sub)


def _precision(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--precision", choices=PRECISIONS, default="fp32", help="fp16: on GPUs")


def _activations(sub: argparse.ArgumentParser) -> None:
    help_text = "what products by quantised weights round real left sides to (auto: int8, or the model's 16 bits)"
    sub.add_argument("--activations", choices=ACTIVATIONS, default=Options.activations, help=help_text)


def _switches(sub: argparse.ArgumentParser) -> None:
    help_text = "once a run; for ablations a phase (CPU), or a graph of one kernel an interval (GPU)"
    sub.add_argument("--launch", choices=LAUNCHES, default=Options.launch, help=help_text)
    for switch in ("fuse", "epilogues", "prefetch"):
        default = getattr(Options, switch)
        sub.add_argument(f"--{switch}", action=BooleanOptionalAction, default=default, help="for ablations")


def _threads(sub: argparse.ArgumentParser) -> None:
    help_text = "workers (default: this process's cores, or as compiled); of a GPU's .mono file: blocks"
    sub.add_argument("--threads", type=int, metavar="N", help=help_text)


def _inputs(sub: argparse.ArgumentParser) -> None:
    help_text = "an input's value; the others are drawn from --seed"
    sub.add_argument("--input", action="append", default=[], type=assignment, metavar="NAME=FILE.npy", help=help_text)
    sub.add_argument("--seed", type=whole, default=0, metavar="N")
