"""Plans for many sizes on disk: the next process makes no pass and no kernel for another size."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.config import current
from fulgurite.runtime.cache.disk import store_for
from fulgurite.runtime.cache.plan_cache import PlanCache
from fulgurite.runtime.cpu.device import CpuDevice
from fulgurite.runtime.realize import clear_caches
from fulgurite.runtime.sizes.sized_io import key_from

pytestmark = pytest.mark.device("cpu")
X = np.random.default_rng(0).standard_normal((512, 16)).astype(np.float32)
N = fg.Var("n", 1, 512)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> Iterator[None]:
    clear_caches()
    with fg.config(device="cpu", tier="native", disk_cache=True, cache_dir=str(tmp_path)):
        yield
    clear_caches()


def gram(x: Any) -> Any:
    place = fg.arange(x.shape[0])
    scores = fg.where(place[:, None] >= place[None, :], x @ x.transpose(0, 1) * 0.1, -fg.inf)
    return fg.softmax(scores, axis=-1) @ x * x.shape[0]


def lazy() -> Callable[[int], Any]:
    return lambda n: gram(fg.Tensor(X[:n])).numpy()


def jitted() -> Callable[[int], Any]:
    f = fg.jit(gram)
    return lambda n: f(fg.Tensor(X[:n])).numpy()


def named() -> Callable[[int], Any]:
    whole = fg.Tensor(X).realize()
    return lambda n: gram(whole[: N.bind(n)]).numpy()


def is_right(n: int, got: Any) -> bool:
    with fg.config(device="reference"):
        want = gram(fg.Tensor(X[:n])).numpy()
    return bool(np.allclose(got, want, rtol=1e-4, atol=1e-3))


@pytest.mark.parametrize("how", [lazy, jitted, named])
def test_another_process_makes_nothing_for_sizes_it_did_not_meet(
    how: Callable[[], Callable[[int], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = how()
    for n in (33, 38, 40, 47):
        assert is_right(n, run(n))
    clear_caches()  # as another process begins

    def made(*_: Any) -> Any:
        raise AssertionError("a kernel is made")

    monkeypatch.setattr(CpuDevice, "rendered", made)
    run = how()
    for n in (33, 38, 41, 43, 46) if how is not lazy else (41, 43, 46, 33):
        assert is_right(n, run(n))


@pytest.mark.parametrize("damage", ["variable", "operation", "field"])
def test_what_is_wrong_with_a_kept_plan_is_a_warning_and_a_miss(
    damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[Any] = []
    keep = PlanCache.keep_sized

    def damaged(self: Any, key: str, found: list[Any]) -> None:
        text = json.dumps(found)
        rows.append(text)
        if damage == "variable":
            text = text.replace('"s0"', '"s0+print"')
        elif damage == "operation":
            text = text.replace('">=', '"@=').replace('"<', '"@').replace('"%"', '"exec"')
        else:
            text = text.replace('"slots"', '"slates"')
        keep(self, key, json.loads(text))

    monkeypatch.setattr(PlanCache, "keep_sized", damaged)
    run = lazy()
    for n in (20, 25, 30):
        run(n)
    assert rows
    clear_caches()
    if damage == "operation" and '">=' not in rows[-1] and '"%"' not in rows[-1]:
        assert is_right(28, run(28))
        return
    with pytest.warns(RuntimeWarning, match="a stored plan is not used"):
        assert is_right(28, run(28))


def test_keys_are_polynomials_of_known_variables() -> None:
    names = frozenset({"s0"})
    kept = [[["s0", ["//", [[["s0"], 1]], [[[], 4]]]], 3]]
    assert key_from(kept, names) == ((("s0", ("//", ((("s0",), 1),), (((), 4),))), 3),)
    for wrong in ([[["s1"], 1]], [[[["**", [], []]], 1]], [[["__import__('os')"], 1]]):
        with pytest.raises(ValueError, match="there is no"):
            key_from(wrong, names)


def test_entries_are_those_of_plans() -> None:
    run = lazy()
    for n in (20, 25, 30):
        run(n)
    store = store_for(current())
    assert store is not None
    kinds = store.stats().kinds
    assert (kinds["plan"][0], kinds["sizes"][0]) == (2, 1)  # two sizes, and all of them
