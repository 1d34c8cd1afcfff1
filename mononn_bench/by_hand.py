"""`mononn-bench measure`: one case, from folders that stand, or by a model's name, making first what is missing."""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from mononn_bench.bricks.case import Entrant, brick_case
from mononn_bench.bricks.measure import Ground
from mononn_bench.codec import read_record, write_record, write_text
from mononn_bench.errors import BadOptionError, BenchError
from mononn_bench.files import import_path
from mononn_bench.measure.build import RECORD, build_system, read_environment
from mononn_bench.measure.case import measure_case
from mononn_bench.measure.exclusive import exclusive_machine
from mononn_bench.measure.process import Limits
from mononn_bench.measure.runner import Contestant, Course
from mononn_bench.models.spec import file_options
from mononn_bench.models.zoo import get_model
from mononn_bench.profile.case import profile_case
from mononn_bench.profile.timeline import timeline
from mononn_bench.profiled import CaseProfile
from mononn_bench.record import BuildRecord, CaseRecord, ModelRecord, Settings
from mononn_bench.systems import OURS, REAL, built_as, get_system
from mononn_bench.systems.base import INT8
from mononn_bench.systems.environment import adopt_environment, make_environment
from mononn_bench.workflow.identity import digest, source_id
from mononn_bench.workflow.machine import name_here, require_builds, require_machine

if TYPE_CHECKING:
    from mononn_bench.workflow.plan import Plan

TVM = "tvm"
Folders = Mapping[str, Path]


def measure(options: Namespace) -> int:
    """Measure one case; 0 even where a system fails, which the record says."""
    course, contestants = case_of(options, twin=True)
    name = course.model_folder.name
    output: Path = options.output or Path(".cache/by-hand") / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{name}.json"
    settings = replace(
        course.settings, rounds=options.rounds, cycles=options.cycles, block_s=options.block_seconds,
        seed=options.seed, cold=options.cold, starts=options.starts,
        order_seed=secrets.randbits(32) if options.order_seed is None else options.order_seed,
    )  # fmt: skip
    course = replace(course, settings=settings, scratch=output.absolute().parent / f".{output.stem}.scratch")
    record = measure_case(contestants, course, machine_name=machine_of(options), command="", say=tell)
    record = replace(record, command=_command(record) + own_file(options))
    write_record(record, output)
    print(summary(record))
    print(f"\n{output}")
    return 0


def profile(options: Namespace) -> int:
    """Profile one case into a folder; 0 even where a profiler fails, which the record says."""
    record, _ = _profiled(options, options.output)
    for row in record.profiles:
        hottest = ", ".join(f"{o.kind} {o.seconds * 1e3:.2f} ms" for o in row.operators[:4])
        print(f"{row.system:18}{row.tool or 'none':24}{row.status}: {row.reason or hottest}")
    return 0


def explain(options: Namespace) -> int:
    """Say where ours gains and loses against other systems of a case, from a profile that is kept or made now."""
    from mononn_bench.report.explain import NotNamedError, explain_grid, rivals
    from mononn_bench.report.grids import markdown

    if options.profile:
        record, kept = read_record(CaseProfile, options.profile), options.profile
    else:
        record, kept = _profiled(options, options.output or Path(".cache/by-hand/profiles"))
    named = [name for name in options.systems or () if name != OURS] or rivals(record)
    if not named:
        raise NotNamedError(f"{kept} has ours beside no other system whose steps say what they compute: profile both.")
    told, untold = [], []
    for name in named:
        try:
            told.append(markdown(explain_grid(record, name)))
        except NotNamedError as error:
            untold.append(str(error))
    if not told:
        raise NotNamedError(f"{' '.join(untold)} The profile is kept: {kept}.")
    print("\n".join([*told, *untold]))
    print(kept)
    return 0


def _profiled(options: Namespace, output: Path) -> tuple[CaseProfile, Path]:
    """A case's profile, and the file that it was written to, beside its timeline."""
    from mononn_bench.analysis.table import case_name

    course, contestants = case_of(options, twin=False)
    course = replace(course, scratch=output.absolute() / f".{course.model_folder.name}.scratch")
    model = read_record(ModelRecord, course.model_folder / "model.json")
    systems = ",".join(contestant.label for contestant in contestants)
    command = f"mononn-bench profile --model {name_of(model)} --systems {shlex.quote(systems)} --output profiles"
    command += precision_option(course.precision) + own_file(options)
    record, spans = profile_case(contestants, course, machine_name=machine_of(options), command=command, say=tell)
    case = case_name(model, course.precision, course.target)
    write_record(record, output / f"{case}.json")
    write_text(output / f"{case}.perfetto.json", timeline(spans))
    return record, output / f"{case}.json"


