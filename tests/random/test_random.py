"""Tests of random/__init__.py: distributions, keys, state, and that numbers are the same anywhere.

Seeds are fixed: a statistical test that passes once passes always.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.dtype import DTYPES, DType
from fulgurite.core.op import Array
from fulgurite.core.ops.random import RANDOM
from fulgurite.errors import ArgumentError, DTypeError, FulguriteError, ShapeError
from fulgurite.random.generator import GENERATOR, Source, Tape
from tests.functional.helpers import raises

random = fg.random
FLOATS = [d for d in DTYPES if d.kind == "f"]
WHOLE = [d for d in DTYPES if d.kind in "iu"]


@pytest.fixture(autouse=True)
def _same_state() -> Iterator[None]:
    state = random.get_state()
    random.seed(0)
    yield
    random.set_state(state)


def wide(x: fg.Tensor) -> Array:
    return x.numpy().astype(np.float64)


# --- statistics ----------------------------------------------------------------------------------


def distance(sample: Array, cdf: Callable[[Array], Array]) -> float:
    """Kolmogorov and Smirnov's distance, times the root of the count: above 1.95 once in 1000."""
    x = np.sort(sample.ravel())
    want, n = cdf(x), x.size
    steps = np.arange(n + 1) / n
    worst = max(np.max(steps[1:] - want), np.max(want - steps[:-1]))
    return float(worst) * math.sqrt(n)


def apart(a: Array, b: Array) -> float:
    """The same for two samples of one size."""
    points = np.sort(np.concatenate([a, b]))
    below = [np.searchsorted(np.sort(x), points, side="right") / x.size for x in (a, b)]
    return float(np.max(np.abs(below[0] - below[1]))) * math.sqrt(a.size / 2)


def chi_square(counts: Array, want: Array) -> float:
    """How many standard deviations the sum of squares is from what chance gives."""
    used = want > 0
    assert not counts[~used].any(), "what has no probability was drawn"
    freedom = int(used.sum()) - 1
    total = float((((counts - want) ** 2)[used] / want[used]).sum())
    return (total - freedom) / math.sqrt(2 * freedom)


def normal_cdf(x: Array) -> Array:
    return np.array([math.erfc(-v / math.sqrt(2)) / 2 for v in x])


@pytest.mark.parametrize("dtype", [fg.float32, fg.float64], ids=str)
@pytest.mark.parametrize("seed", [1, 2])
def test_distributions_follow_their_law(dtype: DType, seed: int) -> None:
    k, n = random.key(seed), (20000,)
    laws: dict[str, tuple[fg.Tensor, Callable[[Array], Array]]] = {
        "uniform": (random.uniform(n, dtype=dtype, key=k), lambda x: x),
        "between": (random.uniform(n, -3.0, 5.0, dtype=dtype, key=k), lambda x: (x + 3) / 8),
        "normal": (random.normal(n, dtype=dtype, key=k), normal_cdf),
        "located": (
            random.normal(n, 2.0, 3.0, dtype=dtype, key=k), lambda x: normal_cdf((x - 2) / 3)),
        "exponential": (
            random.exponential(n, 2.0, dtype=dtype, key=k), lambda x: 1 - np.exp(-x / 2)),
    }  # fmt: skip
    for low, high in ((-2.0, 2.0), (-1.0, 4.0), (3.0, 4.0), (-9.0, -2.0), (0.5, 40.0)):
        ends = normal_cdf(np.array([low, high]))
        if low > 0:
            ends = 1 - normal_cdf(np.array([-low, -high]))
        share = lambda x, e=ends: (normal_cdf(x) - e[0]) / (e[1] - e[0])  # noqa: E731
        drawn = random.truncated_normal(n, low, high, dtype=dtype, key=k)
        laws[f"truncated {low} {high}"] = drawn, share
    for name, (sample, cdf) in laws.items():
        assert sample.dtype is dtype
        assert distance(wide(sample), cdf) < 1.95, name


@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.999, 1.0, 2.5, 40.0, 1e4])
def test_gamma_follows_its_law_for_small_and_large_alpha(alpha: float) -> None:
    sample = wide(random.gamma(alpha, (20000,), dtype=fg.float64, key=random.key(3)))
    want = np.random.default_rng(3).gamma(alpha, size=20000)
    assert apart(sample, want) < 1.95
    assert abs(sample.mean() - alpha) < 5 * math.sqrt(alpha / 20000)
    narrow = wide(random.gamma(alpha, (20000,), scale=2.0, key=random.key(4))) / 2
    assert np.isfinite(narrow).all() and (narrow >= 0).all()
    assert apart(narrow[narrow > 0], want[: (narrow > 0).sum()]) < 1.95


