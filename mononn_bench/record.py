"""The records of the suite: what was built, checked and measured, on what, with which command. Immutable once written.

Times are seconds (`_s`), milliseconds (`_ms`), microseconds (`_us`) or integer nanoseconds (`_ns`), as the name
says; memory is in 10^6 bytes (`_mb`). A field that is None was not measured. Read and write with `read_record` and
`write_record` (codec.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mononn_bench.codec import read_record, write_record

__all__ = ["SCHEMA_VERSION", "read_record", "write_record"]

SCHEMA_VERSION = 1

Status = Literal["ok", "unavailable", "failed", "incorrect", "timeout", "undertuned", "disputed"]
Weights = Literal["seeded", "pretrained", "user"]
NOT_EXPOSED = "not exposed"


@dataclass(frozen=True)
class Machine:
    """What the machine tells of itself; `NOT_EXPOSED` where it does not. `name` is its folder under results/.

    `huge_pages` is the kernel's mode of transparent huge pages: always, madvise (on request) or never.
    """

    name: str
    cpu: str
    architecture: str
    flags: tuple[str, ...]
    cores: int
    caches_kib: Mapping[str, int]
    memory_mb: int
    kernel: str
    libc: str
    hypervisor: str
    clock: str
    governor: str
    huge_pages: str = NOT_EXPOSED


@dataclass(frozen=True)
class EnvironmentRecord:
    """environment.json: the interpreter of an environment and the packages it holds, or why it cannot be had."""

    interpreter: str
    status: Literal["ok", "unavailable"]
    reason: str
    requirements: tuple[str, ...]
    python: str
    packages: Mapping[str, str]
    seconds: float
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Tensor:
    """A graph input or output: name, NumPy dtype name, static shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Quantisation:
    """How an 8-bit file was made: the tool, its versions and options, the seed and number of the input sets that it was
    calibrated with, and the digest of the file before.
    """

    tool: str
    versions: Mapping[str, str]
    options: Mapping[str, str]
    calibration_seed: int
    calibration_sets: int
    unquantised_digest: str


@dataclass(frozen=True)
class ModelRecord:
    """model.json beside model.onnx.

    `digest` is the SHA-256 of model.onnx (and of its external data). `flops` counts the direct algorithm of products
    and convolutions, two per multiply-add; `compulsory_bytes` is weights + inputs + outputs, each read or written once.
    `weights_digest` is the SHA-256 of the published file that pretrained weights come from, `quantisation` how an 8-bit
    file was made of another, `stored` "fp16" or "bf16" where most weights of the file are of that type.
    """

    name: str
    batch: int
    full_size: bool
    weights: Weights
    seed: int
    source: str
    digest: str
    opset: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    flops: int
    weight_bytes: int
    compulsory_bytes: int
    versions: Mapping[str, str]
    weights_digest: str = ""
    quantisation: Quantisation | None = None
    stored: str = ""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class ReferenceRecord:
    """reference.json: where reference.npz came from, with `<set>/in/<name>` and `<set>/out/<name>` (float64), of an
    8-bit file also `<set>/unquantised/<name>`. `fp32_errors` has the relative L2 error that the same implementation
    makes in float32, where known, by output (of an 8-bit file, in float64 of numbers that are moved before they are
    quantised); `quantisation_errors`, of an 8-bit file, how far its own answers are from
    the unquantised model's.
    """

    model_digest: str
    method: str
    family: str
    sets: int
    seed: int
    digest: str
    versions: Mapping[str, str]
    fp32_errors: Mapping[str, float] = field(default_factory=dict)
    quantisation_errors: Mapping[str, float] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Option:
    """An option an adapter sets, and the vendor's page that recommends it."""

    name: str
    value: str
    source: str


@dataclass(frozen=True)
class Tuning:
    """What a system's search spent, its shipped or cached database's past seconds included."""

    seconds: float
    cores: int
    trials: int


@dataclass(frozen=True)
class BuildRecord:
    """build.json: a system's build of one model (or why there is none). `artifact_mb` counts all files it left.

    `version` is what the library says of itself; `versions` also names every package of its environment; `processor`
    is what it was built on (`processor_name`), empty where that was not kept.
    """

    system: str
    model: str
    model_digest: str
    precision: str
    target: str
    threads: int
    status: Status
    reason: str
    version: str
    versions: Mapping[str, str]
    options: tuple[Option, ...]
    build_s: float | None
    artifact_mb: float | None
    peak_mb: float | None
    tuning: Tuning | None
    details: Mapping[str, Any]
    defaults: bool = False
    processor: str = ""
    schema_version: int = SCHEMA_VERSION

    @property
    def stands(self) -> bool:
        """Whether there is something to run: an undertuned build is measured too, unless it says not to."""
        return self.status == "ok" or (self.status == "undertuned" and not self.details.get("left_out"))


@dataclass(frozen=True)
class Disturbance:
    """What else happened while a block ran. `others_share`: CPU time of all other processes over the block's time."""

    elapsed_s: float
    others_s: float
    others_share: float
    major_faults: int
    swapped_pages: int


@dataclass(frozen=True)
class Block:
    """One block of one system. `value_s` is the median of all its timed runs, `samples_ns` up to 200 of them, evenly
    taken.

    `accepted` is False for a block that was repeated; `undisturbed` is False where the last repeat was disturbed too.
    On a GPU `device_s` is the median of runs between two events of a stream that was held up until they were enqueued,
    `back_to_back_s` a run's share of many that were enqueued one after another; None on a CPU.
    """

    system: str
    attempt: int
    accepted: bool
    undisturbed: bool
    value_s: float
    p90_s: float
    runs: int
    warm_up_runs: int
    samples_ns: tuple[int, ...]
    disturbance: Disturbance
    device_s: float | None = None
    back_to_back_s: float | None = None


