"""Session and Binding on the hand-made network: answers, checks, concurrency, forks, life and death."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from mononn_core.errors import InputError, MononnError, OptionError
from mononn_core.runtime.artifact import Artifact
from mononn_core.runtime.base import TensorInfo
from mononn_core.runtime.loading import load
from mononn_core.runtime.session import Session
from tests.core import handmade

EMPTY = """#include "mononn.h"
extern "C" __attribute__((visibility("default"))) int mononn_run(const mononn_call *, int) { return 0; }
"""


def inputs(seed: int = 0, k: int = 3) -> dict[str, np.ndarray]:
    a = np.random.default_rng(seed).standard_normal(64).astype(np.float32)
    return {"a": a, "k": np.array([k], np.int32)}


def check(session: Session, seed: int, k: int) -> None:
    given = inputs(seed, k)
    answer = session.run(given)
    for name, value in handmade.expected(given["a"], k).items():
        np.testing.assert_array_equal(answer[name], value)


@pytest.fixture(scope="module")
def artifact():
    return handmade.artifact()


@pytest.fixture
def session(artifact):
    with Session(artifact) as session:
        yield session


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_same_bits_for_any_number_of_workers(artifact, threads):
    with Session(artifact, threads) as session:
        for seed in range(20):
            check(session, seed, seed % 10)


def test_description(session):
    assert session.inputs == {"a": TensorInfo("float32", (64,)), "k": TensorInfo("int32", (1,))}
    assert list(session.outputs) == ["y", "s"]
    assert session.threads == 2
    assert session.info["barriers"] == 1


def test_workers_wake_up_after_they_fell_asleep(session):
    for seed in range(3):
        time.sleep(0.02)
        check(session, seed, 1)


def test_binding_reads_and_writes_in_place(session):
    given, y = inputs(), np.zeros(64, np.float32)
    binding = session.bind(given, {"y": y})
    assert binding.outputs["y"] is y
    assert binding.inputs["a"] is given["a"]
    for k in range(5):
        given["k"][0] = k
        given["a"] *= np.float32(0.5)
        binding.run()
        np.testing.assert_array_equal(y, handmade.expected(given["a"], k)["y"])


def test_run_allocates_fresh_outputs(session):
    first = session.run(inputs(1))
    kept = first["y"].copy()
    session.run(inputs(2))
    np.testing.assert_array_equal(first["y"], kept)


def test_a_run_into_the_caller_s_buffers_needs_one_for_each(session):
    outputs = {name: np.zeros(info.shape, info.dtype) for name, info in session.outputs.items()}
    assert session.run_into(inputs(4), outputs) is None
    np.testing.assert_array_equal(outputs["y"], handmade.expected(inputs(4)["a"], 3)["y"])
    with pytest.raises(InputError, match=r"output 'y' has no buffer; give one for each of y"):
        session.run_into(inputs(4), {name: value for name, value in outputs.items() if name != "y"})


def test_runs_on_the_caller_s_executor(session):
    async def several():
        futures = [asyncio.wrap_future(session.submit(pool, inputs(seed))) for seed in range(8)]
        return await asyncio.gather(*futures)

    with ThreadPoolExecutor(3) as pool:
        for seed, found in enumerate(asyncio.run(several())):
            np.testing.assert_array_equal(found["y"], handmade.expected(inputs(seed)["a"], 3)["y"])
        with pytest.raises(InputError, match="input 'k' is missing"):
            session.submit(pool, {"a": inputs()["a"]})
        future = session.submit(pool, {**inputs(), "k": np.array([-4], np.int32)})
        with pytest.raises(InputError, match=r"index .* is out of range"):
            future.result()


def test_sessions_of_one_file_share_its_weights(artifact, tmp_path):
    artifact.save(tmp_path / "x.mono")
    loaded = Artifact.load(tmp_path / "x.mono")
    with Session(loaded, weights="shared") as one, Session(loaded, weights="shared") as two:
        assert one._code.weights.address == two._code.weights.address
        check(one, 1, 1)
        check(two, 2, 2)
    with Session(loaded) as private:
        assert private._code.weights.address != one._code.weights.address
    with pytest.raises(OptionError, match="weights is 'both'; give one of 'private', 'shared'"):
        Session(loaded, weights="both")


def test_strided_inputs_are_copied(session):
    wide = np.zeros((64, 2), np.float32)
    wide[:, 0] = inputs()["a"]
    answer = session.run({"a": wide[:, 0], "k": np.array([3], np.int32)})
    np.testing.assert_array_equal(answer["y"], handmade.expected(inputs()["a"], 3)["y"])


def test_dlpack_in_and_out(session):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    given = inputs()
    tensors = {name: torch.from_numpy(value) for name, value in given.items()}
    binding = session.bind(tensors)
    assert binding.inputs["a"].ctypes.data == tensors["a"].data_ptr(), "no copy"
    binding.run()
    answer = torch.from_dlpack(binding.outputs["y"]).numpy()
    np.testing.assert_array_equal(answer, handmade.expected(given["a"], 3)["y"])
    with pytest.raises(InputError, match=r"input 'a' cannot be read through DLPack.*require gradient"):
        session.run({**tensors, "a": tensors["a"].clone().requires_grad_()})


def test_read_only_dlpack_and_lists(session):
    frozen = inputs()
    frozen["a"].flags.writeable = False
    session.run(frozen)
    with pytest.raises(InputError, match=r"input 'k' is int64\[1\] but the network takes int32\[1\]"):
        session.run({**frozen, "k": [3]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a": np.zeros(63, np.float32)}, r"input 'a' is float32\[63\] but the network takes float32\[64\]; convert"),
        ({"a": np.zeros(64)}, r"input 'a' is float64\[64\] but the network takes float32\[64\]"),
        ({"a": np.zeros((1, 64), np.float32)}, r"input 'a' is float32\[1x64\]"),
        ({"a": np.zeros(64, ">f4")}, r"input 'a' is float32\[64\] in another byte order"),
        ({"kk": np.zeros(1)}, r"input 'kk' is unknown; did you mean 'k'\?"),
        ({"zebra": np.zeros(1)}, r"input 'zebra' is unknown; this network has a, k"),
        (
            {"k": np.array([-4], np.int32)},
            r"index .* is out of range in Add node 'reverse' \(it is -4\)",
        ),
        ({"k": None}, r"input 'k' is object\[\]"),
    ],
)
def test_wrong_inputs_are_named(session, changes, message):
    with pytest.raises(InputError, match=message):
        session.run({**inputs(), **changes})
    check(session, 5, 2)


def test_missing_input(session):
    with pytest.raises(InputError, match=r"input 'k' is missing; give int32\[1\]"):
        session.run({"a": inputs()["a"]})


def _read_only() -> np.ndarray:
    array = np.zeros(64, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"y": np.zeros(65, np.float32)}, r"output 'y' is float32\[65\]"),
        ({"y": np.zeros(128, np.float32)[::2]}, "output 'y' is not a writable C-contiguous array"),
        ({"y": _read_only()}, "output 'y' is not a writable C-contiguous array"),
        ({"y": [0.0] * 64}, "output 'y' is a list"),
        ({"z": np.zeros(64, np.float32)}, "output 'z' is unknown"),
    ],
)
def test_wrong_output_buffers_are_named(session, outputs, message):
    with pytest.raises(InputError, match=message):
        session.bind(inputs(), outputs)


def test_trace_buffer_must_fit(session):
    with pytest.raises(InputError, match=r"output 'trace' is uint64\[1x2x3\] but the network takes uint64\[2x2x3\]"):
        session.bind(inputs(), trace=np.zeros((1, 2, 3), np.uint64))


def test_outputs_may_not_overlap_what_is_read(session):
    given, memory = inputs(), np.zeros(80, np.float32)
    with pytest.raises(InputError, match="output 'y' shares memory with 'a'"):
        session.bind(given, {"y": given["a"]})
    with pytest.raises(InputError, match="output 'y' shares memory with 's'"):
        session.bind(given, {"s": memory[60:61], "y": memory[:64]})
    session.bind(given, {"s": memory[64:65], "y": memory[:64]}).run()


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True])
def test_wrong_number_of_threads(artifact, threads):
    with pytest.raises(OptionError, match="give a positive number"):
        Session(artifact, threads)


def test_concurrent_runs_take_turns(artifact):
    failures: list[BaseException] = []

    def caller(session: Session, seed: int) -> None:
        try:
            for step in range(50):
                check(session, seed * 100 + step, step % 10)
        except BaseException as error:
            failures.append(error)

    with Session(artifact) as session, session.clone() as clone:
        threads = [threading.Thread(target=caller, args=((session, clone)[i % 2], i)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_clone_shares_weights_but_not_workers(session):
    clone = session.clone(threads=1)
    assert clone.threads == 1
    assert clone._code is session._code
    session.close()
    check(clone, 1, 1)


def test_closed_session_refuses(artifact):
    session = Session(artifact)
    binding = session.bind(inputs())
    binding.run()
    session.close()
    session.close()
    with pytest.raises(MononnError, match="this session is closed"):
        binding.run()
    with pytest.raises(MononnError, match="this session is closed"):
        session.run(inputs())


def test_close_during_runs_of_another_thread(artifact):
    session = Session(artifact)
    binding, endings = session.bind(inputs()), []

    def caller() -> None:
        try:
            while True:
                binding.run()
        except MononnError as error:
            endings.append(str(error))

    thread = threading.Thread(target=caller)
    thread.start()
    time.sleep(0.02)
    session.close()
    thread.join(timeout=10)
    assert len(endings) == 1
    assert "closed" in endings[0]


def test_threads_memory_and_descriptors_are_given_back(artifact):
    def threads() -> int:
        return _count("/proc/self/task")

    def descriptors() -> int:
        return _count("/proc/self/fd")

    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count("\n")

    Session(artifact, 4).run(inputs())
    gc.collect()
    before = threads(), descriptors(), mappings()
    for _ in range(10):
        session = Session(artifact, 4)
        binding = session.bind(inputs())
        binding.run()
        assert threads() == before[0] + 3
        del session, binding
    gc.collect()
    assert (threads(), descriptors()) == before[:2]
    assert mappings() <= before[2] + 12, "thread stacks may stay cached, ten arenas may not"


def test_fork_is_noticed_and_a_clone_works_in_the_child(session):
    binding = session.bind(inputs())
    binding.run()
    child = os.fork()
    if not child:
        status = 1
        try:
            try:
                binding.run()
            except MononnError as error:
                status = 0 if "clone() it after the fork" in str(error) else 2
            check(session.clone(), 4, 4)
            session.close()
        except BaseException:
            status = 3
        os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    check(session, 6, 6)


def _count(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


def test_calling_thread_keeps_its_name(session):
    check(session, 1, 1)
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    assert names.count("mononn-worker") >= 1
    assert "mononn-worker" not in Path("/proc/self/comm").read_text()


@pytest.mark.parametrize("share", ["shared", "private"])
def test_weights_shared_or_copied(artifact, share, tmp_path):
    artifact.save(tmp_path / "x.mono")
    with load(tmp_path / "x.mono", weights=share) as session:
        check(session, 2, 2)
        shared = f"{session._code.weights.address:x}-" in _mapped_starts(tmp_path / "x.mono", session)
        assert shared == (share == "shared")


def _mapped_starts(path: Path, session: Session) -> str:
    """Lines of the memory map where ``path`` holds the session's weights, written as if they began there."""
    address = session._code.weights.address
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(word, 16) for word in line.split()[0].split("-"))
        if low <= address < high and line.endswith(str(path)):
            return f"{address:x}-"
    return ""


@pytest.mark.parametrize("threads", [1, 2])
def test_overhead_of_a_bound_run(threads):
    with Session(handmade.artifact(EMPTY), threads) as session:
        run = session.bind(inputs()).run
        best = min(_seconds(run) for _ in range(5000))
    if best > 5e-6 and os.getloadavg()[0] > 1.5 * len(os.sched_getaffinity(0)):
        pytest.skip(f"other processes keep this machine busy ({best * 1e6:.0f} us)")
    assert best < 5e-6, "ten times what it takes; the best of many, because others use this machine too"


def _seconds(run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