def test_beta_follows_its_law_and_small_parameters_give_no_nan() -> None:
    sample = wide(random.beta(2.0, 0.5, (20000,), key=random.key(5)))
    assert apart(sample, np.random.default_rng(5).beta(2.0, 0.5, 20000)) < 1.95
    tiny = wide(random.beta(1e-3, 1e-3, (4000,), key=random.key(5)))
    assert ((tiny >= 0) & (tiny <= 1)).all() and abs(tiny.mean() - 0.5) < 0.05


@pytest.mark.parametrize(("low", "high"), [(0, 2), (-5, 9), (0, 10), (250, 256), (7, 8)])
def test_whole_numbers_are_equally_likely(low: int, high: int) -> None:
    x = random.randint(low, high, (30000,), key=random.key(6)).numpy()
    counts = np.bincount(x - low, minlength=high - low)
    assert counts.size == high - low
    if high - low > 1:
        assert abs(chi_square(counts, np.full(high - low, 30000 / (high - low)))) < 4


@pytest.mark.parametrize("count", [2**32 - 5, 2**32, 3 * 2**31, 2**63 + 1, 3 * 2**62, 2**64])
def test_large_ranges_have_no_bias(count: int) -> None:
    """Taking 64 bits modulo 3 * 2**62 would make one third of the numbers twice as likely."""
    x = random.randint(0, count, (20000,), dtype=fg.uint64, key=random.key(7)).numpy()
    tenth = np.array([int(v) * 10 // count for v in x])
    assert abs(chi_square(np.bincount(tenth, minlength=10), np.full(10, 2000.0))) < 4


@pytest.mark.parametrize("dtype", WHOLE, ids=str)
def test_whole_numbers_reach_both_ends_of_every_dtype(dtype: DType) -> None:
    low, high = dtype.limits
    x = random.randint(low, high + 1, (4000,), dtype=dtype, key=random.key(8))
    assert x.dtype is dtype
    middle = (low + high) / 2
    values = [int(v) for v in x.numpy()]
    assert min(values) < low + (middle - low) / 50 and max(values) > high - (high - middle) / 50
    ends = random.randint(high - 1, high + 1, (100,), dtype=dtype, key=random.key(8))
    assert {int(v) for v in ends.numpy()} == {high - 1, high}


@pytest.mark.parametrize("p", [0.0, 0.01, 0.5, 0.9, 1.0])
def test_truths_hold_as_often_as_asked(p: float) -> None:
    x = random.bernoulli(p, (20000,), key=random.key(9))
    assert x.dtype is fg.bool
    assert abs(x.numpy().mean() - p) <= 4 * math.sqrt(p * (1 - p) / 20000)
    each = random.bernoulli(fg.Tensor([0.0, p, 1.0]), (5000, 3), key=random.key(9)).numpy()
    assert not each[:, 0].any() and each[:, 2].all()


def test_categories_come_as_often_as_their_probabilities_along_any_axis() -> None:
    p = np.array([[0.1, 0.0, 0.2, 0.7], [0.25, 0.25, 0.25, 0.25]])
    with np.errstate(divide="ignore"):
        logits = np.log(p) + np.array([[5.0], [-300.0]])  # what is added to all changes nothing
    for axis, table in ((-1, logits), (0, logits.T)):
        x = random.categorical(fg.Tensor(table), axis, (10000,), key=random.key(10)).numpy()
        assert x.shape == (10000, 2)
        for row in (0, 1):
            counts = np.bincount(x[:, row], minlength=4)
            assert abs(chi_square(counts, 10000 * p[row])) < 4
    assert random.categorical(fg.Tensor([[1.0], [2.0]]), axis=-1).tolist() == [0, 0]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_every_order_of_few_things_is_equally_likely(n: int) -> None:
    keys = random.split(random.key(11), 4000)
    orders = fg.vmap(lambda k: random.permutation(n, key=k))(keys).numpy()
    found = Counter(map(tuple, orders.tolist()))
    all_orders = list(itertools.permutations(range(n)))
    assert set(found) == set(all_orders)
    if n > 1:
        counts = np.array([found[o] for o in all_orders])
        assert abs(chi_square(counts, np.full(len(all_orders), 4000 / len(all_orders)))) < 4


def test_choices_follow_their_weights_and_never_take_what_has_none() -> None:
    p = np.array([0.0, 0.1, 0.0, 0.6, 0.3, 0.0])
    x = random.choice(6, (20000,), p=p, key=random.key(12)).numpy()
    assert abs(chi_square(np.bincount(x, minlength=6), 20000 * p)) < 4
    keys = random.split(random.key(13), 6000)
    pairs = fg.vmap(lambda k: random.choice(6, (2,), replace=False, p=p, key=k))(keys).numpy()
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert abs(chi_square(np.bincount(pairs[:, 0], minlength=6), 6000 * p)) < 4
    second = 0.1 * 0.6 / 0.9 + 0.3 * 0.6 / 0.7  # of 3, after one of the others
    assert abs((pairs[:, 1] == 3).mean() - second) < 0.03


# --- floats stay where they belong ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_uniform_numbers_of_every_float_are_on_its_grid_and_below_1(dtype: DType) -> None:
    x = random.uniform((50000,), dtype=dtype, key=random.key(14))
    assert x.dtype is dtype
    values = wide(x)
    assert values.min() >= 0 and values.max() < 1
    assert values.min() < 0.13 and values.max() >= 0.87
    near = wide(random.uniform((50000,), 1.0, 2.0, dtype=dtype, key=random.key(14)))
    assert near.min() >= 1 and near.max() < 2
    below = wide(random.uniform((2000,), -3.0, -2.0, dtype=dtype, key=random.key(14)))
    assert below.min() >= -3 and below.max() < -2


def test_the_largest_bits_give_the_largest_number_below_1() -> None:
    """The rule itself, on the bits that a careless one rounds up to 1."""
    from fulgurite.core.dtype import uint32
    from fulgurite.core.node import constant
    from fulgurite.random import distributions as sampling

    class Ones(Source):
        def __init__(self) -> None:
            pass

        def bits(self, shape: Any, words: int = 1) -> Any:
            return constant(2**32 - 1, uint32, shape if words == 1 else (*shape, words))

    for dtype in FLOATS:
        top = float(fg.Tensor(sampling.unit_numbers(Ones(), (1,), dtype)))
        assert top < 1 and top >= 1 - 2.0**-3
        if dtype in (fg.float32, fg.float64):
            assert np.nextafter(dtype.numpy.type(top), dtype.numpy.type(2)) == 1
            least = fg.Tensor(sampling.standard_normal(Ones(), (1,), dtype)).item()
            assert least == 0 or abs(least) < 1e-6


def test_a_range_of_one_number_gives_that_number() -> None:
    assert set(random.uniform((10,), 2.5, 2.5).tolist()) == {2.5}
    assert set(random.normal((10,), 1.5, 0.0).tolist()) == {1.5}
    assert set(random.randint(3, 4, (10,)).tolist()) == {3}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_float_dtype_has_normal_and_other_numbers(dtype: DType) -> None:
    k = random.key(15)
    drawn = {
        "normal": (random.normal((4000,), dtype=dtype, key=k), 0.0),
        "truncated": (random.truncated_normal((4000,), dtype=dtype, key=k), 0.0),
        "exponential": (random.exponential((4000,), dtype=dtype, key=k), 1.0),
        "gamma": (random.gamma(2.0, (4000,), dtype=dtype, key=k), 2.0),
        "beta": (random.beta(2.0, 2.0, (4000,), dtype=dtype, key=k), 0.5),
    }
    for name, (x, mean) in drawn.items():
        assert x.dtype is dtype, name
        values = wide(x)
        assert np.isfinite(values).all() and abs(values.mean() - mean) < 0.15, name


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1, 5), (7, 3)], ids=str)
def test_every_distribution_has_every_shape(shape: tuple[int, ...]) -> None:
    draws = [
        random.uniform(shape), random.uniform(shape, dtype=fg.float64), random.normal(shape),
        random.uniform(shape, 1.0, 2.0), random.truncated_normal(shape), random.bits(shape),
        random.exponential(shape), random.gamma(0.5, shape), random.beta(1.0, 1.0, shape),
        random.randint(0, 5, shape), random.bernoulli(0.5, shape), random.choice(4, shape),
        random.categorical(fg.zeros((3,)), shape=shape), fg.dropout(fg.ones(shape)),
        random.bits(shape, fg.uint64), fg.rand(*shape), fg.randn(*shape), fg.rand(shape),
    ]  # fmt: skip
    for x in draws:
        assert x.shape == shape and x.numpy().shape == shape


