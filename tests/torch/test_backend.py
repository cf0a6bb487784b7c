"""Tests of `torch.compile(model, backend="fulgurite")`: values, gradients, memory and state."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fulgurite as fg
import fulgurite.torch as fgt
from fulgurite.errors import ArgumentError


def compiled(model: Any, **named: Any) -> Any:
    return torch.compile(model, backend="fulgurite", **named)


def gradients(model: Any, results: Any) -> list[Any]:
    results.square().sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def close(ours: Any, theirs: Any, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


class Attention(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.into = torch.nn.Embedding(11, 16, padding_idx=0)
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.out = torch.nn.Linear(16, 11)

    def forward(self, x: Any) -> Any:
        return self.out(self.layer(self.into(x)))


def perceptron() -> tuple[Any, Any]:
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    )
    return model, torch.randn(5, 8)


def convolutional() -> tuple[Any, Any]:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        torch.nn.MaxPool2d(3, 2, 1), torch.nn.Conv2d(8, 8, 3, groups=4), torch.nn.Hardswish(),
        torch.nn.GroupNorm(2, 8), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(),
        torch.nn.Linear(32, 5),
    )  # fmt: skip
    return model, torch.randn(4, 3, 12, 12)


def attentive() -> tuple[Any, Any]:
    return Attention(), torch.randint(0, 11, (2, 7))


MODELS = [perceptron, convolutional, attentive]


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_a_model_and_its_gradients_are_those_of_eager_torch(make: Callable[[], Any]) -> None:
    model, x = make()
    twin = copy.deepcopy(model)
    ours, theirs = compiled(model)(x), twin(x)
    close(ours, theirs)
    for a, b in zip(gradients(model, ours), gradients(twin, theirs), strict=True):
        close(a, b)
    for c, d in zip(model.buffers(), twin.buffers(), strict=True):
        close(c, d)
    assert not fgt.report().eager
    assert fgt.report().graphs == 2  # forward and backward


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_a_model_without_gradients_is_that_of_eager_torch(make: Callable[[], Any]) -> None:
    model, x = make()
    model.eval()
    with torch.no_grad():
        close(compiled(model)(x), model(x))


@pytest.mark.device("reference")
def test_the_reference_device_runs_models_too() -> None:
    model, x = perceptron()
    with torch.no_grad():
        close(compiled(model)(x), model(x))


def test_parameters_are_read_where_torch_has_them() -> None:
    model, x = perceptron()
    call = compiled(model)
    with torch.no_grad():
        call(x)
        model[0].weight.mul_(2.0)  # in place: the same memory
        model[3].bias.data = torch.ones(4)  # and other memory
        close(call(x), model(x))
    assert fgt.report().programs == 1


def test_training_follows_eager_torch_step_by_step() -> None:
    model, x = convolutional()
    twin = copy.deepcopy(model)
    losses: list[list[float]] = [[], []]
    for which, (net, call) in enumerate(((model, compiled(model)), (twin, twin))):
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        for _ in range(5):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(call(x), torch.tensor([0, 1, 2, 3]))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            losses[which].append(float(loss.detach()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[0][-1] < losses[0][0]


def test_a_buffer_that_a_model_updates_has_its_new_value_at_once() -> None:
    class Counter(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            self.seen.add_(x.sum(0))
            return x * self.seen

    model = Counter()
    call, x = compiled(model), torch.ones(2, 3)
    memory = model.seen.data_ptr()
    assert call(x).tolist() == [[2.0] * 3] * 2
    assert call(x).tolist() == [[4.0] * 3] * 2
    assert model.seen.tolist() == [4.0] * 3
    assert model.seen.data_ptr() == memory


def test_an_input_that_a_function_writes_to_is_written_to() -> None:
    def function(x: Any) -> Any:
        x[:, 0] = 7.0
        return x.t() + 1

    ours, theirs = torch.zeros(2, 3), torch.zeros(2, 3)
    close(compiled(function)(ours), function(theirs))
    close(ours, theirs)


def test_views_and_layouts_are_those_of_eager_torch() -> None:
    def function(x: Any, w: Any) -> Any:
        y = torch.nn.functional.conv2d(x, w)
        return y.permute(0, 2, 3, 1), y.transpose(0, 1).contiguous(), x[:, ::2].expand(2, 2, 4, 4)

    x = torch.randn(2, 4, 4, 4).to(memory_format=torch.channels_last)
    w = torch.randn(3, 4, 2, 2).transpose(2, 3)
    for ours, theirs in zip(compiled(function)(x, w), function(x, w), strict=True):
        close(ours, theirs)
        assert ours.shape == theirs.shape
    sliced = torch.randn(6, 8)[::2, 1::3]  # memory with gaps
    close(compiled(lambda x: x * 2)(sliced), sliced * 2)


def test_an_operator_that_is_not_in_the_table_is_run_by_torch_with_one_warning() -> None:
    def function(x: Any) -> Any:
        return torch.linalg.qr(x + 1)[1].abs() * 2

    call, x = compiled(function), torch.randn(3, 3)
    with pytest.warns(fgt.FallbackWarning, match=r"aten\.linalg_qr.*no entry in the table"):
        close(call(x), function(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error", fgt.FallbackWarning)
        close(compiled(lambda x: torch.linalg.qr(x)[0].abs())(x), torch.linalg.qr(x)[0].abs())
    assert fgt.report().eager["linalg_qr.default"] == 2
    assert "torch ran aten.linalg_qr" in str(fgt.report())


def test_dropout_is_repeatable_by_torchs_seed_and_has_its_rate() -> None:
    call = compiled(lambda x: torch.nn.functional.dropout(x, 0.25))
    x = torch.ones(100, 100)
    torch.manual_seed(3)
    first, second = call(x), call(x)
    torch.manual_seed(3)
    assert torch.equal(call(x), first)
    assert not torch.equal(first, second)
    kept = (first != 0).float().mean().item()
    assert 0.7 < kept < 0.8
    assert first.max().item() == pytest.approx(1 / 0.75)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_uniform_numbers_of_small_floats_stay_below_one(dtype: Any) -> None:
    found = compiled(lambda: torch.rand(1 << 17, dtype=dtype))()
    assert found.min() >= 0 and found.max() < 1
    assert found.float().mean().item() == pytest.approx(0.5, abs=0.01)


def test_times_between_events_are_above_zero_so_that_their_logarithms_are_finite() -> None:
    torch.manual_seed(6)  # one of these numbers comes from a uniform 0
    assert compiled(lambda: torch.empty(1 << 20).exponential_())().min() > 0


def test_both_parts_of_random_complex_numbers_are_random() -> None:
    def drawn() -> Any:
        like = torch.zeros(4000, dtype=torch.complex64)
        return torch.randn_like(like), torch.rand_like(like), torch.empty_like(like).normal_()

    normal, uniform, filled = compiled(drawn)()
    for found, mean, spread in ((normal, 0, 0.5), (uniform, 0.5, 1 / 12), (filled, 0, 0.5)):
        for part in (found.real, found.imag):
            assert part.mean().item() == pytest.approx(mean, abs=0.05)
            assert part.var().item() == pytest.approx(spread, rel=0.1)
        assert abs(torch.corrcoef(torch.view_as_real(found).T)[0, 1].item()) < 0.1


def test_the_gradient_of_dropout_is_masked_as_its_result() -> None:
    x = torch.ones(50, requires_grad=True)
    y = compiled(lambda x: torch.nn.functional.dropout(x, 0.5) * 3)(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_eager_random_gives_torchs_own_numbers() -> None:
    call = compiled(lambda x: x + torch.rand(4), options={"eager_random": True})
    x = torch.zeros(4)
    torch.manual_seed(5)
    with pytest.warns(fgt.FallbackWarning, match="rand"):
        ours = call(x)
    torch.manual_seed(5)
    assert torch.equal(ours, torch.rand(4))


def test_an_option_that_does_not_exist_is_an_error_that_names_it() -> None:
    with pytest.raises(Exception, match="there is no option 'speed'") as caught:
        compiled(lambda x: x + 1, options={"speed": 11})(torch.ones(2))
    assert isinstance(caught.value, ArgumentError) or "ArgumentError" in str(caught.value)
    with pytest.raises(Exception, match="there is no option 'device'"):
        compiled(lambda x: x + 1, options={"device": "cuda"})(torch.ones(2))


def test_sizes_that_change_are_symbols_of_one_traced_graph() -> None:
    model, _ = perceptron()
    call = compiled(model, dynamic=True)
    with torch.no_grad():
        for size in (2, 3, 5, 3):
            x = torch.randn(size, 8)
            close(call(x), model(x))
    assert fgt.report().graphs == 1


def test_a_fused_encoder_layer_of_symbols_does_not_break_the_graph() -> None:
    model = Attention().eval()
    call = compiled(model, dynamic=True, fullgraph=True)
    with torch.no_grad():
        for sizes in ((3, 7), (5, 2), (2, 40)):
            x = torch.randint(11, sizes)
            close(call(x), model(x))
        turned = torch.randn(6, 4, 16).transpose(0, 1)
        close(compiled(model.layer, dynamic=True)(turned), model.layer(turned))


def test_fifty_sizes_of_batches_and_sentences_have_three_plans() -> None:
    model, rng = Attention().eval(), random.Random(1)
    call, plans = compiled(model), fg.cache_stats()["schedule"]["misses"]
    with torch.no_grad():
        for _ in range(50):
            x = torch.randint(11, (rng.randint(2, 12), rng.randint(2, 100)))
            close(call(x), model(x))
    assert fg.cache_stats()["schedule"]["misses"] - plans <= 3


def test_training_with_many_sizes_has_three_plans_forward_and_three_backward() -> None:
    model = Attention()
    twin = copy.deepcopy(model)
    call, plans = compiled(model), fg.cache_stats()["schedule"]["misses"]
    for sizes in ((4, 74), (3, 34), (3, 65), (9, 5), (2, 4), (10, 3), (6, 6), (12, 100)):
        x = torch.randint(11, sizes)
        for net, run in ((model, call), (twin, twin)):
            net.zero_grad()
            run(x).square().mean().backward()
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            close(ours.grad, theirs.grad, 1e-4)
    assert fg.cache_stats()["schedule"]["misses"] - plans <= 6


def test_an_index_outside_is_an_error_as_in_eager_torch() -> None:
    call = compiled(lambda w, i: torch.nn.functional.embedding(i, w))
    with pytest.raises(IndexError):
        call(torch.ones(3, 2), torch.tensor([5]))


BEFORE_AND_BEHIND: dict[str, tuple[Callable[..., Any], list[int]]] = {
    "index": (lambda x, i: x[i], [-4, 3]),
    "index of the second axis": (lambda x, i: x[:, i], [-5, 4]),
    "index of two axes": (lambda x, i: x[i * 0, i], [-5, 4]),
    "index_put": (lambda x, i: x.index_put((i,), x[0]), [-4, 3]),
    "index_put of two axes": (lambda x, i: x.index_put((i * 0 + 1, i), x[0, 0]), [-5, 4]),
    "index_put that adds": (lambda x, i: x.index_put((i,), x[0], accumulate=True), [-4, 3]),
    "index_fill": (lambda x, i: x.index_fill(0, i, 1.0), [-4, 3]),
    "take": (lambda x, i: x.take(i), [-13, 12]),
    "gather": (lambda x, i: x.gather(0, i[None]), [-1, 3]),
    "index_select": (lambda x, i: x.index_select(0, i), [-1, 3]),
    "embedding": (lambda x, i: torch.nn.functional.embedding(i, x), [-1, 3]),
    "embedding_bag": (lambda x, i: torch.nn.functional.embedding_bag(i[None], x), [-1, 3]),
    "scatter": (lambda x, i: x.scatter(0, i[None], 1.0), [-1, 3]),
    "scatter_add": (lambda x, i: x.scatter_add(0, i[None], x[:1, :1]), [-1, 3]),
    "scatter_reduce": (lambda x, i: x.scatter_reduce(0, i[None], x[:1, :1], "amax"), [-1, 3]),
    "index_add": (lambda x, i: x.index_add(0, i, x[:1]), [-1, 3]),
    "index_copy": (lambda x, i: x.index_copy(0, i, x[:1]), [-1, 3]),
    "cross_entropy": (lambda x, i: torch.nn.functional.cross_entropy(x[:1], i), [-1, 4]),
}


@pytest.mark.parametrize("name", BEFORE_AND_BEHIND)
def test_an_index_outside_is_never_another_elements(name: str) -> None:
    function, outside = BEFORE_AND_BEHIND[name]
    x, call = torch.randn(3, 4), compiled(function)
    for place in outside:
        with pytest.raises((IndexError, RuntimeError)):
            function(x, torch.tensor([place]))
        with pytest.raises(IndexError, match="outside"):
            call(x, torch.tensor([place]))
    for place in range(max(outside[0] + 1, -3), min(outside[1], 3)):
        close(call(x, torch.tensor([place])), function(x, torch.tensor([place])))


def test_many_dtypes_pass_through() -> None:
    def function(a: Any, b: Any, c: Any) -> Any:
        return a + b, (a > 0) & c, b.to(torch.float16), a.to(torch.bfloat16) * 2, b // 2

    given = torch.randn(4), torch.arange(4), torch.tensor([True, False, True, True])
    for ours, theirs in zip(compiled(function)(*given), function(*given), strict=True):
        assert ours.dtype == theirs.dtype
        close(ours.float(), theirs.float(), 1e-2)


def test_the_backend_is_found_by_its_name() -> None:
    assert "fulgurite" in torch._dynamo.list_backends()


def test_a_gradient_that_comes_in_another_layout_is_read_as_it_is() -> None:
    model = torch.nn.Conv2d(3, 4, 3)
    twin = copy.deepcopy(model)
    x, weights = torch.randn(2, 3, 6, 6), torch.randn(2, 4, 4, 4)
    for net, call in ((model, compiled(model)), (twin, twin)):
        for factors in (weights, weights.to(memory_format=torch.channels_last)):
            (call(x) * factors).sum().backward()
            call(x).sum().backward()  # one number, stretched
            (call(x).permute(0, 2, 3, 1) * weights).sum().backward()
        assert net.weight.grad is not None
    close(model.weight.grad, twin.weight.grad, 1e-3)


def test_a_gradient_that_comes_as_the_negative_of_its_memory_is_negative() -> None:
    x = torch.ones(5, requires_grad=True)
    compiled(lambda x: x * 3)(x).backward(torch._neg_view(torch.arange(5.0)))
    close(x.grad, -3 * torch.arange(5.0))


def test_an_index_outside_names_the_line_of_the_model() -> None:
    def lookup(table: Any, places: Any) -> Any:
        return table[places] * 2  # the line that is named

    with pytest.raises(IndexError, match=r"test_backend\.py"):
        compiled(lookup)(torch.ones(3, 2), torch.tensor([7]))


def test_weights_by_length_steps_of_optimisers_and_numbers_that_vary_are_compiled() -> None:
    normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(6, 5))
    theirs, x = copy.deepcopy(normed), torch.randn(4, 6)
    for model in (normed, theirs):
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        call, step = model, optimizer.step
        if model is normed:
            call, step = compiled(model), compiled(lambda o=optimizer: o.step())
        for _ in range(3):
            optimizer.zero_grad()
            call(x).square().sum().backward()
            step()
    for ours, right in zip(normed.parameters(), theirs.parameters(), strict=True):
        close(ours, right)
    scale = compiled(lambda x, s: x * s + s)
    for s in (0.5, 2.0, 3.0):
        close(scale(x, s), x * s + s)
    whole = torch.tensor([-7, 7, -8, 9, 0])
    for ours, right in zip(
        compiled(lambda a: (a << 2, a >> 1, a << 70, a >> 70))(whole),
        (whole << 2, whole >> 1, whole << 70, whole >> 70),
        strict=True,
    ):
        assert torch.equal(ours, right)
    assert not fgt.report().eager


def test_a_backward_that_torch_compiles_as_a_whole_is_eager_torchs() -> None:
    """Compiled autograd gives a list among the inputs of its graph."""
    from torch._dynamo import compiled_autograd

    make, x = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh()), torch.randn(5, 4)
    make(x).square().sum().backward()
    theirs = [p.grad.clone() for p in make.parameters()]
    make.zero_grad()
    with compiled_autograd._enable(compiled):
        compiled(make)(x).square().sum().backward()
    close([p.grad for p in make.parameters()], theirs)
