"""ONNX Runtime's fused attention, and what stands around it, as functions of ONNX's own operators: products, a softmax
and sums, which :mod:`mononn_core.passes.attention` makes one operator again.

ONNX Runtime, docs/ContribOperators.md; see :mod:`mononn_core.importer.fused`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import onnx

from mononn_core.importer.fused import Body, Outputs, fused


@fused("RotaryEmbedding", needs=(0, 1, 2, 3))
def _rotary(f: Body) -> str:
    """(x, position ids, cosines, sines); one position is the first token's."""
    if f.attr("scale", 1.0) != 1 or f.attr("is_packed_batching", 0):
        raise f.unsupported("rotary embeddings that are scaled, or of packed batches, are not supported")
    shape, kept = f.shape(0), {k: f.attr(k, 0) for k in ("interleaved", "num_heads", "rotary_embedding_dim")}
    batch, tokens = shape[0], shape[2] if len(shape) == 4 else shape[1]
    return f("RotaryEmbedding", f[0], f[2], f[3], _positions(f, 1, batch, tokens), **_heads_of(f, kept))


def _heads_of(f: Body, kept: dict[str, int]) -> dict[str, int]:
    """ONNX's operator wants the number of heads of [batch, tokens, width], which ONNX Runtime finds in the caches."""
    shape, width = f.shape(0), kept["rotary_embedding_dim"] or 2 * f.shape(2)[1]
    if len(shape) == 3 and not kept["num_heads"]:
        kept["num_heads"] = shape[2] // width
    return kept


def _positions(f: Body, position: int, batch: int, tokens: int) -> str:
    if f.shape(position) == (batch, tokens):
        return f[position]
    counted = f("Add", f.reshape(f[position], 1, 1), f.integers(*range(tokens)))
    return f("Expand", counted, f.integers(batch, tokens))


def _attend(f: Body, q: str, k: str, v: str, added: Sequence[str], shape: tuple[int, int, int, int]) -> str:
    """softmax(q k' scale + added) v as [batch, tokens, heads * width] of ``shape`` (batch, tokens, width, depth); where
    scores are capped, cap tanh(score / cap)."""
    batch, tokens, width, depth = shape
    scores = f("MatMul", q, f("Transpose", k, perm=[0, 1, 3, 2]))
    scores = f("Mul", scores, f.number(f.attr("scale", 0.0) or depth**-0.5, scores))
    if cap := f.attr("softcap", 0.0):
        scores = f("Mul", f("Tanh", f("Div", scores, f.number(cap, scores))), f.number(cap, scores))
    values = f("MatMul", f("Softmax", f.sum(scores, *added), axis=-1), v)
    return f.reshape(f("Transpose", values, perm=[0, 2, 1, 3]), batch, tokens, width)


def _split(f: Body, x: str, batch: int, tokens: int, heads: int, depth: int) -> str:
    return f("Transpose", f.reshape(x, batch, tokens, heads, depth), perm=[0, 2, 1, 3])


def _lowest(f: Body) -> float:
    """What takes any score's weight to zero, and is finite in the type of the first input: times zero it is zero."""
    kind = f.types[0]
    return -6e4 if kind is not None and kind.dtype == "float16" else -1e30


def _masked(f: Body, kept: str, like: str, value: float) -> str:
    """``value`` where ``kept`` is zero or false, else zero."""
    one = f.number(1, like)
    return f("Mul", f("Sub", one, f("CastLike", kept, like)), f.number(value, like))


def _padding(f: Body, position: int, batch: int, tokens: int, keys: int, like: str) -> str:
    """What a mask adds to scores: lengths [batch], or [2 batch] with starts behind ends; of keys, of queries and keys;
    "" without one."""
    if not f.has(position):
        return ""
    shape, mask, value = f.shape(position), f[position], f.attr("mask_filter_value", -10000.0)
    if shape in ((batch,), (2 * batch,)):
        places = f("Cast", f.integers(*range(keys)), to=onnx.TensorProto.INT32)
        ends = f.reshape(f.cut(mask, 0, 0, batch), batch, 1)
        kept = f("Less", places, ends)
        if shape[0] == 2 * batch:
            kept = f("And", kept, f("GreaterOrEqual", places, f.reshape(f.cut(mask, 0, batch, 2 * batch), batch, 1)))
        return _masked(f, f.reshape(kept, batch, 1, 1, keys), like, value)
    if shape in ((batch, keys), (batch, tokens, keys)):
        return _masked(f, f.reshape(mask, batch, 1, tokens if len(shape) == 3 else 1, keys), like, value)
    raise f.unsupported(f"a mask of shape {list(shape)} is neither of lengths, nor of keys, nor of queries by keys")


