"""A configuration is taken whole or refused in one sentence that names the key and the nearest right one."""

import shlex

import pytest

from mononn_bench.cli import make_parser
from mononn_bench.errors import BenchError
from mononn_bench.files import ROOT
from mononn_bench.models.zoo import get_model
from mononn_bench.workflow.config import ConfigError, StartChoice, load_config, named, read_comparison, read_config
from mononn_bench.workflow.plan import make_plan, plan_of

LEAST = {"models": {"mlp": None}, "systems": ["mononn"]}


def test_defaults_are_filled_in():
    config = load_config({**LEAST, "measuring": {"rounds": 8}})
    assert config.measuring.rounds == 8
    assert config.measuring.cycles == 3
    assert config.measuring.block_seconds == 0.2
    assert config.threads >= 1
    assert config.models[0].weights == "seeded"


@pytest.mark.parametrize(("key", "value"), [("bricks", [1]), ("start", {})])
def test_further_studies_have_no_defaults(key, value):
    with pytest.raises(ConfigError, match=f"leave defaults or {key} out"):
        load_config({**LEAST, "defaults": True, key: value})


def test_first_answers_are_asked_for_by_a_key_of_their_own():
    assert load_config(LEAST).start is None
    assert load_config({**LEAST, "start": {"cold": 0}}).start == StartChoice(warm=15, cold=0, processes=8)


def test_requests_of_many_lengths_are_off_unless_asked_for_and_then_have_defaults():
    assert load_config(LEAST).lengths is None
    assert not make_plan(LEAST).lengths.records
    found = load_config({**LEAST, "lengths": {"rounds": 3}}).lengths
    assert (found.rounds, found.cycles, found.requests, found.step, found.memory_requests) == (3, 4, 24, 16, 10000)
    with pytest.raises(ConfigError, match="leave defaults or lengths out"):
        load_config({**LEAST, "defaults": True, "lengths": {}})
    with pytest.raises(ConfigError, match="'bert-mini', which is none of the models"):
        load_config({**LEAST, "lengths": {"memory_models": ["bert-mini"]}})
    with pytest.raises(ConfigError, match="did you mean 'step'"):
        load_config({**LEAST, "lengths": {"steps": 8}})


def test_the_lengths_suite_tells_its_commands_what_they_know():
    plan = make_plan({**read_config(ROOT / "workflows" / "suites" / "lengths.yaml"), "machine": "here"})
    assert [path.name for path in plan.lengths.records] == ["bert-base.json", "t5-small.json", "bert-mini.json"]
    read = {m: make_parser().parse_args(["lengths", *shlex.split(plan.lengths.options(m))]) for m in plan.models}
    assert {name: options.memory_requests for name, options in read.items()} == {
        "bert-base": 0, "t5-small": 0, "bert-mini": 10000,
    }  # fmt: skip
    options = read["t5-small"]
    assert [name for name, _ in options.environment] == list(plan.config.systems)
    assert options.model_folder / "model.json" in plan.lengths.inputs("t5-small")
    exported = make_parser().parse_args(["encoder", *shlex.split(plan.lengths.encoder_options("t5-small"))])
    assert (exported.model, exported.output) == ("t5-small", options.model_folder)
    assert "tables/lengths.md" in {str(path.relative_to(plan.results)) for path in plan.report}


@pytest.mark.parametrize(
    "name",
    [
        "config.yaml",
        "config.test.yaml",
        "suites/cpu.yaml",
        "suites/cold.yaml",
        "suites/small.yaml",
        "suites/precision.yaml",
        "suites/wide.yaml",
        "suites/grouped.yaml",
    ],
)
def test_the_shipped_configurations_are_right(name):
    config = load_config(read_config(ROOT / "workflows" / name))
    assert config.systems[0] == "mononn"
    assert config.measuring.rounds >= 3


def test_the_suites_stand_beside_the_full_comparison():
    for path in (ROOT / "workflows" / "suites").glob("*.yaml"):
        mapping = read_config(path)
        if "suite" in mapping:
            plan = make_plan({**mapping, "machine": "here"})
            assert plan.results.parts[-3:] == ("here", "suites", path.stem)
            assert all(case.record.is_relative_to(plan.results) for case in plan.cases.values())
            assert not set(plan.report) & set(make_plan({**mapping, "machine": "here", "suite": ""}).report)


def written(tmp_path, name, **said):
    """A configuration of that file name, and the plan of both roads: make bench's, and plain Snakemake's."""
    path = tmp_path / name
    path.write_text("models: {mlp-test: }\nsystems: [mononn]\nmachine: here\n")
    return make_plan(read_comparison(path)), plan_of({**read_config(path), **said}, [path], said)


def test_a_configuration_of_ones_own_writes_beside_the_full_comparison(tmp_path):
    default = ROOT / "workflows" / "config.yaml"
    full = make_plan({**read_comparison(default), "machine": "here"})
    assert full.results.as_posix() == "results/here"
    for plan in written(tmp_path, "My networks.yaml"):
        assert plan.results.as_posix() == "results/here/suites/my-networks"
        assert not set(plan.report) & set(full.report)
        assert plan.machine_record == full.machine_record
    assert written(tmp_path, "mine.yaml", suite="few")[1].results.as_posix() == "results/here/suites/few"
    assert written(tmp_path, "mine.yaml", results="few", systems=["mononn"])[1].results.as_posix() == "few/here"


