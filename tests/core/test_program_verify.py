"""The verifier accepts the hand-written Programs, and what it says of special cases (in bulk: test_program_mutants)."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from mononn_core.errors import VerifyError
from mononn_core.program.expr import Const
from mononn_core.program.interpret import run
from mononn_core.program.ir import Assign, Barrier, Counter, Layout, Loop, Phase, Program, Signal, Table, Wait
from mononn_core.program.verify import verify
from tests.core.build import buffer, copy_phase, v
from tests.core.programs import CASES
from tests.core.transformer import bert_base, tiny_transformer


@pytest.mark.parametrize("name", CASES)
def test_accepts(name: str) -> None:
    verify(CASES[name]().program)


def test_accepts_a_transformer_quickly() -> None:
    verify(tiny_transformer().program)
    program = bert_base()
    start = time.perf_counter()
    verify(program)
    assert time.perf_counter() - start < 10, "BERT-base must verify in seconds (usually half of one)"


SHAPE = (4, 6)
SIZE = 4 * 6 * 4


def chain(*body: object, arena: tuple[int, ...] = (0, SIZE, 2 * SIZE), counters: int = 0) -> Program:
    """A Program over input x, arena buffers a, b, c at the given offsets and output y."""
    buffers = (
        buffer("x", SHAPE, "input"),
        *(buffer(n, SHAPE, "arena", o) for n, o in zip("abc", arena, strict=False)),
        buffer("y", SHAPE, "output"),
    )
    count = (Counter("n", (counters,)),) if counters else ()
    return Program("chain", buffers, tuple(body), (), count, ("x",), ("y",), arena_bytes=max(arena) + SIZE)  # type: ignore[arg-type]


def copy(name: str, source: str, target: str, owned: bool = False, **rest: object) -> Phase:
    phase = copy_phase(name, source, target, SHAPE, **rest)
    return replace(phase, assign=Assign("owned", "rows", v("r"), 4)) if owned else phase


def signal(add: int = 1) -> tuple[Signal, ...]:
    return (Signal("n", (v("r"),), add),)


def wait(at_least: int) -> tuple[Wait, ...]:
    return (Wait("n", (v("r"),), Const(at_least)),)


def refused(program: Program, rule: str) -> None:
    with pytest.raises(VerifyError, match=rf"\(rule: {rule}\)"):
        verify(program)


def test_a_counter_orders_what_it_counts() -> None:
    verify(chain(copy("p", "x", "a", signals=signal()), copy("q", "a", "y", waits=wait(1)), counters=4))


def test_a_later_signal_may_not_arrive_early() -> None:
    """r signals the element that q waits for, and nothing keeps r from doing so before p."""
    p, q = copy("p", "x", "a", signals=signal()), copy("q", "a", "y", waits=wait(1))
    r = copy("r", "x", "b", signals=signal())
    refused(chain(p, q, r, counters=4), "no wait without its arrivals")
    verify(chain(p, q, Barrier(0), r, counters=4))


def test_a_phase_may_signal_what_it_waits_for() -> None:
    p = copy("p", "x", "a", signals=signal())
    q = copy("q", "a", "b", waits=wait(1), signals=signal(2))
    verify(chain(p, q, copy("r", "b", "y", waits=wait(3)), counters=4))


def test_a_phase_may_not_wait_for_its_own_signals() -> None:
    program = chain(copy("p", "x", "y", waits=wait(1), signals=signal()), counters=4)
    refused(program, "no wait without its arrivals")


def test_order_is_transitive() -> None:
    """p happens before r by the counter and the owner of q together."""
    p = copy("p", "x", "a", signals=signal())
    q, r = copy("q", "x", "b", owned=True, waits=wait(1)), copy("r", "a", "y", owned=True)
    verify(chain(p, q, r, counters=4))
    refused(chain(p, replace(q, waits=()), r, counters=4), "every read is ordered after its write")


def test_owned_rows_may_share_bytes_that_strided_rows_may_not() -> None:
    """Row by row, b takes a's bytes once the same owner has read them: in order for owners, a race for strangers."""
    steps = ("x", "a"), ("a", "c"), ("x", "b"), ("b", "y")
    owned = [copy(s + t, s, t, owned=True) for s, t in steps]
    verify(chain(*owned, arena=(0, 0, SIZE)))
    refused(chain(*owned[:2], copy("xb", "x", "b"), Barrier(0), owned[3], arena=(0, 0, SIZE)), ".*")