def bricks(options: Namespace) -> int:
    """Cut one model into bricks and measure those that the database lacks; 0 even where a system fails."""
    from mononn_bench.report.bricks import brick_grids
    from mononn_bench.report.grids import markdown
    from mononn_bench.workflow.plan import BRICK_SOURCES, environment_of

    if options.target != "cpu":
        raise BadOptionError(f"Bricks are measured on the CPU, not on {options.target}: leave --target out.")
    if options.defaults:
        raise BadOptionError("Bricks are measured with every system's options set: leave --defaults out.")
    folder, environments = options.model_folder, dict(options.environment)
    if folder is None:
        plan, name = plan_by_name(options)
        prepare_environments(plan)
        _prepare_model(plan, name, reference=False)
        folder = next(iter((plan.quantised or plan.models).values())).folder
        target = options.target
        environments = {s: plan.environments[environment_of(s, target)].folder for s in plan.systems(target)}
    cores = tuple(sorted(os.sched_getaffinity(0))[: options.threads])
    machine = machine_of(options)
    output: Path = options.output or Path(".cache/by-hand/bricks") / f"{folder.name}.json"
    scratch = output.absolute().parent / f".{output.stem}.scratch"
    model = read_record(ModelRecord, folder / "model.json")
    lengths = ",".join(map(str, options.lengths))
    command = f"mononn-bench bricks --model {name_of(model)} --systems {shlex.quote(','.join(environments))}"
    known = cores, options.precision, options.database, BRICK_SOURCES
    record = brick_case(
        folder.absolute(),
        [entrant_of(name, where, *known) for name, where in environments.items()],
        options.lengths,
        Ground(cores, Limits(options.answer_limit, options.memory_limit), scratch),
        precision=options.precision,
        machine_name=machine,
        database=options.database / machine,
        command=f"{command} --lengths {lengths}{precision_option(options.precision)}{own_file(options)}",
        say=tell,
    )
    write_record(record, output)
    print("\n".join(markdown(grid) for grid in brick_grids([record])))
    print(output)
    return 0


def entrant_of(
    system: str, environment: Path, cores: Sequence[int], precision: str, database: Path, by: Sequence[Path] = ()
) -> Entrant:
    """A system in its environment, with what stands for the times that it measures `by` those sources."""
    from mononn_bench.workflow.plan import adapter_identity

    found = read_environment(environment)
    made_by = adapter_identity(get_system(system), database), source_id(by, database)
    identity = digest(made_by, sorted(found.packages.items()), found.python, list(cores), precision)
    return Entrant(system, Path(found.interpreter), identity)


def tune(options: Namespace) -> int:
    """Search for TVM's schedules of a configuration's models, alone on this machine; the tuner's exit status."""
    from mononn_bench.workflow.config import read_config
    from mononn_bench.workflow.plan import environment_of, make_plan

    plan = make_plan({**read_config(options.configfile), "systems": [TVM], "targets": [options.target]})
    prepare_environments(plan)
    for name in plan.models:
        _prepare_model(plan, name)
    python = read_environment(plan.environments[environment_of(TVM, options.target)].folder).interpreter
    command = [python, "-m", "mononn_bench.systems.tvm_tuning", *(str(m.folder) for m in plan.models.values())]
    command += ["--seconds", str(options.seconds or plan.config.tuning_seconds), "--target", options.target]
    command += ["--threads", str(plan.config.threads), "--work", str(plan.cache / "tuning" / TVM)]
    with exclusive_machine(tell):
        return subprocess.run(command, env=_variables(plan), check=False).returncode