def test_a_large_draw_is_the_small_one_and_more() -> None:
    k = random.key(16)
    big = random.normal((1 << 20,), key=k).numpy()
    np.testing.assert_array_equal(random.normal((1000,), key=k).numpy(), big[:1000])
    assert abs(big.mean()) < 0.005 and abs(big.std() - 1) < 0.005 and 4 < np.abs(big).max() < 7


@pytest.mark.parametrize("place", [0, 1])
def test_a_variable_size_draws_what_a_fixed_one_draws(place: int) -> None:
    n, k = fg.Var("n", 1, 100), random.key(17)
    shape: list[Any] = [4, 4]
    shape[place] = n.bind(3)
    fixed = (3, 4) if place == 0 else (4, 3)
    for draw in (random.normal, random.uniform, lambda s, key: random.gamma(0.5, s, key=key)):
        np.testing.assert_array_equal(draw(shape, key=k).numpy(), draw(fixed, key=k).numpy())
    before = random.get_state()["counter"]
    random.uniform(shape)
    assert random.get_state()["counter"] == before + 200  # as many as it may become


# --- keys ----------------------------------------------------------------------------------------


def test_a_key_gives_the_same_numbers_every_time_and_touches_no_state() -> None:
    before = random.get_state()
    k = random.key(5)
    a, b = random.normal((9,), key=k), random.normal((9,), key=k)
    np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert random.get_state() == before


