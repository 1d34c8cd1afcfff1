"""Templates: found by their names, and strict about what a task says to them."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from mononn_core.codegen.cpu_storage import CpuTemplate
from mononn_core.codegen.cuda_storage import CudaTemplate, cuda_template
from mononn_core.errors import UnsupportedError, VerifyError
from mononn_core.program.ir import Phase, Program
from mononn_core.program.template import get, known
from mononn_core.program.verify import verify
from mononn_core.schedule.template import CpuScheduled, of_operator
from mononn_core.templates.windowed import WindowParams
from tests.core.programs import CASES


def changed(program: Program, template: str, **params: object) -> Program:
    """``program`` with other parameters of the first task of ``template``; None takes one away."""
    body = list(program.body)
    at, phase = next((n, i) for n, i in enumerate(body) if isinstance(i, Phase) and i.task.template == template)
    values = {key: value for key, value in {**phase.task.params, **params}.items() if value is not None}
    body[at] = replace(phase, task=replace(phase.task, params=values))
    return replace(program, body=tuple(body))


def test_a_template_is_the_file_of_its_name() -> None:
    assert {t.name for t in known()} >= {"nest", "matmul", "attention", "conv", "winograd", "depthwise"}
    for template in known():
        assert get(template.name) is template
        assert type(template).__module__ == f"mononn_core.templates.{template.name}"
        assert isinstance(template, CpuTemplate) and isinstance(template, CpuScheduled)
    for name in ("windowed", "no_such", "os.path", ""):
        with pytest.raises(KeyError):
            get(name)


def test_templates_of_an_operator() -> None:
    convolutions = ["conv", "depthwise", "few_channels", "winograd", "winograd4", "winograd_bytes"]
    assert [t.name for t in of_operator("conv")] == convolutions
    assert [t.name for t in of_operator("matmul")] == ["matmul", "strassen"]
    assert of_operator("softmax") == ()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"pane": 4}, "'pane' means nothing"),
        ({"panel": None}, "missing.*panel"),
        ({"panel": 4.0}, "'panel' is 4.0"),
        ({"panel": True}, "'panel' is True"),
        ({"kernel": (3, 3, 3)}, r"'kernel' is \(3, 3, 3\)"),
        ({"kernel": [3, 3]}, r"'kernel' is \[3, 3\]"),
    ],
)
def test_parameters_are_named_and_typed(params: dict[str, object], message: str) -> None:
    program = CASES["bordered_image"]().program
    verify(program)
    with pytest.raises(VerifyError, match=message):
        verify(changed(program, "conv", **params))


def test_every_convolution_says_its_windows() -> None:
    names = {f.name for f in fields(WindowParams)}
    for template in of_operator("conv"):
        assert names <= {f.name for f in fields(get(template.name).parameters)}


def test_a_template_without_a_kernel_for_a_gpu_is_refused_by_name() -> None:
    program = CASES["bordered_image"]().program
    phase = next(p for p in program.phases() if p.task.template == "conv")
    assert not isinstance(get("conv"), CudaTemplate)
    with pytest.raises(UnsupportedError, match="'conv' has no CUDA form; compile this model for the CPU"):
        cuda_template(phase)
