"""Tiny graphs on the host: what depends on no input is computed once; views are what they were."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.dtype import DTYPES, DType
from fulgurite.core.op import meaning_of
from fulgurite.core.operators import OPS
from fulgurite.core.ops.elementwise import ADD
from fulgurite.core.ops.leaf import param
from fulgurite.core.ops.movement import EXPAND, expand
from fulgurite.errors import BoundsError
from fulgurite.runtime.host.tiny import TinyExecutor

pytestmark = pytest.mark.device("cpu")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[TinyExecutor]]:
    """The executors that are made."""
    found: list[TinyExecutor] = []
    once = TinyExecutor._do_once

    def noted(self: TinyExecutor) -> None:
        once(self)
        found.append(self)

    monkeypatch.setattr(TinyExecutor, "_do_once", noted)
    with fg.config(tier="auto"):
        yield found


def test_masks_and_counts_are_no_steps_of_a_run(made: list[TinyExecutor]) -> None:
    x = fg.Tensor(np.arange(35, dtype=np.float32).reshape(5, 7)).realize()
    found = fg.tril(x) * 1.25
    assert found.tolist() == (np.tril(x.numpy()) * np.float32(1.25)).tolist()
    names = [node.op.name for _, node, _ in made[-1].steps]
    assert names == ["where", "mul"]
    again = (fg.tril(x + 1) * 1.25).tolist()
    assert again == (np.tril(x.numpy() + 1) * np.float32(1.25)).tolist()


def test_a_result_that_is_computed_once_is_never_shared(made: list[TinyExecutor]) -> None:
    results = [fg.Tensor([1.0, 2.0]).realize() * 0 + fg.arange(2) for _ in range(3)]
    for k, result in enumerate(results):
        result += float(k)
    assert [r.tolist() for r in results] == [[k, k + 1.0] for k in range(3)]
    plain = [fg.arange(3).realize() for _ in range(2)]
    plain[0].numpy()
    plain[0] += 5
    assert plain[0].tolist() == [5, 6, 7] and plain[1].tolist() == [0, 1, 2]


def test_what_is_large_is_not_kept_by_a_plan(made: list[TinyExecutor]) -> None:
    x = fg.Tensor(np.ones(9000, np.float32)).realize()
    assert float((x + fg.arange(9000)).sum()) == 9000 + 8999 * 4500
    assert sum(a.nbytes for a in made[-1].first if a is not None and a.base is None) < 9000


@pytest.mark.parametrize("source, shape", [
    ((1, 4), (3, 4)), ((3, 1), (3, 4)), ((1, 1), (3, 4)), ((3, 4), (3, 4)), ((0, 1), (0, 5)),
    ((1, 3), (0, 3)), ((), ()), ((1, 2, 1), (5, 2, 7)),
])  # fmt: skip
@pytest.mark.parametrize("layout", ["plain", "turned", "reversed", "strided"])
def test_expanding_is_what_numpy_broadcasts(
    source: tuple[int, ...], shape: tuple[int, ...], layout: str
) -> None:
    rng = np.random.default_rng(3)
    values = rng.standard_normal(source).astype(np.float32)
    if source and layout == "turned":
        values = np.ascontiguousarray(values.T).T
    elif source and layout == "reversed":
        values = np.ascontiguousarray(values[::-1])[::-1]
    elif source and layout == "strided":
        values = np.repeat(values, 2, -1)[..., ::2]
    assert EXPAND.numpy is not None
    node = expand(param(0, source, fg.float32, None), shape)
    found = values if node.op is not EXPAND else EXPAND.numpy(node, values)
    assert found.shape == shape
    np.testing.assert_array_equal(found, np.broadcast_to(values, shape))


# --- fewer and shorter steps ---------------------------------------------------------------------


def test_what_numpy_broadcasts_by_itself_is_no_step(made: list[TinyExecutor]) -> None:
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    found = fg.softmax(fg.Tensor(x).realize(), axis=1).numpy()
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_array_equal(found, e / e.sum(1, keepdims=True))
    assert "expand" not in [node.op.name for _, node, _ in made[-1].steps]


def test_what_is_stretched_for_others_than_elementwise_ops_is_a_step(
    made: list[TinyExecutor],
) -> None:
    x = fg.Tensor(np.array([[1.0], [2.0]], np.float32)).realize()
    wide = x.expand((2, 3))
    assert (abs(wide) + wide).tolist() == [[2.0] * 3, [4.0] * 3]
    assert [n.op.name for _, n, _ in made[-1].steps].count("expand") == 1
    y = fg.Tensor(np.ones((2, 3), np.float32)).realize()
    both = wide + y
    total = wide.sum(1)
    fg.realize(both, total)
    assert both.tolist() == [[2.0] * 3, [3.0] * 3] and total.tolist() == [3.0, 6.0]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 3)], ids=str)
@pytest.mark.parametrize("kind", DTYPES, ids=str)
def test_a_prepared_meaning_gives_the_bits_of_the_meaning(
    kind: DType, shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(1)
    arrays = [(rng.integers(-4, 5, shape) + 0.0).astype(kind.numpy) for _ in range(3)]
    sources = [param(i, shape, kind, None) for i in range(3)]
    met = 0
    for op in OPS.values():
        if op.family != "elementwise" or kind.kind not in op.kinds or op.arity not in (2, 3):
            continue
        if op.check is not ADD.check:  # whose sources differ in kind
            continue
        node = op(*sources[: op.arity])
        assert op.numpy is not None
        with np.errstate(all="ignore"):
            meant = op.numpy(node, *arrays[: op.arity])
            found = meaning_of(node)(*arrays[: op.arity])
        assert found.dtype == meant.dtype and found.shape == meant.shape, op
        assert found.tobytes() == meant.tobytes(), op
        met += 1
    assert met


@pytest.mark.parametrize("place", [-1, 3, 2**40])
def test_an_index_below_0_or_beyond_is_an_error(place: int) -> None:
    with fg.config(tier="auto"):
        x, index = fg.Tensor([1.0, 2.0, 3.0]), fg.Tensor(np.array([0, place], np.int64))
        classes = fg.Tensor(np.zeros((2, 3), np.float32))
        if place == -1:
            assert x[index].tolist() == [1.0, 3.0]
            with pytest.raises(BoundsError, match="index -1"):
                fg.cross_entropy(classes, index).numpy()
        else:
            with pytest.raises(BoundsError, match=f"index {place}"):
                x[index].numpy()