def test_keys_of_one_split_are_all_different_and_independent() -> None:
    keys = random.split(random.key(18), 1000)
    assert len(set(map(tuple, keys.tolist()))) == 1000
    x = fg.vmap(lambda k: random.normal((64,), key=k))(keys).numpy()
    between = np.corrcoef(x[:200])
    np.fill_diagonal(between, 0)
    assert np.abs(between).max() < 0.62  # the largest of 19,900 of 64 numbers
    assert distance(x.ravel(), normal_cdf) < 1.95
    bits = np.unpackbits(keys.numpy().view(np.uint8)).mean()
    assert abs(bits - 0.5) < 0.01


def test_derived_keys_never_meet_the_numbers_of_their_parent() -> None:
    k = random.key(19)
    drawn = set(random.bits((20000,), key=k).tolist())
    derived = random.split(k, 100).numpy().ravel().tolist()
    derived += random.fold_in(k, 3).tolist() + random.fold_in(k, 4).tolist()
    assert len(drawn & set(derived)) <= 2  # chance: 204 words of 2**32 among 20,000
    assert len(set(derived)) == len(derived)


def test_a_longer_split_begins_like_a_shorter_one() -> None:
    k = random.key(20)
    np.testing.assert_array_equal(random.split(k, 7).numpy()[:3], random.split(k, 3).numpy())
    a, b = random.split(k)
    assert a.shape == b.shape == (2,) and a.tolist() != b.tolist()


def test_folding_in_depends_on_the_number_alone() -> None:
    k = random.key(21)
    steps = [tuple(random.fold_in(k, i).tolist()) for i in range(50)]
    assert len(set(steps)) == 50
    assert random.fold_in(k, fg.Tensor(7)).tolist() == list(steps[7])
    folded = fg.vmap(lambda i: random.fold_in(k, i))(fg.arange(50)).tolist()
    assert [tuple(row) for row in folded] == steps


def test_folding_in_the_number_of_a_step_compiles_once() -> None:
    fg.clear_caches()
    k = random.key(22).realize()
    before = fg.cache_stats()["schedule"]["misses"]
    for step in range(20):
        random.normal((8,), key=random.fold_in(k, step)).realize()
    assert fg.cache_stats()["schedule"]["misses"] - before == 1


