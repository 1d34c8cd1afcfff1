"""What the emulated primitives answer, against NumPy and the ISA's formulas; how hardware's answers are compared."""

import functools
from pathlib import Path

import numpy as np
import pytest
from ml_dtypes import bfloat16

from mononn_core.emulate import conformance
from mononn_core.emulate.conformance import CONFIRMED, UNCONFIRMED
from mononn_core.runtime.cuda_toolchain import compile_cubin
from mononn_core.vocabulary import cuda_headers as headers
from tests.core.emulate.test_fragments import FORMULAS

IN = conformance.inputs()
REFERENCE = Path(__file__).parents[3] / "results" / "reference"
HARDWARE = REFERENCE / "nvidia-h200" / "conformance.npz"
FLOATS = IN.view(np.float32)
NEAR = ("reciprocal_near", "rsqrt_near", "exp2_near")


@functools.cache
def answers():
    return conformance.emulated()


def equal_floats(a, b):
    return ((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))


def tf32(bits):
    """cvt.rna.tf32.f32 by way of integers of any size: half of the last kept bit is added to the magnitude."""
    wide = bits.astype(np.int64)
    return np.where((wide & 0x7FFFFFFF) >= 0x7F800000, wide, ((wide >> 12) + 1 >> 1) << 13).astype(np.uint32)


def test_sixteen_bit_floats_widen_exactly():
    halves = np.arange(65536, dtype=np.uint16)
    got = answers()["f16 to float"].view(np.float32)
    assert equal_floats(got, halves.view(np.float16).astype(np.float32)).all()


@pytest.mark.parametrize(("section", "dtype"), [("float to f16", np.float16), ("float to bf16", bfloat16)])
def test_floats_round_to_nearest_even(section, dtype):
    got = answers()[section].astype(np.uint16).view(dtype).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = FLOATS.astype(dtype).astype(np.float32)
    assert equal_floats(got, expected).all()


def test_floats_round_to_tf32_ties_away():
    got, number = answers()["float to tf32"], ~np.isnan(FLOATS)
    assert (got[number] == tf32(IN)[number]).all()
    assert (got & 0x1FFF == 0)[number].all()
    exact = FLOATS[number & np.isfinite(FLOATS) & (np.abs(FLOATS) < 1e38)].astype(np.float64)
    rounded = got[number & np.isfinite(FLOATS) & (np.abs(FLOATS) < 1e38)].view(np.float32).astype(np.float64)
    normal = np.abs(exact) > 2.0**-126
    assert (np.abs(rounded - exact)[normal] <= np.abs(exact)[normal] * 2.0**-11).all()


def test_special_functions_are_near_the_exact_ones():
    v = np.abs(FLOATS[1024:2048]).astype(np.float64)
    exact = np.concatenate([1 / (v + 1), 1 / np.sqrt(v + 1), np.exp2(-v)])
    for got in (answers()["near"], np.load(HARDWARE)["near"]):
        assert (np.abs(got.view(np.float32) - exact) <= exact * 2.0**-21).all()


def test_pairs_are_packed_low_half_first():
    for kind in ("f16", "bf16"):
        halves = answers()[f"float to {kind}"]
        assert (answers()[f"pack {kind}"] == (halves | halves[::-1] << 16)).all()


def test_shuffles():
    got = answers()["shuffles"]
    lanes = np.arange(32)
    for i in range(5):
        assert (got[i * 32 : i * 32 + 32] == IN[lanes ^ (1 << i)]).all()
    assert (got[160:192] == IN[(lanes * 7 + 3) % 32]).all()
    assert (got[192:224] == IN[lanes ^ 5]).all() and (got[224:] == IN[32 + (lanes ^ 5)]).all()


def test_ldmatrix_by_the_formulas():
    halves = (np.arange(256) * 257 + 1).astype(np.uint16).reshape(32, 8)
    lanes = np.arange(32)
    rows = {"x4": lanes, "x4_trans": lanes ^ 9, "x2": 31 - lanes, "x2_trans": lanes}
    got, start = answers()["ldmatrix"], 0
    for name, order in rows.items():
        formula, count = FORMULAS["ldmatrix_trans" if "trans" in name else "ldmatrix"], int(name[1])
        for lane in range(32):
            for matrix in range(count):
                low, high = (formula(lane >> 2, lane % 4, i) for i in range(2))
                low, high = (halves[order[matrix * 8 + r], c] for r, c in (low, high))
                assert got[start + lane * count + matrix] == int(low) | int(high) << 16, (name, lane, matrix)
        start += 32 * count