def _causal(f: Body, tokens: int, keys: int, like: str) -> str:
    """What keeps queries, the last of the keys, from later keys."""
    ones = f("Expand", f("CastLike", f.integers(1), like), f.integers(tokens, keys))
    return _masked(f, f("Trilu", ones, f("Constant", value_int=keys - tokens), upper=0), like, _lowest(f))


def _joined(f: Body, past: str, new: str) -> str:
    return f("Concat", past, new, axis=2) if past else new


@fused("Attention", needs=(0, 1))
def _attention(f: Body) -> Outputs:
    """(x, weights of q, k and v, bias, mask, past of k and v, bias of scores)."""
    batch, tokens, _ = f.shape(0)
    return _of_product(f, f.sum(f("MatMul", f[0], f[1]), f[2]), (batch, tokens, f.shape(1)[1]), mask=3, past=4, bias=5)


@fused("QAttention", needs=range(5))
def _quantised_attention(f: Body) -> Outputs:
    """(x, weights, bias, scale of x, of weights, mask, zero point of x, of weights, past): Attention of what is
    quantised."""
    batch, tokens, _ = f.shape(0)
    x = f("DequantizeLinear", f[0], _one(f, 3), _one(f, 6) if f.has(6) else "")
    scale, zero = _one(f, 4), _one(f, 7) if f.has(7) else ""
    weights = f("DequantizeLinear", f[1], scale, zero, axis=1)
    product = f.sum(f("MatMul", x, weights), f[2])
    return _of_product(f, product, (batch, tokens, f.shape(1)[1]), mask=5, past=8, bias=9)


def _one(f: Body, position: int) -> str:
    """A scale or zero point of one element as a scalar."""
    return f("Squeeze", f[position]) if f.shape(position) == (1,) else f[position]