def test_neighbouring_seeds_have_nothing_in_common() -> None:
    x = np.stack([random.normal((500,), key=random.key(s)).numpy() for s in range(50)])
    between = np.corrcoef(x)
    np.fill_diagonal(between, 0)
    assert np.abs(between).max() < 0.2
    assert random.key(-1).tolist() == [2**32 - 1, 2**32 - 1]
    assert random.key(2**40 + 3).tolist() == [3, 256]


def test_a_seed_and_the_key_of_that_number_are_apart() -> None:
    random.seed(5)
    assert random.normal((4,)).tolist() != random.normal((4,), key=random.key(5)).tolist()


# --- state ---------------------------------------------------------------------------------------


def test_successive_draws_never_overlap() -> None:
    seen: set[int] = set()
    total = 0
    for shape in ((5,), (1,), (3, 3), (), (2,), (101,)):
        words = random.bits(shape).numpy().ravel().tolist()
        assert not seen & set(words)
        seen |= set(words)
        total += len(words)
    assert len(seen) == total


def test_the_order_of_draws_decides_and_not_the_order_of_looking() -> None:
    random.seed(1)
    a, b = random.normal((4,)), random.normal((4,))
    second, first = b.numpy(), a.numpy()
    random.seed(1)
    np.testing.assert_array_equal(random.normal((4,)).numpy(), first)
    np.testing.assert_array_equal(random.normal((4,)).numpy(), second)


def test_a_lazy_draw_keeps_its_numbers_however_often_it_is_used() -> None:
    x = random.uniform((100,))
    np.testing.assert_array_equal((x - x).numpy(), np.zeros(100))
    np.testing.assert_array_equal((x + 1).numpy(), x.numpy() + 1)


def test_state_goes_through_a_checkpoint() -> None:
    random.seed(3)
    random.normal((7,))
    text = json.dumps(random.get_state())
    want = random.normal((7,)).tolist()
    random.seed(4)
    random.set_state(json.loads(text))
    assert random.normal((7,)).tolist() == want


@pytest.mark.parametrize(
    "state", [{}, {"key": [1, 2]}, {"key": [1], "counter": 0}, {"key": [1, 2], "counter": -1}, 3,
              {"key": [1, 2**32], "counter": 0}, {"key": "ab", "counter": 0}],
    ids=str,
)  # fmt: skip
def test_what_is_no_state_is_refused(state: Any) -> None:
    with raises(ArgumentError, "is no state"):
        random.set_state(state)


def test_threads_share_the_generator_and_no_block_is_given_twice() -> None:
    found: list[list[int]] = []
    barrier = threading.Barrier(4)

    def draw() -> None:
        barrier.wait()
        found.append([w for _ in range(20) for w in random.bits((6,)).tolist()])

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    words = [w for part in found for w in part]
    assert len(words) == 480 and len(set(words)) == 480
    random.seed(0)
    assert set(words) == {w for _ in range(80) for w in random.bits((6,)).tolist()}


_PRINT = "import fulgurite as fg; fg.random.seed(9); print(fg.random.normal((50, 40)).sum(-1).tolist(), fg.random.gamma(0.7, (9,)).tolist(), fg.random.permutation(50).tolist())"  # noqa: E501


def test_another_process_draws_the_same_numbers() -> None:
    environment = {**os.environ, "FULGURITE_DEVICE": "reference"}
    texts = {
        subprocess.run(
            [sys.executable, "-c", _PRINT], env=environment, capture_output=True, text=True,
            check=True,
        ).stdout
        for _ in range(2)
    }  # fmt: skip
    assert len(texts) == 1


DRAWS: dict[str, Callable[[fg.Tensor], fg.Tensor]] = {
    "bits": lambda k: random.bits((999,), key=k),
    "uniform": lambda k: random.uniform((999,), key=k),
    "uniform64": lambda k: random.uniform((999,), -1.0, 3.0, dtype=fg.float64, key=k),
    "uniform16": lambda k: random.uniform((999,), -1.0, 3.0, dtype=fg.bfloat16, key=k),
    "normal": lambda k: random.normal((999,), 1.0, 2.0, key=k),
    "normal64": lambda k: random.normal((999,), dtype=fg.float64, key=k),
    "normal16": lambda k: random.normal((999,), dtype=fg.float16, key=k),
    "truncated": lambda k: random.truncated_normal((999,), 2.0, 9.0, key=k),
    "exponential": lambda k: random.exponential((999,), key=k),
    "gamma": lambda k: random.gamma(0.4, (999,), key=k),
    "gamma64": lambda k: random.gamma(3.5, (999,), dtype=fg.float64, key=k),
    "beta": lambda k: random.beta(0.2, 0.1, (999,), key=k),
    "randint": lambda k: random.randint(-9, 90, (999,), key=k),
    "bernoulli": lambda k: random.bernoulli(0.3, (999,), key=k),
    "categorical": lambda k: random.categorical(
        fg.arange(9).astype(fg.float32), shape=(99,), key=k
    ),
    "permutation": lambda k: random.permutation(999, key=k),
    "split": lambda k: random.split(k, 99),
    "fold_in": lambda k: random.fold_in(k, 99),
}