def gathered(name, shape, value):
    """A matrix from what each lane holds of it: value(lane, element)."""
    matrix = np.zeros(shape)
    for lane in range(32):
        for e in range(shape[0] * shape[1] // 32):
            matrix[FORMULAS[name](lane >> 2, lane % 4, e)] = value(lane, e)
    return matrix


@pytest.mark.parametrize(("section", "a", "b", "depth"), [
    ("mma f16", "mma_16_a", "mma_16_b", 16), ("mma bf16", "mma_16_a", "mma_16_b", 16),
    ("mma tf32", "mma_tf32_a", "mma_tf32_b", 8),
])  # fmt: skip
def test_products_of_small_integers_are_exact(section, a, b, depth):
    def code(lane, e, salt):
        return (lane * 5 + e * 3 + lane * e + salt) % 7 - 3

    left = gathered(a, (16, depth), lambda lane, e: code(lane, e, 0))
    right = gathered(b, (depth, 8), lambda lane, e: code(lane, e, 1))
    start = gathered("mma_c", (16, 8), lambda lane, e: code(lane, e, 2))
    words = answers()[section].view(np.float32)
    assert (gathered("mma_c", (16, 8), lambda lane, e: words[lane * 4 + e]) == start + left @ right).all()


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_rounded_sums_are_close(kind):
    dtype, fed = (np.float16 if kind == "f16" else bfloat16), FLOATS[1024:2048].astype(np.float64)
    half = lambda i: np.float64(np.float32(fed[i]).astype(dtype))  # noqa: E731
    left = gathered("mma_16_a", (16, 16), lambda lane, e: half(e % 2 * 128 + lane * 4 + e // 2))
    right = gathered("mma_16_b", (16, 8), lambda lane, e: half(256 + e % 2 * 64 + lane * 2 + e // 2))
    start = gathered("mma_c", (16, 8), lambda lane, e: fed[384 + lane * 4 + e])
    words = answers()[f"mma {kind} rounded"].view(np.float32)
    got = gathered("mma_c", (16, 8), lambda lane, e: words[lane * 4 + e])
    assert np.abs(got - (start + left @ right)).max() <= 20 * 2.0**-24 * (np.abs(left) @ np.abs(right)).max()


def test_stages_land_whole_and_one_after_the_other():
    got, lanes = answers()["stages"], np.arange(128)
    assert (got[:128] == IN[lanes ^ 31]).all() and (got[128:256] == IN[128 + (lanes ^ 31)]).all()
    assert (got[256:376] == IN[300:420]).all() and (got[376:384] == 0).all()
    assert (got[384:] == IN[1024 + 127 - lanes]).all()


def test_copies_land_whole_in_part_or_as_zeros():
    expected = IN[:448].copy()
    lanes = np.arange(32)
    expected[128:256].reshape(32, 4)[lanes % 3 == 0] = 0
    as_bytes = expected[256:384].view(np.uint8).reshape(32, 16)
    as_bytes[np.arange(16) >= (lanes % 17)[:, None]] = 0
    expected[416:448][lanes % 2 == 0] = 0
    got = answers()["copies"]
    assert (got[:448] == expected[np.arange(448) ^ 31]).all()
    assert (got[448:] == IN[lanes * 4]).all()


def test_barriers_and_the_grid():
    got, t = answers(), np.arange(128)
    assert (got["barriers"][:128] == (t ^ 17) * 3 + 1).all()
    assert (got["barriers"][128:256] == (t ^ 33) * 5 + 2).all()
    assert (got["barriers"][256:384] == (127 - t) * 7 + 3).all() and got["barriers"][384] == 48
    assert (got["grid"][:64] == got["rows"]).all() and (got["rows"] == [*range(1000, 1032), *range(2000, 2032)]).all()
    assert got["grid"][64:68].tolist() == [0x80000000, 6, 1, 2] and got["once"].tolist() == [77, 0]


@pytest.mark.parametrize("schedule", ["block-first", "reversed", "starve:0", "starve:1", "random:5"])
def test_no_schedule_changes_an_answer(schedule):
    again = conformance.emulated(schedule)
    assert all((again[name] == words).all() for name, words in answers().items())


def test_sixteen_bytes_a_lane_are_stored_and_additions_return_what_stood_there():
    got = answers()["stores"]
    assert (got[:130] == [*range(128), 0, 7]).all()


def test_the_table_says_what_hardware_has_confirmed(tmp_path):
    assert set(conformance.table(tmp_path / "none.npz").values()) == {UNCONFIRMED}
    path = tmp_path / "gpu.npz"
    conformance.save(path, answers())
    assert set(conformance.table(path).values()) == {CONFIRMED}
    wrong = {name: words.copy() for name, words in answers().items() if name != "copies"}
    wrong["mma f16"][5] ^= 1
    wrong["shuffles"] = wrong["shuffles"][:-1]
    wrong["float to f16"][np.isnan(FLOATS)] = 0x7E00  # another NaN
    wrong["mma bf16 rounded"] += 1  # another order of sums
    standing = conformance.compare(answers(), wrong)
    assert standing["mma_16"].startswith("differs from hardware in 'mma f16': 1 words, first word 5")
    assert "255 words instead of 256" in standing["shuffle"]
    assert standing["cp_async_16"] == UNCONFIRMED and standing["from_float"] == CONFIRMED


def test_an_h200_gives_what_the_emulator_gives():
    """The outputs of real hardware, replayed: every primitive is confirmed."""
    standing = conformance.table(HARDWARE)
    assert set(standing.values()) == {CONFIRMED}, standing


def test_an_h100_gave_what_the_emulator_gives():
    """Its outputs are older than stages and the special functions."""
    standing = conformance.table(REFERENCE / "nvidia-h100" / "conformance.npz")
    others = {name for name, found in standing.items() if found != CONFIRMED}
    assert others == {"stage_open", "stage_copy", "stage_wait", "stage_fence", *NEAR}
    assert {standing[name] for name in others} == {UNCONFIRMED}


@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32"])
def test_sums_are_cut_off_toward_zero_as_an_h200_does(kind):
    """Most of hardware's rounded sums are an exact sum cut off; to nearest, no more than two thirds are."""
    hardware = np.load(HARDWARE)[f"mma {kind} rounded"]
    assert (hardware == answers()[f"mma {kind} rounded"]).mean() > 0.8


def test_the_kernel_compiles_for_hardware():
    cubin = compile_cubin(conformance.source(), headers(), "sm_80")
    usage = cubin.kernels[conformance.KERNEL]
    assert usage.spills == 0 and usage.registers > 0
