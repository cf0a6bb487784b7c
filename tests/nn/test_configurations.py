"""Configurations drawn at random, beside torch: convolutions, pools, resampling, losses, layers.

Skipped where torch is not installed. A configuration that torch refuses is one that we may refuse;
one that torch takes must give what torch gives, forwards and backwards.
"""

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.nn.cases import Case, ours, theirs
from tests.nn.table import tensor
from tests.properties import kernel

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
few = settings(kernel, suppress_health_check=[HealthCheck.too_slow], database=None)
small = st.integers(1, 3)


def same(case: Case) -> None:
    """Both sides agree, or torch refuses."""
    try:
        wanted = theirs(case).arrays
    except (RuntimeError, ValueError, TypeError, AssertionError):
        return
    if not np.isfinite(wanted["output0"]).all():
        return  # a window of padding alone: torch gives its slope to an element outside of it
    if not wanted["output0"].size:
        return  # an error here, and in torch for all but some transposed convolutions
    found = ours(case).arrays
    assert sorted(found) == sorted(wanted)
    for name, want in wanted.items():
        size = max(1.0, float(np.abs(want).max(initial=0)))
        assert found[name].shape == want.shape, (case.name, name)
        np.testing.assert_allclose(
            found[name], want, rtol=1e-4, atol=1e-4 * size, err_msg=f"{case.name} {name}"
        )


@few
@given(st.data())
def test_convolutions(data: Any) -> None:
    count, groups = data.draw(small), data.draw(st.integers(1, 2))
    channels = [groups * data.draw(st.integers(1, 2)) for _ in range(2)]
    each = st.tuples(*[small] * count)
    zero = st.tuples(*[st.integers(0, 2)] * count)
    words: dict[str, Any] = {
        "kernel_size": data.draw(each), "stride": data.draw(each), "dilation": data.draw(each),
        "groups": groups, "bias": data.draw(st.booleans()), "padding": data.draw(zero),
    }  # fmt: skip
    transposed = data.draw(st.booleans())
    if transposed:
        words["output_padding"] = data.draw(zero)
    else:
        modes = ["zeros", "reflect", "replicate", "circular"]
        words["padding_mode"] = data.draw(st.sampled_from(modes))
        if data.draw(st.booleans()):
            words["padding"] = data.draw(st.sampled_from(["same", "valid"]))
    name = f"Conv{'Transpose' if transposed else ''}{count}d"
    space = data.draw(st.tuples(*[st.integers(1, 5)] * count))
    batch = data.draw(st.sampled_from([(), (2,)]))
    shape = (*batch, channels[0], *space)
    same(Case(f"{name} {words} {shape}", lambda nn: getattr(nn, name)(*channels, **words), [shape]))


@few
@given(st.data())
def test_pools(data: Any) -> None:
    count = data.draw(small)
    each = st.tuples(*[small] * count)
    kind = data.draw(st.sampled_from(["Max", "Avg", "AdaptiveAvg", "AdaptiveMax"]))
    words: dict[str, Any]
    if kind.startswith("Adaptive"):
        words = {"output_size": data.draw(st.tuples(*[st.integers(1, 6)] * count))}
    else:
        words = {
            "kernel_size": data.draw(each), "stride": data.draw(st.none() | each),
            "padding": data.draw(st.tuples(*[st.integers(0, 1)] * count)),
            "ceil_mode": data.draw(st.booleans()),
        }  # fmt: skip
        if kind == "Max":
            words["dilation"] = data.draw(each)
        else:
            words["count_include_pad"] = data.draw(st.booleans())
    shape = (2, 2, *data.draw(st.tuples(*[st.integers(2, 7)] * count)))
    name = f"{kind}Pool{count}d"
    same(Case(f"{name} {words} {shape}", lambda nn: getattr(nn, name)(**words), [shape]))