@dataclass(frozen=True)
class SentinelReading:
    """The fixed loops of one cycle: fp32 multiply-add rate from registers, and read bandwidths, on all cores of the
    case. `undisturbed` is False where others used the machine in its last repeat too: no ceiling comes of it.
    """

    flops_per_s: float
    cache_bytes_per_s: float
    dram_bytes_per_s: float
    undisturbed: bool = True


@dataclass(frozen=True)
class Cycle:
    """One block of each system, in `order`; repeated blocks stand before the one that replaced them."""

    index: int
    order: tuple[str, ...]
    blocks: tuple[Block, ...]
    sentinel: SentinelReading | None


@dataclass(frozen=True)
class Round:
    """Fresh workers of `systems`. Normally one group holds all; in pairs mode each group is ours and one rival.

    `flags` names drift over 5 % and steal over 1 %; `drift` is (largest - smallest) / median of the sentinel's rate.
    """

    index: int
    group: int
    systems: tuple[str, ...]
    cycles: tuple[Cycle, ...]
    drift: float | None
    steal: float | None
    flags: tuple[str, ...]


@dataclass(frozen=True)
class AccuracyCheck:
    """One output of one input set against the reference, before the first or after the last timed block. `limit` is of
    `rel_l2`. In 16 bits `max_abs` has one too; in 16 and 8 bits, of `top1_clear` places `top1_different` have another
    largest value. `unquantised_l2` is the error against the model that an 8-bit file was made of.
    """

    output: str
    input_set: int
    when: Literal["before", "after"]
    rel_l2: float | None
    max_abs: float | None
    limit: float
    passed: bool
    max_abs_limit: float | None = None
    top1_clear: int | None = None
    top1_different: int | None = None
    unquantised_l2: float | None = None


@dataclass(frozen=True)
class Start:
    """A load and a first run in a fresh process, and the memory of the process then, by the kernel's own counters.

    `files` says whether the page cache held the build's files before ("neither": that was not seen to). `peak_mb` is
    the largest resident set during load and first runs, above the one after import (VmHWM, VmRSS); `rest_mb` the
    proportional set size after them, above the one after import; `huge_mb` what of it all lies in transparent huge
    pages (AnonHugePages).
    """

    files: Literal["warm", "cold", "neither"]
    load_ms: float
    first_run_ms: float
    peak_mb: float
    rest_mb: float
    huge_mb: float


@dataclass(frozen=True)
class SystemResult:
    """One cell of the case. `label` is unique in it: a system measured twice is `name` and `name@2`.

    `slow` marks over 2 s a run (raw times only). `algorithm` names what saves arithmetic, or is empty where the direct
    algorithms are used. `load_ms` and `first_run_ms` are medians over `starts` with warm files, `peak_mb` over all. In
    records without starts they are of rounds in a fixed order, and `peak_mb` was polled. `computes` is the precision it
    computes in, empty in records that did not say.
    """

    label: str
    system: str
    status: Status
    reason: str
    version: str
    versions: Mapping[str, str]
    options: tuple[Option, ...]
    tuning: Tuning | None
    build_s: float | None
    artifact_mb: float | None
    load_ms: float | None
    first_run_ms: float | None
    peak_mb: float | None
    identity_us: float | None
    slow: bool
    accuracy: tuple[AccuracyCheck, ...]
    algorithm: str = ""
    starts: tuple[Start, ...] = ()
    computes: str = ""


@dataclass(frozen=True)
class Settings:
    """How a case is measured (docs/measuring.md explains each). `starts`: of each system with warm and with cold files.
    `seed`, which tells repetitions apart, and `order_seed`, drawn anew for each run, make the order of blocks and of
    starts.
    """

    rounds: int = 6
    cycles: int = 3
    block_s: float = 0.2
    block_runs: int = 3
    warm_up_s: float = 0.05
    warm_up_runs: int = 2
    repeats: int = 3
    disturbed_share: float = 0.02
    slow_s: float = 2.0
    seed: int = 0
    cold: bool = False
    threads: int = 1
    answer_limit_s: float = 120.0
    memory_limit_mb: int = 8192
    starts: int = 0
    order_seed: int = 0


@dataclass(frozen=True)
class Ceilings:
    """The sentinel's best undisturbed readings, and how it was built: `c` (compiled) or `numpy` (a lower bound)."""

    method: str
    flops_per_s: float
    cache_bytes_per_s: float
    dram_bytes_per_s: float
    cache_bytes_per_core: int
    last_level_cache_bytes: int


@dataclass(frozen=True)
class CaseRecord:
    """A case measured whole: every system's rounds side by side, and everything needed to judge and to repeat it.

    `state` of the caches before each run: "warm"; "cold" where they were emptied; "as warm" where that was asked for
    but weights and arena are at least 4 times the last-level cache, so that it would change nothing. `view`: systems
    as experts set them, or each with its own defaults; the two are never in one table.
    """

    run_id: str
    created: str
    model: ModelRecord
    precision: str
    target: str
    machine: Machine
    cores: tuple[int, ...]
    settings: Settings
    pairs_mode: bool
    systems: tuple[SystemResult, ...]
    rounds: tuple[Round, ...]
    ceilings: Ceilings | None
    reference: ReferenceRecord
    command: str
    source_revision: str
    versions: Mapping[str, str]
    wall_s: float
    state: Literal["warm", "cold", "as warm"] = "warm"
    view: Literal["experts", "defaults"] = "experts"
    schema_version: int = SCHEMA_VERSION