def _of_product(f: Body, product: str, shape: tuple[int, int, int], mask: int, past: int, bias: int) -> Outputs:
    """Attention of q, k and v side by side; of the inputs that are a mask, past keys and values, a bias of scores."""
    if f.attr("do_rotary", 0) or (f.has(6) and f.node.op_type == "Attention"):
        raise f.unsupported("rotary embeddings inside, and pasts in shared buffers, are not supported")
    batch, tokens, width = shape
    heads, sizes = int(f.attr("num_heads", 1)), f.attr("qkv_hidden_sizes", []) or [width // 3] * 3
    ends = [0, sizes[0], sizes[0] + sizes[1], sum(sizes)]
    parts = [f.cut(product, 2, a, b) for a, b in pairwise(ends)]
    q, k, v = (_split(f, x, batch, tokens, heads, n // heads) for x, n in zip(parts, sizes, strict=True))
    before, present = 0, ""
    if f.has(past):
        before = f.shape(past)[3]
        k, v = (_joined(f, f("Squeeze", f.cut(f[past], 0, i, i + 1), f.integers(0)), x) for i, x in enumerate((k, v)))
    if len(f.node.outputs) > 1:
        present = f("Concat", *(f("Unsqueeze", x, f.integers(0)) for x in (k, v)), axis=0)
    keys = before + tokens
    added = [f[bias], _padding(f, mask, batch, tokens, keys, q)]
    added.append(_causal(f, tokens, keys, q) if f.attr("unidirectional", 0) else "")
    return _attend(f, q, k, v, added, (batch, tokens, sizes[2], sizes[0] // heads)), present


@fused("MultiHeadAttention")
def _multi_head(f: Body) -> Outputs:
    """(query, key, value, bias, mask of keys, bias of scores, past key, past value): [batch, tokens, width] each, or k
    and v in heads."""
    if any(f.has(i) for i in (8, 9)):
        raise f.unsupported("pasts in shared buffers are not supported")
    if any(len(f.shape(i)) not in (3, 4) for i in range(3) if f.has(i)) or not (f.has(1) and f.has(2)):
        raise f.unsupported("packed queries, keys and values are not supported; export them apart")
    (batch, tokens, width), heads = f.shape(0), int(f.attr("num_heads", 1))
    depth, made, start = width // heads, [], 0
    for i in range(3):
        shape, x = f.shape(i), f[i]
        if len(shape) == 3:
            bias = f.cut(f[3], 0, start, start + shape[2]) if f.has(3) else ""
            x = _split(f, f.sum(x, bias), batch, shape[1], heads, shape[2] // heads)
        start += shape[2] if len(shape) == 3 else shape[1] * shape[3]
        made.append(x)
    q, k, v = made[0], _joined(f, f[6], made[1]), _joined(f, f[7], made[2])
    length, value = f.shape(1)[-2], f.shape(2)
    keys = length + (f.shape(6)[2] if f.has(6) else 0)
    added = [f[5], _padding(f, 4, batch, tokens, keys, q)]
    added.append(_causal(f, tokens, keys, q) if f.attr("unidirectional", 0) else "")
    whole = value[2] if len(value) == 3 else value[1] * value[3]
    return _attend(f, q, k, v, added, (batch, tokens, whole, depth)), k, v


@fused("GroupQueryAttention", needs=(0, 5))
def _group_query(f: Body) -> Outputs:
    """(query, key, value, past key, past value, lengths - 1, total length, cosines, sines, positions, bias of scores):
    causal, keys and values of fewer heads; a sequence's new keys stand behind those that it has, whatever the room."""
    if any(f.attr(name, 0) for name in ("smooth_softmax", "qk_output", "kv_cache_bit_width")) or f.has(11):
        raise f.unsupported("sinks of attention, its scores as outputs, and quantised caches are not supported")
    batch, tokens, width = f.shape(0)
    heads, few, packed = int(f.attr("num_heads", 1)), int(f.attr("kv_num_heads", 1)), not f.has(1)
    depth = width // (heads + 2 * few) if packed else width // heads
    parts, start = [f[0], f[1], f[2]], 0
    for i, n in enumerate((heads, few, few)) if packed else ():
        parts[i], start = f.cut(f[0], 2, start, start + n * depth), start + n * depth
    room = f.shape(3)[2] if f.has(3) else 0
    # Tokens that every sequence has already, [batch, 1].
    past = f("Sub", f.reshape(f("Cast", f[5], to=onnx.TensorProto.INT64), batch, 1), f.integers(tokens - 1))
    past = f("Max", past, f.integers(0)) if room else f("Expand", f.integers(0), f.integers(batch, 1))
    if f.attr("do_rotary", 0):
        at = f[9] if f.has(9) else f("Add", past, f.reshape(f.integers(*range(tokens)), 1, tokens))
        kept = {"interleaved": int(f.attr("rotary_interleaved", 0))}
        for i, n in enumerate((heads, few)):
            parts[i] = f("RotaryEmbedding", parts[i], f[7], f[8], at, num_heads=n, **kept)
    q, k, v = (_split(f, x, batch, tokens, n, depth) for x, n in zip(parts, (heads, few, few), strict=True))
    keys = room + tokens
    if room:
        k, v = (_behind(f, f[i], x, past, (batch, few, keys, depth)) for i, x in ((3, k), (4, v)))
    wide_k, wide_v = (_repeated(f, x, (batch, few, heads // few, keys, depth)) for x in (k, v))
    added = (f[10], _window(f, past, (batch, tokens, keys), q))
    return _attend(f, q, wide_k, wide_v, added, (batch, tokens, heads * depth, depth)), k, v


def _behind(f: Body, old: str, new: str, past: str, shape: tuple[int, int, int, int]) -> str:
    """``new`` [batch, heads, tokens, depth] behind the first ``past`` of ``old``, which may have room for more."""
    batch, keys, room = shape[0], shape[2], f.shape(3)[2]
    places = f.reshape(f.integers(*range(keys)), 1, keys)
    behind = f("Min", f("Add", f("Sub", places, past), f.integers(room)), f.integers(keys - 1))
    chosen = f("Where", f("Less", places, past), places, behind)
    both = f("Concat", old, new, axis=2)
    if batch == 1:
        return f("Gather", both, f.reshape(chosen, keys), axis=2)
    index = f("Expand", f.reshape(chosen, batch, 1, keys, 1), f.integers(*shape))
    return f("GatherElements", both, index, axis=2)


def _repeated(f: Body, x: str, shape: tuple[int, int, int, int, int]) -> str:
    """``x`` [batch, few, keys, depth] for every head that shares it."""
    batch, few, times, keys, depth = shape
    if times == 1:
        return x
    wide = f("Expand", f.reshape(x, batch, few, 1, keys, depth), f.integers(*shape))
    return f.reshape(wide, batch, few * times, keys, depth)


def _window(f: Body, past: str, shape: tuple[int, int, int], like: str) -> str:
    """What keeps a query from keys behind its own place, and from those further in front than the window."""
    batch, tokens, keys = shape
    here = f("Add", f.reshape(past, batch, 1, 1), f.reshape(f.integers(*range(tokens)), 1, tokens, 1))
    places = f.reshape(f.integers(*range(keys)), 1, 1, keys)
    kept = f("LessOrEqual", places, here)
    if (window := int(f.attr("local_window_size", -1))) > 0:
        kept = f("And", kept, f("Greater", places, f("Sub", here, f.integers(window))))
    return _masked(f, f.reshape(kept, batch, 1, tokens, keys), like, _lowest(f))