def case_of(options: Namespace, *, twin: bool) -> tuple[Course, list[Contestant]]:
    """What stands, or is made first, for the options of `measure` and `profile`."""
    builds, environments = dict(options.build), dict(options.environment)
    folder: Path | None = options.model_folder
    if folder is None:
        folder, builds, environments = _prepare(options)
    names = (options.systems if options.target == "cpu" or options.model_folder else None) or list(builds)
    folder = folder.absolute()
    cores = tuple(sorted(os.sched_getaffinity(0))[: options.threads])
    course = Course(
        model_folder=folder,
        reference=folder / "reference.npz",
        precision=options.precision,
        target=options.target,
        settings=Settings(
            threads=len(cores), answer_limit_s=options.answer_limit, memory_limit_mb=options.memory_limit
        ),
        cores=cores,
        scratch=folder,
    )
    contestants = make_contestants(with_twin(names) if twin else names, builds, environments)
    model = read_record(ModelRecord, folder / "model.json")
    meant = {"model_digest": model.digest, "precision": options.precision, "target": options.target}
    require_builds([(c.build_folder, c.build) for c in contestants], {"threads": len(cores), **meant})
    if len(views := {contestant.build.defaults for contestant in contestants}) > 1:
        raise BadOptionError("Some of these builds have options set, others none: build all with --defaults, or none.")
    return replace(course, defaults=True in views), contestants


def machine_of(options: Namespace) -> str:
    """The name that results of this machine lie under. OtherMachineError where its record is another's."""
    if options.machine is None:
        return name_here(min(options.threads, len(os.sched_getaffinity(0))), [options.target])
    return require_machine(options.machine, options.threads, options.target).machine.name


def name_of(model: ModelRecord) -> str:
    """A case's name: the model's, and its batch where that is not 1."""
    return model.name if model.batch == 1 else f"{model.name}-b{model.batch}"


def with_twin(names: Sequence[str]) -> list[str]:
    """Our own system runs twice in every case: what the two differ by is what no difference looks like."""
    doubled = list(names)
    if doubled.count(OURS) == 1:
        doubled.insert(doubled.index(OURS) + 1, OURS)
    return doubled


def make_contestants(names: Sequence[str], builds: Folders, environments: Folders) -> list[Contestant]:
    """One contestant a name, with its build's record; the second of a name is labelled name@2."""
    seen: Counter[str] = Counter()
    contestants = []
    for name in names:
        get_system(name)
        if name not in builds or name not in environments:
            raise BadOptionError(f"{name} has no build or no environment here: name both with --build, --environment.")
        seen[name] += 1
        label = name if seen[name] == 1 else f"{name}@{seen[name]}"
        build = read_record(BuildRecord, builds[name] / RECORD)
        python = Path(read_environment(environments[name]).interpreter)
        contestants.append(Contestant(label, name, python, build, builds[name].absolute()))
    return contestants


def summary(record: CaseRecord) -> str:
    """A small table for the terminal: status, median over blocks, and the ratio to the first system, without
    intervals.
    """
    medians = {}
    for system in record.systems:
        blocks = [b for r in record.rounds for c in r.cycles for b in c.blocks if b.accepted]
        values = [b.value_s for b in blocks if b.system == system.label]
        medians[system.label] = median(values) * 1e3 if values else None
    first = medians[record.systems[0].label]
    lines = [f"{record.model.name}: {len(record.rounds)} rounds, {record.wall_s:.0f} s"]
    for system in record.systems:
        value = medians[system.label]
        if value is None or system.status != "ok":
            lines.append(f"{system.label:18}{system.status}: {system.reason}")
            continue
        ratio = f"{value / first:8.3f} x" if first else ""
        lines.append(f"{system.label:18}{value:12.4f} ms{ratio}")
    flags = sorted({flag for r in record.rounds for flag in r.flags})
    return "\n".join([*lines, *flags])


def _prepare(options: Namespace) -> tuple[Path, dict[str, Path], dict[str, Path]]:
    """Make environments, model, reference and builds that are missing, in the workflow's own folders."""
    plan, model = plan_by_name(options)
    prepare_environments(plan)
    _prepare_model(plan, model)
    limits = Limits(plan.config.limits.build_seconds, plan.config.limits.memory_mb)
    made = next(iter(plan.groups.values()), ())
    if not made:
        raise BadOptionError(f"None of these systems runs on {options.target}: {', '.join(plan.config.systems)}.")
    for build in made:
        if build.record.exists():
            continue
        tell(f"building {model} with {built_as(build.system)}")
        build_system(
            built_as(build.system),
            environment=build.environment.folder,
            model_folder=build.model.folder.absolute(),
            output=build.folder.absolute(),
            threads=options.threads,
            precision=options.precision,
            target=options.target,
            limits=limits,
            defaults=options.defaults,
        )
    builds = {b.system: b.folder for b in made}
    environments = {b.system: b.environment.folder for b in made}
    return made[0].model.folder, builds, environments


