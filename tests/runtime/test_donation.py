"""Tests of fulgurite/runtime/donation.py: every way to hold memory is counted."""

import copy
import threading
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.ops.effect import HostFunction, custom
from fulgurite.graph.ir.cache_key import normalize
from fulgurite.graph.ir.registry import REGISTRY, MovedError
from fulgurite.runtime import donation
from fulgurite.runtime.donation import candidates
from fulgurite.runtime.realize import storage_of, value_node
from fulgurite.tensor import wrap
from tests.threads import together


def updated() -> fg.Tensor:
    x = (fg.Tensor(np.ones((8, 4), np.float32)) * 2).realize()
    x[3] = 5
    return x


def pairs(x: fg.Tensor) -> tuple[tuple[int, int], ...]:
    roots = [x.node]
    return candidates(roots, normalize(roots)).pairs


def test_memory_that_only_the_update_reaches_is_a_candidate() -> None:
    assert pairs(updated()) == ((0, 0),)


def test_few_bytes_are_written_anew_and_many_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(donation, "COPIED_BYTES", 1024)
    few = updated()
    assert pairs(few) == ()
    few.realize()
    assert few.numpy()[2:5].tolist() == [[2] * 4, [5] * 4, [2] * 4]
    many = (fg.Tensor(np.ones((1024, 64), np.float32)) * 2).realize()
    many[3] = 5
    assert pairs(many) == ((0, 0),)


@pytest.mark.parametrize("fold", ["sum", "max"])
def test_a_fold_on_the_way_is_held_by_nobody_else(fold: str) -> None:
    x = (fg.Tensor(np.arange(4096.0, dtype=np.float32).reshape(64, 64)) * 2).realize()
    x -= getattr(x, fold)(1, keepdims=True)
    assert pairs(x) == ((0, 0),)


def buffer_of(x: fg.Tensor) -> Any:
    return x.node.src[0]


def array_of(x: fg.Tensor) -> Any:
    return storage_of(buffer_of(x)).array  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "hold",
    [
        buffer_of,
        lambda x: x.node.src[1],
        lambda x: storage_of(buffer_of(x)),
        lambda x: normalize([x.node]),
        pytest.param(lambda x: array_of(x), marks=pytest.mark.host_memory),
        pytest.param(lambda x: array_of(x)[2:], marks=pytest.mark.host_memory),
        pytest.param(lambda x: memoryview(array_of(x)), marks=pytest.mark.host_memory),
    ],
    ids=["buffer", "value", "storage", "key", "array", "view", "memoryview"],
)
def test_one_reference_more_and_it_is_not(hold: Any) -> None:
    x = updated()
    held = hold(x)
    assert pairs(x) == ()
    del held
    assert pairs(x) == ((0, 0),)


def test_what_is_built_on_the_new_version_does_not_count() -> None:
    x = updated()
    later, same = x + 1, copy.copy(x)
    assert pairs(x) == ((0, 0),)
    x.realize()
    assert same.tolist() == x.tolist() and later.tolist() == (x + 1).tolist()


def test_a_graph_with_a_host_function_is_not_written_in_place() -> None:
    x = updated()
    x += wrap(custom(HostFunction("h", lambda a: a), (fg.ones((8, 4)).node,), (8, 4), x.dtype))
    assert pairs(x) == ()


def test_a_root_that_a_thread_still_holds_reads_the_new_buffer() -> None:
    with fg.config(device="reference"):
        x = updated()
        root = x.node  # as another thread has it that is about to build on it
        x.realize()
        assert wrap(root).tolist() == x.tolist()
        with pytest.raises(MovedError):
            REGISTRY.memory(root.src[0])
        x[0] = 1
        assert pairs(x) == (), "the old root keeps its buffer"
        want = x.tolist()
        assert wrap(root).tolist()[0] == [2, 2, 2, 2] and x.tolist() == want


def test_who_needs_memory_that_is_taken_waits() -> None:
    x = (fg.Tensor(np.ones(4, np.float32)) * 3).realize()
    node = value_node(x.node)
    assert node is not None
    storage = REGISTRY.take(node)
    assert storage is not None
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.append(x.tolist()))
    reader.start()
    reader.join(0.05)
    assert not found
    REGISTRY.give_back(node, storage)
    reader.join(5)
    assert found == [[3, 3, 3, 3]]


def test_threads_that_realize_one_update_write_it_once() -> None:
    for _ in range(20):
        x = updated()
        x += 1
        found = together(4, lambda _, x=x: x.numpy())  # type: ignore[misc]
        assert all((f[3] == 6).all() and (f[0] == 3).all() for f in found)


def adam(p: Any, m: Any, v: Any, g: Any, root: Any) -> tuple[Any, Any, Any]:
    """One update that reads all of the old state in each of the new."""
    new = m * 0.9 + g * 0.1, v * 0.99 + g * g * 0.01
    return p - 0.1 * new[0] / (root(new[1]) + 0.1) - 0.01 * m, *new


@pytest.mark.parametrize("shape", [(1, 5), (7, 33), (40, 64), (129, 50)])
@pytest.mark.parametrize("kind", ["product", "sums", "transposed"])
@pytest.mark.parametrize("jitted", [False, True])
def test_state_is_updated_where_it_is_by_the_kernel_of_its_gradient(
    shape: tuple[int, int], kind: str, jitted: bool
) -> None:
    random = np.random.default_rng(3)
    a, b = [random.standard_normal((24, n)) for n in shape]
    wide = random.standard_normal((24, *shape))
    gradients: dict[str, Any] = {
        "product": lambda a, b, wide: a.T @ b,
        "transposed": lambda a, b, wide: (b.T @ a).T,
        "sums": lambda a, b, wide: (wide * wide).sum(0),
    }
    gradient = gradients[kind]
    state = [random.standard_normal(shape) for _ in range(2)]
    state.append(random.random(shape))
    tensors = [fg.Tensor(x.astype(np.float32)) for x in state]
    given = [fg.Tensor(x.astype(np.float32)) for x in (a, b, wide)]

    def step(p: fg.Tensor, m: fg.Tensor, v: fg.Tensor, *given: fg.Tensor) -> fg.Tensor:
        for x, new in zip((p, m, v), adam(p, m, v, gradient(*given), fg.sqrt), strict=True):
            x.assign(new)
        return given[0].sum()

    with fg.config(tier="native"):
        run = fg.jit(step) if jitted else step
        for _ in range(3):
            state = list(adam(state[0], state[1], state[2], gradient(a, b, wide), np.sqrt))
            run(*tensors, *given).realize()
            fg.realize(*tensors)
    for x, want in zip(tensors, state, strict=True):
        np.testing.assert_allclose(x.numpy(), want, 2e-3, 2e-3)
