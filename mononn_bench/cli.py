"""mononn-bench: look at the machine, list models and systems, and take each step of a comparison by hand."""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from mononn_bench import by_hand, commands, lengths_by_hand
from mononn_bench.errors import BenchError, DiskFullError
from mononn_bench.lengths.distribution import SQUAD
from mononn_bench.measure.worker import die_with_parent
from mononn_bench.record import Settings
from mononn_bench.served import ServingSettings
from mononn_bench.start.command import start
from mononn_bench.started import StartSettings


def make_parser() -> argparse.ArgumentParser:
    """The parser of every sub-command; each names its function of commands.py as `run`."""
    parser = argparse.ArgumentParser(prog="mononn-bench", description=__doc__)
    parser.set_defaults(run=None)
    steps = parser.add_subparsers(metavar="COMMAND", required=True)
    _add(steps, "doctor", commands.doctor, "what this machine has, and which systems would work")
    _add(steps, "models", commands.models, "the catalogue of models")
    _add(steps, "systems", commands.systems, "the systems that can be compared")
    _add_machine(steps)
    _add_measure(steps)
    _add_profile(steps)
    _add_explain(steps)
    _add_bricks(steps)
    _add_start(steps)
    _add_lengths(steps)
    _add_tune(steps)
    report = _add(steps, "report", commands.report, "tables and figures from records")
    report.add_argument("records", nargs="*", type=Path, metavar="RECORD")
    report.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    report.add_argument("--primitives", type=Path, metavar="FILE", help="what the machine gives, if that was measured")
    simulate = _add(steps, "simulate", commands.simulate, "judge estimators, rounds and cycles on kept records")
    simulate.add_argument("reference", type=Path, metavar="FOLDER", help="such as results/reference")
    _add_environment(steps)
    _add_export(steps)
    quantise = _add(steps, "quantise", commands.quantise, "write a model's 8-bit file (in the quantise environment)")
    quantise.add_argument("--model-folder", type=Path, required=True)
    quantise.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    reference = _add(steps, "reference", commands.reference, "compute a model's right answers, float64")
    reference.add_argument("--model-folder", type=Path, required=True)
    reference.add_argument("--unquantised", type=Path, metavar="FOLDER", help="of the model that it was quantised from")
    reference.add_argument("--seed", type=int, default=0, help="of the input sets")
    _add_build(steps)
    return parser


Steps = argparse._SubParsersAction  # type: ignore[type-arg]


def _add(steps: Steps, name: str, run: object, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run)
    return parser


def _add_machine(steps: Steps) -> None:
    parser = _add(
        steps, "machine", commands.machine, "what auto in a configuration means on this machine, or what it gives"
    )
    parser.add_argument("--output", type=Path, help="write the record that binds a folder of results to this machine")
    parser.add_argument("--name", help="of that folder (default: what auto would call it)")
    parser.add_argument(
        "--measure", type=Path, metavar="FILE", help="measure what the machine gives, and keep it there"
    )


def _add_measure(steps: Steps) -> None:
    parser = _add(steps, "measure", by_hand.measure, "measure one model on several systems, side by side")
    _add_case(parser)
    parser.add_argument("--rounds", type=_positive, default=Settings.rounds)
    parser.add_argument("--cycles", type=_positive, default=Settings.cycles)
    parser.add_argument("--block-seconds", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0, help="tells repetitions of a case apart")
    parser.add_argument(
        "--order-seed", type=int, help="of the order of blocks and starts; without it a new one is drawn"
    )
    parser.add_argument("--starts", type=int, default=0, help="loads of each system with warm and with cold files")
    parser.add_argument("--cold", action="store_true", help="empty the caches before each run")
    parser.add_argument("--output", type=Path, help="the record; printed as a table without it")


def _add_profile(steps: Steps) -> None:
    parser = _add(steps, "profile", by_hand.profile, "look into a few runs of one model on several systems")
    _add_case(parser)
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="of records and timeline")


def _add_explain(steps: Steps) -> None:
    parser = _add(steps, "explain", by_hand.explain, "where mononn gains and loses on one model, and why")
    _add_case(parser)
    parser.add_argument("--profile", type=Path, metavar="FILE", help="a kept profile, in place of a new one")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="of the new profile and its timeline")


def _add_bricks(steps: Steps) -> None:
    parser = _add(steps, "bricks", by_hand.bricks, "measure a model's layers and runs of layers, each by itself")
    _add_case(parser)
    parser.add_argument("--lengths", type=_lengths, default=[1, 2, 4, 8], metavar="1,2,4", help="layers of a brick")
    parser.add_argument("--database", type=Path, default=Path(".cache/bricks"), metavar="FOLDER",
                        help="what is known of bricks, by machine, system and version")  # fmt: skip
    parser.add_argument("--output", type=Path, help="the record")


def _add_start(steps: Steps) -> None:
    parser = _add(steps, "start", start, "from the start of a process to its first answer, and what processes hold")
    _add_case(parser)
    parser.add_argument("--warm", type=_positive, default=StartSettings.warm, help="starts with files in memory")
    parser.add_argument("--cold", type=_counted, default=StartSettings.cold, help="starts with files dropped from it")
    parser.add_argument("--processes", type=_positive, default=StartSettings.processes, help="at once, for memory")
    parser.add_argument("--seed", type=int, default=0, help="of the order of starts")
    parser.add_argument("--output", type=Path, help="the record")


