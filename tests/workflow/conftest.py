"""A copy of the checkout in which the whole workflow has run once, tiny, over three real systems."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CARRIED = ("Snakefile", "workflows", "profiles", "envs", "mononn_bench", "mononn_core")


class Checkout:
    """A copy of the checkout to run the workflow in, and to edit."""

    def __init__(self, folder):
        self.folder = folder
        for name in CARRIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name)  # with what is compiled of it
            else:
                shutil.copy2(source, folder / name)

    @property
    def environment(self):
        return {**os.environ, "PYTHONPATH": str(self.folder)}

    def start(self, *arguments, module="snakemake", **options):
        command = [sys.executable, "-m", module, "--cores", "all", *map(str, arguments)]
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, text=True, **options)

    def run(self, *arguments, module="snakemake"):
        process = self.start(*arguments, module=module, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        output, errors = process.communicate(timeout=1200)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def planned(self, config, *more):
        """How many jobs of each rule a run would have now."""
        result = self.run("--configfile", config, "--dry-run", "--quiet", "rules", *more)
        assert result.returncode == 0, result.stderr
        found = re.findall(r"^(\w+) +(\d+)$", (result.stdout + result.stderr).partition("Job stats")[2], re.MULTILINE)
        return {rule: int(count) for rule, count in found if rule not in ("all", "total")}


@pytest.fixture
def checkout(tmp_path):
    """A fresh copy in which nothing has run."""
    return Checkout(tmp_path)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A copy in which `make bench`'s driver has run config.test.yaml, and what it printed."""
    checkout = Checkout(tmp_path_factory.mktemp("workflow"))
    result = checkout.run("--configfile", "workflows/config.test.yaml", module="mononn_bench.workflow.run")
    logs = "\n".join(p.read_text()[-2000:] for p in checkout.folder.glob(".cache/logs/**/*.txt"))
    assert result.returncode == 0, f"{result.stdout[-3000:]}\n{result.stderr[-3000:]}\n{logs}"
    checkout.output = result.stdout
    return checkout
