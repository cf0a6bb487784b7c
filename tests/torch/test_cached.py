"""Tests of graphs in AOTAutograd's cache: found again, right, and only where they are the same."""

from __future__ import annotations

import importlib.util
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._functorch._aot_autograd import autograd_cache

from fulgurite.torch import backend, cached
from fulgurite.torch.graph import watching
from fulgurite.torch.lower import line_of

pytestmark = pytest.mark.device("cpu")


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))


def again(function: Callable[..., Any], *args: Any, **named: Any) -> tuple[Any, dict[str, int]]:
    """What a function gives, compiled as a new process would, and what torch's cache counted."""
    torch._dynamo.reset()
    counters.clear()
    found = torch.compile(function, backend="fulgurite", **named)(*args)
    return found, dict(counters["aot_autograd"])


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """Options under which plans are kept, in a folder of this test."""
    return {"disk_cache": True, "cache_dir": str(tmp_path / "ours")}


def test_a_step_of_training_is_found_again_with_its_values_and_updates(
    options: dict[str, Any],
) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.GELU(), torch.nn.Flatten(),
        torch.nn.Linear(144, 5),
    )  # fmt: skip
    state = {name: x.clone() for name, x in model.state_dict().items()}
    x, seen = torch.randn(2, 3, 8, 8), []
    for what in ("saved", "hit"):
        model.load_state_dict(state)
        model.zero_grad()
        result, counts = again(model, x, options=options)
        result.square().sum().backward()
        assert counts[f"autograd_cache_{what}"] == 1
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        seen.append([result.detach(), *grads, *[b.clone() for b in model.buffers()]])
    model.load_state_dict(state)
    model.zero_grad()
    model(x).square().sum().backward()
    theirs = [p.grad for p in model.parameters()]
    for first, second in zip(*seen, strict=True):
        assert torch.equal(first, second)
    for ours, other in zip(seen[1][1:7], theirs, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("wanted", [False, True])
def test_results_have_the_strides_of_eager_torch_also_with_gaps(
    options: dict[str, Any], wanted: bool
) -> None:
    def function(x: Any) -> Any:
        return (
            (x + 1)[:, ::2], (x + 2)[:, 1:], (x + 3).t()[::2], (x + 4).unfold(1, 2, 1),
            (x + 5)[None].expand(3, -1, -1)[..., 1:], torch.complex(x, x).real, (x + 6).t(),
        )  # fmt: skip

    x = torch.randn(4, 6, requires_grad=wanted)
    for what in ("saved", "hit"):
        found, counts = again(function, x, options=options)
        assert counts[f"autograd_cache_{what}"] == 1
        for ours, theirs in zip(found, function(x), strict=True):
            assert ours.stride() == theirs.stride()
            torch.testing.assert_close(ours, theirs)


def test_arguments_that_share_memory_are_another_graph_for_each_offset(
    options: dict[str, Any],
) -> None:
    def function(a: Any, b: Any) -> Any:
        a.add_(1)
        return a * b

    def arguments(offset: int) -> tuple[Any, Any]:
        x = torch.arange(9.0)
        return x[:4], x[offset : offset + 4] if offset else torch.arange(4.0)

    for offset in (0, 1, 2, 1):
        ours, theirs = arguments(offset), arguments(offset)
        found, _ = again(function, *ours, options=options)
        torch.testing.assert_close(found, function(*theirs))
        torch.testing.assert_close(ours, theirs)


def test_a_default_dtype_is_part_of_the_key(options: dict[str, Any]) -> None:
    def function(x: Any) -> Any:
        return x / 2, torch.full((2,), 0.1)

    try:
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            found, _ = again(function, torch.arange(3), options=options)
            assert [x.dtype for x in found] == [dtype, dtype]
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.filterwarnings("ignore:torch runs fulgurite_test")
def test_an_operator_of_the_users_may_have_another_gradient_tomorrow(
    options: dict[str, Any],
) -> None:
    for factor in (2.0, 3.0):
        library = torch.library.Library("fulgurite_test_cached", "FRAGMENT")
        library.define("scaled(Tensor x) -> Tensor")
        library.impl("scaled", lambda x, k=factor: x * k, "CPU")
        library.impl("scaled", torch.empty_like, "Meta")
        torch.library.register_autograd(
            "fulgurite_test_cached::scaled", lambda _, g, k=factor: g * k, lib=library
        )
        x = torch.ones(3, requires_grad=True)
        call = torch.ops.fulgurite_test_cached.scaled
        found, _ = again(lambda x, call=call: call(x), x, options=options)
        found.sum().backward()
        assert found.tolist() == x.grad.tolist() == [factor] * 3
        library._destroy()


def test_views_writes_and_several_kinds_of_arguments_survive(options: dict[str, Any]) -> None:
    def function(x: Any, y: Any) -> Any:
        y.add_(1)
        z = torch.full((3,), float("inf"), dtype=torch.float64)
        low, high = x.split([1, 2], 1)
        return x.t(), low.sum(), high.to(torch.float64), z, y[1:], torch.var_mean(x, dim=(0, 1))

    for what in ("saved", "hit"):
        x, ours, theirs = torch.randn(4, 3), torch.zeros(3), torch.zeros(3)
        found, counts = again(function, x, ours, options=options)
        wanted = function(x, theirs)
        assert counts[f"autograd_cache_{what}"] == 1
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(ours, theirs)
        assert found[0].stride() == wanted[0].stride()


def test_other_lines_or_options_without_a_disk_are_another_graph_or_none(
    options: dict[str, Any],
) -> None:
    def one(x: Any) -> Any:
        return x.sin() + 1

    def other(x: Any) -> Any:
        return x.sin() + 1

    x = torch.ones(3)
    assert again(one, x, options=options)[1]["autograd_cache_saved"] == 1
    assert again(one, x, options=options)[1]["autograd_cache_hit"] == 1
    assert again(other, x, options=options)[1]["autograd_cache_miss"] == 1
    assert again(one, torch.ones(4), options=options)[1]["autograd_cache_miss"] == 1
    assert again(one, x, options=options | {"disk_cache": False})[1] == {}


def test_lines_of_the_user_are_those_of_the_first_process(options: dict[str, Any]) -> None:
    def function(x: Any) -> Any:
        return x.exp() * 2

    lines = []
    for _ in range(2):
        with watching() as graphs:
            again(function, torch.ones(3), options=options)
        lines.append([str(line_of(node)) for node in graphs[0].nodes])
    assert lines[0] == lines[1] and __file__ in lines[0][0]


def test_symbols_and_constants_are_not_kept_and_stay_right(options: dict[str, Any]) -> None:
    def constants(x: Any) -> Any:
        return x + torch.tensor([1.0, 2.0, 3.0])

    for _ in range(2):
        found, counts = again(constants, torch.ones(3), options=options)
        assert counts.get("autograd_cache_hit", 0) == 0
        assert found.tolist() == [2.0, 3.0, 4.0]
        found, counts = again(lambda x: x * x.shape[0], torch.ones(3), dynamic=True,
                              options=options)  # fmt: skip
        assert counts.get("autograd_cache_hit", 0) == 0
        assert found.tolist() == [3.0, 3.0, 3.0]


def test_a_graph_under_another_autocast_is_another_graph(options: dict[str, Any]) -> None:
    model, x = torch.nn.Linear(3, 2), torch.randn(4, 3)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            found, counts = again(model, x, options=options)
        assert found.dtype is dtype and counts["autograd_cache_saved"] == 1


def test_the_key_of_other_backends_is_torchs_own(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    again(lambda x: x + 1, torch.ones(2), options=options)
    asked = []
    monkeypatch.setattr(cached, "key_of", lambda *args: asked.append(args))
    with pytest.raises((AttributeError, TypeError)):  # torch 2.13, 2.11
        autograd_cache.autograd_cache_key(None, [], None)
    assert not asked


@pytest.mark.parametrize("name", [
    "_functorch.config.bundled_autograd_cache", "_functorch._aot_autograd.autograd_cache",
    "_functorch._aot_autograd.autograd_cache.AOTAutogradCacheDetails",
    "_functorch._aot_autograd.autograd_cache.BundledAOTAutogradResult",
    "_functorch._aot_autograd.autograd_cache.BypassAOTAutogradCache",
    "_functorch._aot_autograd.schemas.SerializableAOTDispatchCompiler",
    "_inductor.codecache.FxGraphHashDetails",
    "_inductor.output_code", "_inductor.output_code.OutputCode",
])  # fmt: skip
def test_a_torch_without_a_name_that_the_cache_needs_compiles_without_it(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, last = f"torch.{name}".rpartition(".")
    if f"torch.{name}" in sys.modules:
        monkeypatch.setitem(sys.modules, f"torch.{name}", None)
        monkeypatch.delattr(sys.modules[module], last)
    elif last != "bundled_autograd_cache":  # a setting cannot be deleted
        monkeypatch.delattr(sys.modules[module], last)
    spec = importlib.util.spec_from_file_location("fulgurite.torch._again", cached.__file__)
    assert spec is not None and spec.loader is not None
    other = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(other)
    if last == "bundled_autograd_cache":
        monkeypatch.setattr(other, "SETTINGS", {"no_such_setting": True})
    assert other.is_kept(options) is None
    monkeypatch.undo()  # torch needs its names
    monkeypatch.setattr(backend, "Kept", other.Kept)
    monkeypatch.setattr(backend, "keeping", other.keeping)
    model, x = torch.nn.Linear(3, 2), torch.ones(4, 3)
    found, counts = again(model, x, options=options)
    found.sum().backward()
    torch.testing.assert_close(found, model(x))
    assert model.weight.grad is not None and model.weight.grad.tolist() == [[4.0] * 3] * 2
    assert counts.get("autograd_cache_hit", 0) + counts.get("autograd_cache_saved", 0) == 0


def test_a_graph_that_is_found_loads_no_decompositions(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    table = backend.decompositions

    def counted() -> dict[Any, Any]:
        made.append(1)
        return table()

    monkeypatch.setattr(backend, "decompositions", counted)
    model, x = torch.nn.Linear(3, 2), torch.randn(4, 3)
    for what, loaded in (("saved", True), ("hit", False)):
        made.clear()
        _, counts = again(model, x, options=options)
        assert counts[f"autograd_cache_{what}"] == 1 and bool(made) == loaded


def test_a_table_of_decompositions_is_the_same_however_it_is_asked() -> None:
    whole = backend.decompositions()
    first = next(iter(whole))
    asked: list[Callable[[Any], Any]] = [
        dict, len, list, lambda d: {**d}, lambda d: first in d, lambda d: d[first],
        lambda d: d.get(first), lambda d: d.get(0, 1), lambda d: list(d.keys()),
        lambda d: list(d.values()), lambda d: list(d.items()), bool,
    ]  # fmt: skip
    for ask in asked:
        assert ask(backend.Decompositions()) == ask(whole)


def test_numbers_that_vary_are_not_those_of_an_earlier_call(options: dict[str, Any]) -> None:
    def function(x: Any, s: float) -> Any:
        return x * s, x**s, torch.full((2,), s), x.clamp(max=s)

    x = torch.rand(4)
    for _ in range(2):
        torch._dynamo.reset()
        call = torch.compile(function, backend="fulgurite", options=options)
        for s in (0.5, 2.0, 3.0, 0.25):
            for ours, theirs in zip(call(x, s), function(x, s), strict=True):
                torch.testing.assert_close(ours, theirs)


def test_a_backward_may_be_called_twice_also_when_it_is_found(options: dict[str, Any]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    x = torch.randn(2, 3)
    for _ in range(2):
        result, _counts = again(model, x, options=options)
        (once,) = torch.autograd.grad(result.sum(), model[0].weight, retain_graph=True)
        (twice,) = torch.autograd.grad(result.sum(), model[0].weight)
        assert torch.equal(once, twice) and once.any()


def test_other_sources_of_the_table_are_another_key(options: dict[str, Any]) -> None:
    from fulgurite.config import config, current
    from fulgurite.runtime.cache.disk import store_for
    from fulgurite.runtime.cache.plan_cache import build_of

    with config(**options):
        store = store_for(current())
    assert store is not None
    assert cached.is_kept(options) == build_of(store, whole=True) != build_of(store)


def test_a_graph_that_torch_reads_with_dynamos_own_entry_is_lowered_under_its_options(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`caching_precompile` of torch reads our entries without asking for them by our key."""

    def graph(x: Any) -> Any:
        return (x.sin() @ x.t()).relu()

    x = torch.randn(5, 5)
    made: list[Any] = []
    monkeypatch.setattr(cached.Kept, "__init__", _noting(cached.Kept.__init__, made))
    again(graph, x, options=options)
    read = pickle.loads(pickle.dumps(made[0]))
    assert read.call is None and cached._now.get() is None
    read.post_compile()
    torch.testing.assert_close(read([x])[0], graph(x))
    older = pickle.loads(pickle.dumps(made[0]))
    older.build = "of other sources"
    with pytest.raises(RuntimeError, match="other sources"):  # what torch catches, and traces anew
        older.post_compile()


def _noting(function: Callable[..., None], made: list[Any]) -> Callable[..., None]:
    def init(self: Any, *args: Any) -> None:
        function(self, *args)
        made.append(self)

    return init