def plan_by_name(options: Namespace) -> tuple[Plan, str]:
    """The plan of the one model that the options name, and its name; a quantised file sets the precision."""
    from mononn_bench.workflow.plan import make_plan

    if not options.model and not options.path:
        raise BadOptionError(
            "Name what to measure: --model M or --path FILE, with --systems a,b, or --model-folder with --build each."
        )
    model = options.model or options.path.stem
    if options.path:
        facts: dict[str, object] = {"path": str(options.path), "shapes": {n: list(s) for n, s in options.shape}}
    else:
        get_model(model)
        facts = {"weights": options.weights}
    names = list(dict.fromkeys(options.systems or [system.name for system in REAL]))
    chosen = {"systems": names, "threads": options.threads, "targets": [options.target], "defaults": options.defaults}
    chosen["precisions"] = [options.precision]
    chosen["limits"] = {"answer_seconds": options.answer_limit, "memory_mb": options.memory_limit}
    plan = make_plan({"models": {model: facts}, **chosen})
    if plan.given_quantised:
        options.precision = INT8
    return plan, model


def prepare_environments(plan: Plan) -> None:
    """Build or adopt every environment of a plan."""
    for environment in plan.environments.values():
        tell(f"environment {environment.name}")
        if environment.existing:
            adopt_environment(environment.python, environment.requirements, environment.folder)
        else:
            make_environment(environment.requirements, environment.folder)


def _prepare_model(plan: Plan, name: str, *, reference: bool = True) -> None:
    model = plan.models[name]
    prepare_step(plan, plan.EXPORTER, f"export {model.export_options} {_to(model.folder)}", name, model.record)
    if reference:
        prepare_step(plan, plan.EXPORTER, f"reference {model.reference_options}", name, model.reference)
    if name in plan.quantised:
        made = plan.quantised[name]
        quantise = f"quantise {shlex.join(['--model-folder', str(model.folder)])} {_to(made.folder)}"
        prepare_step(plan, plan.QUANTISER, quantise, name, made.record)
        if reference:
            prepare_step(plan, plan.EXPORTER, f"reference {made.reference_options}", name, made.reference)


def _to(folder: Path) -> str:
    return shlex.join(["--output", str(folder)])


def _variables(plan: Plan) -> dict[str, str]:
    """Of a process that imports our packages in another environment."""
    return {**os.environ, "PYTHONPATH": str(import_path(plan.cache))}


def prepare_step(plan: Plan, environment: str, options: str, name: str, result: Path) -> None:
    """Run a sub-command in one of the plan's environments, unless its `result` stands."""
    if result.exists():
        return
    python = read_environment(plan.environments[environment].folder).interpreter
    step, *rest = shlex.split(options)
    tell(f"{step} {name}")
    command = [python, "-m", "mononn_bench.cli", step, *rest]
    if subprocess.run(command, env=_variables(plan), check=False).returncode != 0:
        raise BenchError(f"The step '{step}' for {name} failed; its message stands above.")


def _command(record: CaseRecord) -> str:
    """The command that measures this one case again, from its model's name."""
    settings = record.settings
    systems = shlex.quote(",".join(system.system for system in record.systems))
    numbers = f"--rounds {settings.rounds} --cycles {settings.cycles} --block-seconds {settings.block_s}"
    numbers += f" --seed {settings.seed} --order-seed {settings.order_seed} --starts {settings.starts}"
    numbers += f" --threads {settings.threads}"
    weights = " --weights pretrained" if record.model.weights == "pretrained" else ""
    cold = " --cold" if settings.cold else ""
    cold += " --defaults" if record.view == "defaults" else ""
    cold += precision_option(record.precision) + ("" if record.target == "cpu" else f" --target {record.target}")
    return f"mononn-bench measure --model {name_of(record.model)} --systems {systems} {numbers}{cold}{weights}"


def own_file(options: Namespace) -> str:
    """The options that name a user's file and its shapes; none of a catalogued model."""
    return " " + shlex.join(file_options(str(options.path), dict(options.shape))) if options.path else ""


def precision_option(precision: str) -> str:
    return "" if precision == "fp32" else f" --precision {precision}"


def tell(text: str) -> None:
    """Say at once how far a command is."""
    print(text, flush=True)