@pytest.mark.device("cpu")
@pytest.mark.parametrize("name", DRAWS)
def test_every_device_and_thread_count_draws_the_same_bits(name: str) -> None:
    found = []
    for options in (
        {"device": "reference"},
        {"device": "cpu", "tier": "native"},
        {"device": "cpu", "tier": "native", "threads": 1},
        {"device": "cpu"},
    ):
        with fg.config(**options):
            found.append(DRAWS[name](random.key(23)).numpy())
    for other in found[1:]:
        assert found[0].tobytes() == other.tobytes()


# --- inside the graph ----------------------------------------------------------------------------


def test_a_hundred_dropout_steps_are_one_schedule_miss() -> None:
    fg.clear_caches()
    x = fg.ones((64, 32)).realize()
    before = fg.cache_stats()["schedule"]["misses"]
    kept = [float(fg.dropout(x, 0.5).sum().item()) for _ in range(100)]  # type: ignore[arg-type]
    assert fg.cache_stats()["schedule"]["misses"] - before == 1
    assert len(set(kept)) > 50 and abs(np.mean(kept) - 2048) < 50


def test_a_changing_rate_of_dropout_compiles_a_bounded_number_of_times() -> None:
    fg.clear_caches()
    x = fg.ones((64, 32)).realize()
    before = fg.cache_stats()["schedule"]["misses"]
    for step in range(20):
        fg.dropout(x, 0.1 + step / 100).realize()
    assert fg.cache_stats()["schedule"]["misses"] - before <= 3


def test_the_mask_is_made_inside_the_kernel_that_uses_it() -> None:
    x = fg.ones((64, 32)).realize()
    report = fg.explain(fg.dropout(x * 2, 0.5) + 1)
    assert len(report.kernels) == 1 and "bits" in report.kernels[0].text


def test_dropout_scales_what_stays_and_has_the_gradient_of_its_mask() -> None:
    x = fg.ones((1000,))
    k = random.key(24)
    y = fg.dropout(x, 0.2, key=k).numpy()
    slope = fg.grad(lambda x: (fg.dropout(x, 0.2, key=k) * 3).sum())(x).numpy()
    np.testing.assert_allclose(slope, 3 * y, rtol=1e-6)
    assert abs((y == 0).mean() - 0.2) < 0.05
    assert fg.dropout(x, 0.5, training=False).node is x.node
    assert fg.dropout(x, 0.0).node is x.node
    assert not fg.dropout(x, 1.0).numpy().any()


def test_dropout_of_what_is_not_finite_keeps_zeros_clean() -> None:
    x = fg.Tensor(np.full(100, np.inf, np.float32))
    y = fg.dropout(x, 0.5, key=random.key(0)).numpy()
    assert set(y.tolist()) == {0.0, math.inf}


