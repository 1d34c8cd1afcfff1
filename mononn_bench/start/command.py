"""`mononn-bench start`: one model's first answers, from folders that stand, or by its name, making what is missing."""

from __future__ import annotations

import shlex
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from mononn_bench.by_hand import case_of, machine_of, name_of, own_file, precision_option, tell
from mononn_bench.codec import read_record, write_record
from mononn_bench.record import ModelRecord
from mononn_bench.start.case import start_case
from mononn_bench.started import StartSettings


def start(options: Namespace) -> int:
    """Measure one model's first answers; 0 even where a system fails, which the record says."""
    from mononn_bench.report.grids import markdown
    from mononn_bench.report.start import start_grids

    course, contestants = case_of(options, twin=False)
    output: Path = options.output or Path(".cache/by-hand/start") / f"{course.model_folder.name}.json"
    course = replace(course, scratch=output.absolute().parent / f".{output.stem}.scratch")
    settings = StartSettings(options.warm, options.cold, options.processes, course.settings.threads, options.seed)
    model = read_record(ModelRecord, course.model_folder / "model.json")
    command = f"mononn-bench start --model {name_of(model)}"
    command += f" --systems {shlex.quote(','.join(contestant.label for contestant in contestants))}"
    command += f" --warm {options.warm} --cold {options.cold} --processes {options.processes} --seed {options.seed}"
    machine = machine_of(options)
    record = start_case(
        contestants, course, settings, machine_name=machine, say=tell,
        command=f"{command} --threads {course.settings.threads}{precision_option(course.precision)}{own_file(options)}",
    )  # fmt: skip
    write_record(record, output)
    print("\n".join(markdown(grid) for grid in start_grids([record])))
    print(output)
    return 0