def test_a_configuration_may_not_take_the_name_of_a_suite(tmp_path):
    with pytest.raises(ConfigError, match="suite 'cpu'"):
        written(tmp_path, "CPU.yaml")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"systems": ["mononn"]}, ["systems", "suite=NAME"]),
        ({"measuring": {"rounds": 1}, "cache": "c"}, ["measuring", "suite=NAME"]),
        ({"models": {"mlp": None}, "suite": "few"}, ["models", "write a file"]),
    ],
)
def test_the_command_line_does_not_write_over_the_full_tables(said, words):
    mapping = read_config(ROOT / "workflows" / "config.yaml")
    with pytest.raises(ConfigError) as caught:
        named({**mapping, **said}, [], said)
    assert all(word in str(caught.value) for word in words)
    placed = {"systems": ["mononn"], "suite": "few"}
    assert named({**mapping, **placed}, [], placed)["suite"] == "few"


def test_what_names_the_machine_may_be_said_where_it_names_the_folder():
    mapping, said = read_config(ROOT / "workflows" / "config.yaml"), {"threads": 1, "targets": ["cpu"]}
    assert "suite" not in named({**mapping, **said}, [], said)
    assert "suite" not in named({**mapping, **said, "machine": "lab"}, [], {**said, "machine": "lab"})
    with pytest.raises(ConfigError, match="targets, threads"):
        named({**mapping, "machine": "lab", **said}, [], said)


def test_a_hundred_comparisons_half_of_them_on_a_large_network():
    plan = make_plan(read_config(ROOT / "workflows" / "suites" / "aa.yaml"))
    sizes = [get_model(case.model.choice.name).full_size for case in plan.cases.values()]
    assert (len(sizes), sum(sizes)) == (100, 50)
    assert len({case.record for case in plan.cases.values()}) == 100
    assert {case.measuring.seed for case in plan.cases.values()} == set(range(50))
    more = make_plan(
        {**read_config(ROOT / "workflows" / "suites" / "aa.yaml"), "measuring": {"repeats": 60, "starts": 0}}
    )
    hashes = {case.record.stem.rpartition("-")[2] for case in plan.cases.values()}
    assert hashes <= {case.record.stem.rpartition("-")[2] for case in more.cases.values()}, (
        "the first fifty still stand"
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sytems": ["mononn"]}, ["'sytems'", "did you mean 'systems'"]),
        ({"measuring": {"round": 2}}, ["'measuring.round'", "did you mean 'rounds'"]),
        ({"models": {"mlp": {"weight": "seeded"}}}, ["'models.mlp.weight'", "did you mean 'weights'"]),
        ({"models": {"bert-bse": None}}, ["model", "'bert-bse'", "did you mean 'bert-base'"]),
        ({"systems": ["mononn", "onnx-runtime"]}, ["system", "'onnx-runtime'", "did you mean 'onnxruntime'"]),
        ({"precisions": ["fp23"]}, ["precisions.0", "'fp23'", "fp32, bf16, int8"]),
        ({"threads": 0}, ["threads", "0"]),
        ({"threads": "many"}, ["threads", "many"]),
        ({"measuring": {"rounds": "four"}}, ["measuring.rounds", "integer"]),
        ({"models": {}}, ["models"]),
        ({"systems": ["mononn", "mononn"]}, ["systems"]),
        ({"models": {"mine": {"path": "no-such-file.onnx"}}}, ["'mine'", "no-such-file.onnx"]),
        ({"models": {"mlp": {"path": "x.onnx"}}}, ["'mlp'", "rename"]),
        ({"models": {"mlp": {"weights": "pretrained"}}}, ["'mlp'", "published"]),
        ({"models": {"mine": {"path": __file__, "weights": "seeded"}}}, ["'mine'", "weights"]),
        ({"suite": "../elsewhere"}, ["suite", "../elsewhere"]),
        ({"systems": ["mononn[launch=twice]"]}, ["mononn[launch=twice]", "launch=once|phases"]),
        ({"measuring": {"repeats": 0}}, ["measuring.repeats", "0"]),
        ({"models": {"mlp": {"shapes": {"x": [1, 256]}}}}, ["'mlp'", "shapes"]),
    ],
)
def test_a_wrong_configuration_is_refused_in_one_sentence(change, words):
    with pytest.raises(BenchError) as caught:
        load_config({**LEAST, **change})
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_a_missing_key_is_named():
    with pytest.raises(BenchError, match="'systems'"):
        load_config({"models": {"mlp": None}})


def test_a_users_model_is_taken(tmp_path):
    (tmp_path / "mine.onnx").write_bytes(b"anything")
    entry = {"path": str(tmp_path / "mine.onnx"), "shapes": {"x": [1, 4]}}
    (choice,) = load_config({**LEAST, "models": {"mine": entry}}).models
    assert choice.shapes == {"x": (1, 4)}


def test_the_commands_of_a_users_model_name_its_file_and_its_shapes(tmp_path):
    path = tmp_path / "my net.onnx"
    path.write_bytes(b"anything")
    models = {"mine": {"path": str(path), "shapes": {"x": [1, 4], "ids": [2, 3]}}, "mlp": None}
    plan = make_plan({**LEAST, "models": models, "cache": str(tmp_path / "cache"), "start": {}, "bricks": [1]})

    def told(model):
        said = {"measure": plan.cases[model].options, "profile": f"{plan.profile_options(model)} --output o"}
        said |= {"start": plan.start_options(model), "bricks": plan.brick_options(model)}
        return [make_parser().parse_args([command, *shlex.split(options)]) for command, options in said.items()]

    for options in told("mine"):
        assert (options.path, options.shape) == (path, [("x", (1, 4)), ("ids", (2, 3))])
        assert options.model_folder == plan.models["mine"].folder
    assert all((options.path, options.shape) == (None, []) for options in told("mlp"))


@pytest.mark.parametrize("text", ["a: [", "- just\n- a list\n", None])
def test_a_file_that_is_no_configuration(tmp_path, text):
    path = tmp_path / "config.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BenchError, match=r"config\.yaml"):
        read_config(path)
