"""What changes an identity, and what does not."""

import os

import onnx
import pytest

from mononn_bench.models.spec import data_files
from mononn_bench.workflow import identity
from mononn_bench.workflow.identity import adapter_sources, file_digest, machine_name, requirements_id, source_id
from mononn_bench.workflow.plan import make_plan
from tests.bench.conftest import linear_model

PYTHON = '"""Words."""\n\n\ndef f(a):\n    """More words."""\n    return a + 1  # add\n'
CPP = 'int f(int a) {\n  return a + 1; // add\n}\nconst char *s = "// not a comment";\n'
CPUINFO = (
    "processor\t: 0\nmodel name\t: AMD EPYC 9R14 96-Core Processor\nflags\t\t: fpu avx2\ncache size\t: 1024 KB\n\n"
)


@pytest.mark.parametrize(
    ("name", "before", "after", "same"),
    [
        ("a.py", PYTHON, PYTHON.replace("# add", "# to add"), True),
        ("a.py", PYTHON, PYTHON.replace("Words", "Other words"), True),
        ("a.py", PYTHON, PYTHON.replace("\n\n\n", "\n\n\n\n"), True),
        ("a.py", PYTHON, PYTHON + '\nGAIN = 2\n"""Of branches."""\n', False),
        ("a.py", PYTHON + "\nGAIN = 2\n", PYTHON + '\nGAIN = 2\n"""Of branches."""\n', True),
        ("a.py", PYTHON, PYTHON.replace("a + 1", "a + 2"), False),
        ("a.py", PYTHON, PYTHON.replace("def f(a)", "def f(a=1)"), False),
        ("a.cpp", CPP, CPP.replace("// add", "/* to\nadd */"), True),
        ("a.cpp", CPP, CPP.replace("a + 1", "a + 2"), False),
        ("a.cpp", CPP, CPP.replace("// not", "// surely not"), False),
    ],
)
def test_comments_layout_and_docstrings_do_not_count(tmp_path, name, before, after, same):
    assert before != after
    path = tmp_path / name
    path.write_text(before)
    first = source_id([tmp_path], tmp_path)
    path.write_text(after)
    assert (source_id([tmp_path], tmp_path) == first) is same


def test_a_file_more_is_another_source(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    first = source_id([tmp_path], tmp_path)
    (tmp_path / "b.py").write_text("")
    assert source_id([tmp_path], tmp_path) != first


def test_sources_that_are_known_are_not_parsed_again(tmp_path, monkeypatch):
    path, cache = tmp_path / "a.py", tmp_path / "cache"
    path.write_text(PYTHON)
    first = source_id([path], cache)
    with monkeypatch.context() as patched:
        patched.setattr(identity, "_meaning", lambda suffix, text: text)
        assert source_id([path], cache) == first
        assert source_id([path], tmp_path / "another") != first
    path.rename(tmp_path / "b.py")
    assert source_id([tmp_path / "b.py"], cache) != first


def test_the_meaningful_lines_of_an_environment(tmp_path):
    path = tmp_path / "e.txt"
    path.write_text("numpy==2.0\n")
    first = requirements_id(path)
    path.write_text("# why\n\nnumpy==2.0  # fast\n")
    assert requirements_id(path) == first
    path.write_text("numpy==2.1\n")
    assert requirements_id(path) != first


def test_a_files_digest_follows_its_bytes(tmp_path):
    path, cache = tmp_path / "m.onnx", tmp_path / "cache"
    path.write_bytes(b"one")
    first = file_digest(path, cache)
    os.utime(path, (1, 1))
    assert file_digest(path, cache) == first
    path.write_bytes(b"two")
    assert file_digest(path, cache) != first


def users_model(folder):
    """The file mine.onnx of a folder, as a plan knows it."""
    entry = {"path": str(folder / "mine.onnx"), "shapes": {"x": [1, 8]}}
    stated = {"systems": ["mononn"], "machine": "here", "threads": 1, "targets": ["cpu"]}
    return make_plan({"models": {"mine": entry}, "cache": str(folder / "cache"), **stated}).models["mine"]


@pytest.mark.parametrize("name", ["w.bin", f"{'w' * 123}.bin", f"{'w' * 124}.bin", f"{'w' * 240}.bin"])
def test_a_users_model_is_its_file_and_what_holds_its_weights(tmp_path, name):
    path, data = tmp_path / "mine.onnx", tmp_path / name
    onnx.save(linear_model(), path, save_as_external_data=True, location=name, size_threshold=0)
    first = users_model(tmp_path)
    assert first.sources == (path, data)
    assert users_model(tmp_path).identity == first.identity
    data.write_bytes(bytes(data.stat().st_size))
    os.utime(data, (1, 1))
    assert users_model(tmp_path).identity != first.identity


def test_every_file_of_weights_counts_once_and_none_where_they_lie_within(tmp_path):
    path = tmp_path / "mine.onnx"
    onnx.save(linear_model(), path)
    assert data_files(path) == [] and users_model(tmp_path).sources == (path,)
    (tmp_path / "empty.onnx").touch()
    assert data_files(tmp_path / "empty.onnx") == []
    apart = {"save_as_external_data": True, "all_tensors_to_one_file": False, "size_threshold": 0}
    onnx.save(linear_model(), path, **apart)
    assert data_files(path) == ["b", "w"]
    (tmp_path / "b").unlink()
    assert users_model(tmp_path).sources == (path, tmp_path / "w")


def test_a_machine_is_named_after_what_it_is():
    name = machine_name(CPUINFO, 2)
    assert name.startswith("amd-epyc-9r14-2c-")
    assert machine_name(CPUINFO, 4) != name
    assert machine_name(CPUINFO.replace("avx2", "avx512f"), 2) != name
    assert machine_name(CPUINFO * 2, 2) == name


def test_an_adapter_is_made_of_what_it_imports(tmp_path):
    folder = tmp_path / "suite" / "systems"
    folder.mkdir(parents=True)
    (folder / "base.py").write_text("import numpy\n")
    (folder / "eager.py").write_text("from suite.systems.base import System\n")
    (folder / "inductor.py").write_text("from suite.systems.eager import probe\nfrom suite.systems import get_system\n")
    (folder / "ours.py").write_text("def f():\n    import mononn_core as mononn\n")

    def names(module):
        return [p.name for p in adapter_sources(f"suite.systems.{module}", tmp_path)]

    assert names("inductor") == ["base.py", "eager.py", "inductor.py"]
    assert names("eager") == ["base.py", "eager.py"]
    assert names("ours") == ["mononn_core", "ours.py"]