def _add_lengths(steps: Steps) -> None:
    parser = _add(steps, "lengths", lengths_by_hand.lengths, "have an encoder answer requests of many lengths")
    _add_case(parser)
    for name, text in (("rounds", "fresh processes"), ("cycles", "blocks of a round"), ("requests", "of a block"),
                       ("step", "of the lengths that are padded to")):  # fmt: skip
        parser.add_argument(f"--{name}", type=_positive, default=getattr(ServingSettings, name), help=text)
    parser.add_argument("--memory-requests", type=int, default=0, help="that memory is read after")
    parser.add_argument("--seed", type=int, default=0, help="of the requests")
    parser.add_argument("--order-seed", type=int, help="of the order of blocks; without it a new one is drawn")
    parser.add_argument("--build-limit", type=float, default=ServingSettings.build_limit_s, help="seconds")
    parser.add_argument("--builds", type=Path, default=Path(".cache/lengths"), metavar="FOLDER", help="kept builds")
    _add_distribution(parser)
    parser.add_argument("--output", type=Path, help="the record")
    encoder = _add(steps, "encoder", lengths_by_hand.encoder, "write an encoder with an open axis of tokens")
    encoder.add_argument("--model", required=True)
    _add_distribution(encoder)
    encoder.add_argument("--output", type=Path, required=True, metavar="FOLDER")


def _add_distribution(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--distribution", type=Path, default=SQUAD, metavar="FILE", help="of lengths: SQuAD 1.1's")


def _add_tune(steps: Steps) -> None:
    parser = _add(steps, "tune", by_hand.tune, "search for TVM's schedules, adding to results/tuning/tvm")
    parser.add_argument("--configfile", type=Path, required=True, help="its models, and tuning: {seconds: ..}")
    parser.add_argument("--seconds", type=float, help="for each model, in place of the configuration's")
    parser.add_argument("--target", choices=["cpu", "cuda"], default="cpu")


def _add_case(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="a catalogued model; what is missing is made first")
    parser.add_argument("--path", type=Path, metavar="FILE", help="your own ONNX file, in place of a catalogued model")
    parser.add_argument("--shape", type=_shape, action="append", default=[], metavar="INPUT=1x128", help="of that file")
    parser.add_argument("--systems", type=_names, default=None, help="a,b,c; a name given twice is measured twice")
    parser.add_argument("--weights", choices=["seeded", "pretrained"], default="seeded")
    parser.add_argument("--model-folder", type=Path, help="an exported model, with --build and --environment")
    parser.add_argument("--build", type=_pair, action="append", default=[], metavar="SYSTEM=FOLDER")
    parser.add_argument("--environment", type=_pair, action="append", default=[], metavar="SYSTEM=FOLDER")
    parser.add_argument("--machine", type=Path, metavar="FILE", help="record of the machine that this must be")
    parser.add_argument("--threads", type=_positive, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--answer-limit", type=float, default=120.0, help="seconds")
    parser.add_argument("--memory-limit", type=_positive, default=8192, help="10^6 bytes")
    parser.add_argument("--precision", choices=["fp32", "bf16", "int8"], default="fp32")
    parser.add_argument("--target", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--defaults", action="store_true", help="every system as its users find it, no option set")


def _add_environment(steps: Steps) -> None:
    parser = _add(steps, "environment", commands.environment, "build a system's virtual environment")
    parser.add_argument("--requirements", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--existing", type=Path, metavar="PYTHON", help="describe this interpreter, install nothing")


def _add_export(steps: Steps) -> None:
    parser = _add(steps, "export", commands.export, "write a model as a folder (in the PyTorch environment)")
    parser.add_argument("--model", required=True)
    parser.add_argument("--weights", choices=["seeded", "pretrained"], default="seeded")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    parser.add_argument("--path", type=Path, help="your own ONNX file")
    parser.add_argument("--shape", type=_shape, action="append", default=[], metavar="INPUT=1x128")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")


def _add_build(steps: Steps) -> None:
    parser = _add(steps, "build", commands.build, "build a model with one system")
    parser.add_argument("--system", required=True)
    parser.add_argument("--environment", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--model-folder", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--threads", type=_positive, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--precision", choices=["fp32", "bf16", "int8"], default="fp32")
    parser.add_argument("--target", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--defaults", action="store_true", help="as the system's users find it, no option set")
    parser.add_argument("--time-limit", type=float, default=600.0, help="seconds")
    parser.add_argument("--memory-limit", type=_positive, default=8192, help="10^6 bytes")


def _names(text: str) -> list[str]:
    return [name.strip() for name in re.split(r",(?![^\[]*\])", text) if name.strip()]


def _pair(text: str) -> tuple[str, Path]:
    found = re.fullmatch(r"([^=\[]+(?:\[[^\]]*\])?)=(.+)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER")
    return found[1], Path(found[2])


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, sizes = text.rpartition("=")
    try:
        shape = tuple(int(size) for size in sizes.split("x"))
    except ValueError:
        shape = ()
    if not equals or not shape or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not INPUT=SIZExSIZE, such as input_ids=1x128")
    return name, shape


def _lengths(text: str) -> list[int]:
    return [_positive(part.strip()) for part in text.split(",")]


def _counted(text: str) -> int:
    return 0 if text == "0" else _positive(text)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one sub-command; 0 when done, 2 on bad input, 1 on what trying again, or room on the disk, may cure. The
    entry point of mononn-bench.
    """
    if os.environ.pop("MONONN_DIE_WITH_PARENT", ""):
        die_with_parent()
    options = make_parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except BenchError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print(DiskFullError(error.filename or Path.cwd()), file=sys.stderr)
        return DiskFullError.exit_status


if __name__ == "__main__":
    raise SystemExit(main())