def test_gradients_reach_location_and_scale_and_limits() -> None:
    k = random.key(25)
    z = random.normal((5,), dtype=fg.float64, key=k).numpy()
    loc, scale = fg.Tensor(np.array(1.5)), fg.Tensor(np.linspace(1.0, 2.0, 5))

    def total(loc: fg.Tensor, scale: fg.Tensor) -> fg.Tensor:
        return random.normal((5,), loc, scale, dtype=fg.float64, key=k).sum()

    by_loc, by_scale = fg.grad(total, argnums=(0, 1))(loc, scale)
    assert by_loc.item() == 5.0
    np.testing.assert_allclose(by_scale.numpy(), z, rtol=1e-12)
    u = random.uniform((5,), dtype=fg.float64, key=k).numpy()
    low, high = fg.Tensor(np.array(0.0)), fg.Tensor(np.array(2.0))
    ends = fg.grad(
        lambda a, b: random.uniform((5,), a, b, dtype=fg.float64, key=k).sum(), argnums=(0, 1)
    )(low, high)
    np.testing.assert_allclose([e.item() for e in ends], [(1 - u).sum(), u.sum()], rtol=1e-12)
    draws: list[Callable[[fg.Tensor], fg.Tensor]] = [
        lambda s: random.exponential((5,), s, dtype=fg.float64, key=k),
        lambda s: random.gamma(2.0, (5,), s, dtype=fg.float64, key=k),
        lambda s: random.truncated_normal((5,), scale=s, dtype=fg.float64, key=k),
    ]
    for draw in draws:
        unit = draw(fg.Tensor(np.array(1.0))).numpy().sum()
        slope = fg.grad(lambda s, draw=draw: draw(s).sum())(fg.Tensor(np.array(3.0)))
        assert slope.item() == pytest.approx(unit)


def test_parameters_give_their_shape_and_must_fit_one_that_is_asked() -> None:
    loc = fg.zeros((3, 1))
    assert random.normal(loc=loc, scale=fg.ones((4,))).shape == (3, 4)
    assert random.uniform((2, 3, 1), high=fg.ones((3, 1))).shape == (2, 3, 1)
    with raises(ShapeError, "do not fit a draw of"):
        random.normal((3,), loc)


def test_draws_happen_where_parameters_and_keys_are() -> None:
    assert random.normal((2,), device="reference").device == "reference"
    assert random.normal((2,), device="cpu").device == "cpu"
    assert random.normal((2,), key=random.key(0, device="cpu")).device == "cpu"
    x = fg.Tensor([1.0, 2.0], device="cpu")
    assert fg.dropout(x).device == random.shuffle(x).device == "cpu"
    assert random.normal(loc=x).device == random.categorical(x).device == "cpu"
    moved = random.normal((2,), key=random.key(0, device="reference"), device="cpu")
    assert moved.device == "cpu"
    assert moved.tolist() == random.normal((2,), key=random.key(0)).tolist()


def test_shuffling_moves_whole_slices_along_any_axis() -> None:
    x = np.arange(24).reshape(4, 6)
    for axis in (0, 1, -1):
        y = random.shuffle(fg.Tensor(x), axis, key=random.key(26)).numpy()
        rows = np.moveaxis(y, axis, 0).tolist()
        assert rows != np.moveaxis(x, axis, 0).tolist()
        assert sorted(rows) == sorted(np.moveaxis(x, axis, 0).tolist())
    assert random.permutation(0).tolist() == [] and random.permutation(1).tolist() == [0]
    assert random.choice(fg.Tensor([[1, 2], [3, 4]]), (5,), axis=1).shape == (2, 5)


# --- vmap and replays ----------------------------------------------------------------------------


def test_a_batch_of_keys_draws_what_a_loop_draws() -> None:
    keys = random.split(random.key(27), 5)

    def draw(k: fg.Tensor) -> fg.Tensor:
        a, b = random.split(k)
        return random.normal((3,), key=a) * random.gamma(0.5, (3,), key=b)

    together = fg.vmap(draw)(keys).numpy()
    one_by_one = np.stack([draw(keys[i]).numpy() for i in range(5)])
    np.testing.assert_array_equal(together, one_by_one)


def test_a_draw_without_a_key_in_vmap_is_an_error_unless_it_may_be_shared() -> None:
    def noisy(x: fg.Tensor) -> fg.Tensor:
        return x + random.normal(())

    with pytest.raises(ArgumentError, match="a draw without a key would be the same"):
        fg.vmap(noisy)(fg.zeros((3,)))
    same = fg.vmap(noisy, randomness="same")(fg.zeros((3,))).tolist()
    assert same[0] == same[1] == same[2] != 0
    random.normal(())  # outside it is allowed again


def test_a_tape_draws_what_comes_next_each_time_it_is_run_again() -> None:
    """What a captured function needs: one key and one counter, whatever it draws."""
    random.seed(30)
    want = [(random.normal((3,)).tolist(), random.uniform((5,)).tolist()) for _ in range(3)]
    random.seed(30)
    device = fg.Tensor([0.0]).device
    found = []
    for _ in range(3):
        key, start = GENERATOR.reserve(0, device)
        counter = fg.Tensor(np.array(start, np.uint64)).node
        with Tape(key, counter) as tape:
            a, b = random.normal((3,)), random.uniform((5,))
        GENERATOR.reserve(tape.blocks, device)
        found.append((a.tolist(), b.tolist()))
        assert {n.src[0] for n in (*a.node.slice, a.node) if n.op is RANDOM} <= {key}
    assert found == want