@few
@given(st.data())
def test_resampling(data: Any) -> None:
    modes = {
        "nearest": (1, 2, 3), "nearest-exact": (1, 2, 3), "linear": (1,), "bilinear": (2,),
        "bicubic": (2,), "trilinear": (3,), "area": (1, 2, 3),
    }  # fmt: skip
    mode = data.draw(st.sampled_from(sorted(modes)))
    count = data.draw(st.sampled_from(modes[mode]))
    words: dict[str, Any] = {"mode": mode}
    if mode.endswith(("linear", "cubic")):
        words["align_corners"] = data.draw(st.booleans())
    if data.draw(st.booleans()):
        words["size"] = data.draw(st.tuples(*[st.integers(1, 9)] * count))
    else:
        factors = st.sampled_from([0.5, 0.7, 1.0, 1.5, 2.0, 2.3, 3.0])
        words["scale_factor"] = data.draw(st.tuples(*[factors] * count))
        words["recompute_scale_factor"] = data.draw(st.booleans()) or None
    shape = (1, 2, *data.draw(st.tuples(*[st.integers(2, 6)] * count)))
    if words.get("recompute_scale_factor", 0) is None:
        del words["recompute_scale_factor"]
    same(Case(f"Upsample {words} {shape}", lambda nn: nn.Upsample(**words), [shape]))


@few
@given(st.data())
def test_recurrent_layers(data: Any) -> None:
    name = data.draw(st.sampled_from(["RNN", "LSTM", "GRU"]))
    words: dict[str, Any] = {
        "num_layers": data.draw(st.integers(1, 2)), "bias": data.draw(st.booleans()),
        "batch_first": data.draw(st.booleans()), "bidirectional": data.draw(st.booleans()),
    }  # fmt: skip
    sizes = data.draw(st.tuples(small, st.integers(2, 3)))
    if name == "LSTM" and data.draw(st.booleans()):
        words["proj_size"] = 1
    if name == "RNN":
        words["nonlinearity"] = data.draw(st.sampled_from(["tanh", "relu"]))
    shape = (*data.draw(st.sampled_from([(4, 2), (1, 1), (3,)])), sizes[0])
    same(
        Case(
            f"{name} {sizes} {words} {shape}",
            lambda nn: getattr(nn, name)(*sizes, **words),
            [shape],
        )
    )


@few
@given(st.data())
def test_classification_losses(data: Any) -> None:
    classes = data.draw(st.integers(2, 4))
    space = data.draw(st.sampled_from([(), (3,), (2, 2)]))
    labels = np.array(
        data.draw(st.lists(st.integers(0, classes - 1), min_size=8, max_size=8)), np.int32
    )
    target = labels[: 2 * int(np.prod(space))].reshape(2, *space)
    words: dict[str, Any] = {
        "ignore_index": data.draw(st.sampled_from([-100, 0, 1])),
        "reduction": data.draw(st.sampled_from(["mean", "sum", "none"])),
        "label_smoothing": data.draw(st.sampled_from([0.0, 0.1, 1.0])),
    }
    weights = (
        np.linspace(0.5, 2.0, classes).astype(np.float32) if data.draw(st.booleans()) else None
    )

    def make(nn: Any) -> Any:
        return nn.CrossEntropyLoss(None if weights is None else tensor(nn, weights), **words)

    if words["reduction"] == "mean" and (target == words["ignore_index"]).all():
        return  # 0 / 0 on both sides
    case = Case(
        f"CrossEntropyLoss {words} {weights} {target}", make, [(2, classes, *space), target]
    )
    same(case)


@few
@given(st.data())
def test_attention(data: Any) -> None:
    heads = data.draw(st.integers(1, 2))
    size = heads * data.draw(st.integers(1, 3))
    words: dict[str, Any] = {
        "bias": data.draw(st.booleans()), "add_bias_kv": data.draw(st.booleans()),
        "add_zero_attn": data.draw(st.booleans()), "batch_first": True,
        "kdim": data.draw(st.sampled_from([None, 3])),
        "vdim": data.draw(st.sampled_from([None, 5])),
    }  # fmt: skip
    queries, keys = data.draw(st.tuples(small, small))
    call: dict[str, Any] = {
        "need_weights": data.draw(st.booleans()), "average_attn_weights": data.draw(st.booleans())
    }  # fmt: skip
    kind = data.draw(st.sampled_from(["none", "bool", "float"]))
    mask = np.arange(queries)[:, None] + 1 < np.arange(keys)
    if kind != "none":
        call["attn_mask"] = mask if kind == "bool" else np.where(mask, -3.0, 0.5).astype(np.float32)
    if kind != "float" and data.draw(st.booleans()):
        padding = np.zeros((2, keys), bool)
        padding[1, 1:] = True
        call["key_padding_mask"] = padding
    shapes = [
        (2, queries, size), (2, keys, words["kdim"] or size), (2, keys, words["vdim"] or size)
    ]  # fmt: skip
    name = f"MultiheadAttention {size} {heads} {words} {call}"
    same(Case(name, lambda nn: nn.MultiheadAttention(size, heads, **words), shapes, call))
