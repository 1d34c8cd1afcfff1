"""A precision is a dimension of a case: fp32 keeps its names, bf16 shares its model, int8 has a file of its own."""

import pytest

from mononn_bench.errors import BenchError
from mononn_bench.workflow.config import ConfigError
from mononn_bench.workflow.plan import make_plan
from mononn_bench.workflow.progress import steps_to_make

SYSTEMS = ["mononn", "onnxruntime"]
CONFIG = {"models": {"mlp-test": {}, "bert-test-b2": {}}, "systems": SYSTEMS, "targets": ["cpu"], "machine": "here"}
ALL = {**CONFIG, "precisions": ["fp32", "bf16", "int8"]}


def test_fp32_alone_is_as_if_there_were_no_precisions():
    plain, asked = make_plan(CONFIG), make_plan({**CONFIG, "precisions": ["fp32"]})
    assert list(plain.cases) == ["mlp-test", "bert-test-b2"]
    assert [case.record for case in plain.cases.values()] == [case.record for case in asked.cases.values()]
    assert not plain.quantised and "quantise" not in plain.environments
    assert list(plain.builds)[:2] == [("mlp-test", "mononn"), ("mlp-test", "onnxruntime")]
    assert all("--precision=fp32" in build.options for build in plain.builds.values())
    assert not any("--precision" in case.options for case in plain.cases.values())


def test_each_precision_is_a_case_of_its_own_and_leaves_fp32_alone():
    plan, plain = make_plan(ALL), make_plan(CONFIG)
    names = ["mlp-test", "bert-test-b2"]
    assert list(plan.cases) == [*names, *(f"{n}-bf16" for n in names), *(f"{n}-int8" for n in names)]
    for name, case in plain.cases.items():
        assert plan.cases[name].record == case.record
    assert len({build.folder for build in plan.builds.values()}) == len(plan.builds) == 3 * 2 * len(SYSTEMS)
    assert plan.builds["mlp-test", "mononn.bf16"].folder.name.startswith("mononn.bf16-")
    assert "--precision=bf16" in plan.builds["mlp-test", "mononn.bf16"].options
    assert "--precision=int8" in plan.cases["mlp-test-int8"].options
    assert "--precision=bf16" in plan.profile_options("mlp-test-bf16")
    assert "tables/mlp-test-int8.md" in {path.relative_to(plan.results).as_posix() for path in plan.report}


def test_bf16_reads_the_exported_model_and_int8_one_file_for_all():
    plan = make_plan(ALL)
    exported, quantised = plan.models["mlp-test"], plan.quantised["mlp-test"]
    assert all(build.model == exported for build in plan.groups["mlp-test-bf16"])
    assert all(build.model == quantised for build in plan.groups["mlp-test-int8"])
    assert quantised.unquantised == exported
    assert str(quantised.folder) in plan.cases["mlp-test-int8"].options
    assert quantised.reference in plan.cases["mlp-test-int8"].inputs
    assert f"--unquantised {exported.folder}" in quantised.reference_options
    steps = steps_to_make(plan)
    assert {"Quantising mlp-test", "Computing the reference answers of mlp-test in int8"} <= steps.keys()
    assert {"Measuring mlp-test-bf16", "Building mlp-test with mononn.int8"} <= steps.keys()


@pytest.mark.parametrize("wrong", [[], ["fp32", "fp32"], "fp32", ["fp16"]])
def test_precisions_are_a_list_of_known_ones(wrong):
    with pytest.raises(BenchError, match="precisions"):
        make_plan({**CONFIG, "precisions": wrong})


def test_two_cases_of_one_name_are_refused(tmp_path):
    (tmp_path / "mine.onnx").write_bytes(b"anything")
    models = {"mlp": {}, "mlp-bf16": {"path": str(tmp_path / "mine.onnx")}}
    both = {**CONFIG, "models": models, "cache": str(tmp_path / "cache")}
    assert list(make_plan(both).cases) == ["mlp", "mlp-bf16"]
    with pytest.raises(ConfigError, match="Two cases would be called mlp-bf16"):
        list(make_plan({**both, "precisions": ["fp32", "bf16"]}).cases)


def test_the_dag_quantises_each_model_once(checkout, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(
        "models: {mlp-test: }\nsystems: [mononn, onnxruntime]\ntargets: [cpu]\nprecisions: [bf16, int8]\n"
        "environments: {torch: driver, mononn: driver, onnxruntime: driver, quantise: driver}\n"
    )
    planned = checkout.planned(config)
    assert planned["build"] == 4
    assert planned["measure"] == planned["profile"] == 2
    assert planned["export"] == planned["quantise"] == planned["quantised_reference"] == planned["reference"] == 1
    before = checkout.planned(config, "--until", "build")
    assert before["quantise"] == 1, "a build of the 8-bit file waits for it"