# --- what is wrong -------------------------------------------------------------------------------


WRONG: dict[str, tuple[Callable[[], Any], type[FulguriteError], str]] = {
    "a key of another shape": (
        lambda: random.normal((2,), key=random.split(random.key(0), 3)), DTypeError, "vmap for"),
    "a key that is an int": (
        lambda: random.normal((2,), key=7), DTypeError, "use fg.random.key"),  # type: ignore[arg-type]
    "a whole dtype": (lambda: random.normal((2,), dtype=fg.int32), DTypeError, "not drawn here"),
    "a complex dtype": (lambda: random.uniform(2, dtype=fg.complex64), DTypeError, "not drawn"),
    "a float randint": (lambda: random.randint(0, 3, dtype=fg.float32), DTypeError, "no dtype of"),
    "signed bits": (lambda: random.bits(3, fg.int32), DTypeError, "unsigned"),
    "no numbers": (lambda: random.randint(5, 5), ArgumentError, "no int32 numbers from 5"),
    "beyond the dtype": (lambda: random.randint(0, 300, dtype=fg.uint8), ArgumentError, "uint8"),
    "a limit that is a float": (lambda: random.randint(0.5, 2), ArgumentError, "low is 0.5"),  # type: ignore[arg-type]
    "a range upside down": (lambda: random.uniform((2,), 3.0, 1.0), ArgumentError, "low <= high"),
    "an empty truncation": (
        lambda: random.truncated_normal((2,), 1, 1), ArgumentError, "low < high",
    ),
    "a negative scale": (lambda: random.normal((2,), 0.0, -1.0), ArgumentError, "scale is -1.0"),
    "alpha of zero": (lambda: random.gamma(0.0, 2), ArgumentError, "alpha is above 0"),
    "too much probability": (lambda: random.bernoulli(1.5, 2), ArgumentError, "from 0 to 1"),
    "dropout of too much": (lambda: fg.dropout(fg.ones(2), 1.5), ArgumentError, "from 0 to 1"),
    "dropout of ints": (lambda: fg.dropout(fg.arange(3)), DTypeError, "float dtype"),
    "too many choices": (lambda: random.choice(3, 4, replace=False), ArgumentError, "4 of 3"),
    "nothing to choose": (lambda: random.choice(0, 4), ArgumentError, "nothing to choose"),
    "weights of another size": (lambda: random.choice(3, 2, p=[0.5, 0.5]), ShapeError, "of 3"),
    "a seed that is text": (lambda: random.seed("x"), ArgumentError, "whole number"),  # type: ignore[arg-type]
    "a split below zero": (lambda: random.split(random.key(0), -1), ArgumentError, "at least 0"),
    "folding in a float": (
        lambda: random.fold_in(random.key(0), fg.Tensor(0.5)), DTypeError, "whole number"),
    "an order of fewer than none": (lambda: random.permutation(-1), ArgumentError, "at least 0"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_bad_arguments_get_a_clear_error(what: str) -> None:
    call, kind, text = WRONG[what]
    with pytest.raises(kind, match=re.escape(text)) as caught:
        call()
    assert __file__ in caught.value.where


@pytest.mark.parametrize("name", [
    "normal", "uniform", "truncated_normal", "exponential", "bits", "bernoulli", "randint",
    "gamma", "beta", "categorical", "choice", "permutation", "shuffle",
])  # fmt: skip
def test_a_key_in_the_first_place_is_an_error_that_says_where_it_goes(name: str) -> None:
    draw, key = getattr(fg.random, name), fg.random.key(0)
    with pytest.raises(ArgumentError, match=rf"first argument of {name} is a key(.|\n)*key=key"):
        draw(key, (2,))


def test_two_whole_numbers_are_no_key_where_data_come_first() -> None:
    pair = fg.Tensor([5, 9], dtype="uint32")
    assert sorted(fg.random.permutation(pair, 0).tolist()) == [5, 9]
    assert set(fg.random.choice(pair, 20).tolist()) <= {5, 9}
