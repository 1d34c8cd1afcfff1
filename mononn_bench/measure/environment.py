"""What the machine tells of itself (Linux: /proc and /sys); `not exposed` where it does not."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from mononn_bench.record import NOT_EXPOSED, Machine

CPU = Path("/sys/devices/system/cpu/cpu0")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
VECTORS = ("amx", "asimd", "avx", "bmi", "fma", "sse", "sve")
"""How the flags of vector extensions begin."""


def describe_machine(name: str = "") -> Machine:
    """The machine as this process may use it, under the name that its results lie under."""
    info = _cpu_info()
    return Machine(
        name=name,
        cpu=info.get("model name", platform.processor() or platform.machine()),
        architecture=platform.machine(),
        flags=tuple(sorted(info.get("flags", info.get("Features", "")).split())),
        cores=len(os.sched_getaffinity(0)),
        caches_kib=cache_sizes_kib(),
        memory_mb=memory_bytes() // 1_000_000,
        kernel=platform.release(),
        libc="-".join(platform.libc_ver()),
        hypervisor=_hypervisor(info),
        clock=_clock(),
        governor=_read(CPU / "cpufreq" / "scaling_governor"),
        huge_pages=_chosen(_read(HUGE_PAGES)),
    )


def processor_name(machine: Machine) -> str:
    """A machine's processor, with a short hash of all that code generated for it depends on."""
    vectors = [flag for flag in machine.flags if flag.startswith(VECTORS)]
    identity = repr((machine.architecture, sorted(machine.caches_kib.items()), vectors))
    return f"{machine.cpu} ({hashlib.sha256(identity.encode()).hexdigest()[:6]})"


def memory_bytes() -> int:
    """Memory this process may use: the machine's, or its control group's limit if lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read(Path("/sys/fs/cgroup/memory.max"))
    return min(total, int(limit)) if limit.isdigit() else total


def available_bytes() -> int:
    """Memory that can be had now without swapping."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return min(int(lines["MemAvailable"].split()[0]) * 1024, memory_bytes())


def cache_sizes_kib() -> dict[str, int]:
    """Data and unified caches of core 0 by level, e.g. {"L1": 32, "L2": 1024, "L3": 32768}; empty if not exposed."""
    sizes = {}
    for index in sorted((CPU / "cache").glob("index*")):
        if _read(index / "type") in ("Data", "Unified"):
            size = _read(index / "size")
            unit = {"K": 1, "M": 1024}.get(size[-1:], 0)
            sizes[f"L{_read(index / 'level')}"] = int(size[:-1]) * unit if unit else 0
    return sizes


def _cpu_info() -> Mapping[str, str]:
    """The first processor's lines of /proc/cpuinfo."""
    first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _hypervisor(info: Mapping[str, str]) -> str:
    if "hypervisor" not in info.get("flags", ""):
        return "none"
    vendor = _read(Path("/sys/class/dmi/id/sys_vendor"))
    return "present" if vendor == NOT_EXPOSED else vendor


def _clock() -> str:
    kilohertz = _read(CPU / "cpufreq" / "scaling_cur_freq")
    return f"{int(kilohertz) / 1e6:.2f} GHz" if kilohertz.isdigit() else NOT_EXPOSED


def _chosen(modes: str) -> str:
    """The word in brackets of a line such as `always [madvise] never`; the line itself where there is none."""
    found = re.search(r"\[(\w+)\]", modes)
    return found[1] if found else modes


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return NOT_EXPOSED