def test_what_another_buffer_took_is_gone() -> None:
    body = (copy("p", "x", "a"), Barrier(0), copy("q", "x", "b"), Barrier(1), copy("r", "a", "y"))
    verify(chain(*body))
    refused(chain(*body, arena=(0, 16, 2 * SIZE)), "live buffers do not overlap")


def test_a_task_may_not_read_what_it_writes() -> None:
    refused(
        chain(copy("p", "x", "a"), Barrier(0), copy("q", "a", "b"), Barrier(1), copy("r", "b", "y"), arena=(0, 0)),
        "no element is .*",
    )


def test_a_buffer_is_rewritten_whole_or_not_at_all() -> None:
    half = copy("again", "x", "a")
    half = replace(half, domain=(replace(half.domain[0], extent=2),))
    body = (copy("p", "x", "a"), Barrier(0), copy("q", "a", "b"), Barrier(1), half, Barrier(2), copy("r", "a", "y"))
    refused(chain(*body), "reads are covered by writes")


def parts() -> tuple[Phase, Phase]:
    """Three rows of x to a, and the last one."""
    whole = copy("p", "x", "a")
    rows = whole.domain[0]
    below = copy("below", "x", "a")
    shifted = [replace(o, box=replace(o.box, offset=(v("r") + 3, Const(0)))) for o in below.task.operands]
    (loop,) = below.task.body
    (store,) = loop.body  # type: ignore[union-attr]
    value = replace(store.value, index=(v("r") + 3, v("c")))
    store = replace(store, index=(v("r") + 3, v("c")), value=value)
    task = replace(below.task, operands=tuple(shifted), body=(replace(loop, body=(store,)),))
    upper = replace(whole, domain=(replace(rows, extent=3),))
    return upper, replace(below, task=task, domain=(replace(rows, extent=1),))


def test_two_phases_may_fill_one_buffer() -> None:
    upper, below = parts()
    verify(chain(upper, below, Barrier(0), copy("q", "a", "y")))
    refused(chain(upper, Barrier(0), copy("q", "a", "y")), "reads are covered by writes")


def test_a_buffer_that_lost_bytes_is_rewritten_whole() -> None:
    """In each round c takes the bytes of a's upper three rows."""
    (upper, below), arena = parts(), (SIZE // 4, 2 * SIZE, 0)
    rest = (Barrier(0), copy("ab", "a", "b"), Barrier(1), copy("bc", "b", "c"), Barrier(2), copy("cy", "c", "y"))
    rounds = Loop("i", 2, (upper, below, *rest, Barrier(3)), "")  # type: ignore[arg-type]
    program = chain(rounds, arena=arena)
    verify(program)
    x = np.arange(24, dtype=np.float32).reshape(SHAPE)
    np.testing.assert_array_equal(run(program, {"x": x}, {}, workers=2)["y"], x)
    again = (upper, below, *rest, Barrier(3), replace(upper, id="more"), Barrier(4), copy("ay", "a", "y"))
    refused(chain(*again, arena=arena), "reads are covered by writes")
    with pytest.raises(VerifyError, match="left over from an earlier generation"):
        run(chain(*again, arena=arena), {"x": x}, {}, workers=2)


def test_a_padded_layout_must_lie_inside_its_size() -> None:
    program = chain(copy("p", "x", "a"), Barrier(0), copy("q", "a", "y"))
    padded = Layout((((2, 24), (3, 6)), ((6, 1),)), 24)
    buffers = tuple(replace(b, layout=padded) if b.id == "a" else b for b in program.buffers)
    refused(replace(program, buffers=buffers), "layouts are injective")


def test_loops_need_no_table_but_rows_must_match() -> None:
    program = CASES["counter_loop"]().program
    loop = program.body[2]
    verify(replace(program, body=(*program.body[:2], replace(loop, table=""), *program.body[3:]), tables=()))  # type: ignore[type-var]
    refused(replace(program, tables=(Table("none", (), ((),)),)), "slots resolve")
