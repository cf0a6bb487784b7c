"""Small programs as people write them, through the backend: results, gradients and what they write.

Each runs in eager torch and compiled, from the same inputs; results, gradients by inputs and
parameters, buffers and the inputs themselves are compared.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, hessian, jacrev, vmap
from torch.utils.checkpoint import checkpoint

import fulgurite.torch
from fulgurite.torch import backend
from fulgurite.torch.conformance.judge import distance

pytestmark = pytest.mark.filterwarnings("ignore")
Make = Callable[[], tuple[Any, tuple[Any, ...]]]  # a program or module, and its arguments


def x(*shape: int, seed: int = 0, wanted: bool = True) -> Any:
    """Random numbers, of which gradients are asked or not."""
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return made.requires_grad_(wanted)


def tensors(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in tensors(v)] if isinstance(value, list | tuple) else []


def ran(make: Make, compiled: bool) -> list[Any]:
    """All that a run leaves."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    program, args = make()
    call = torch.compile(program, backend="fulgurite") if compiled else program
    results = tensors(call(*args))
    losses = [t.abs().double().square().sum() for t in results if t.requires_grad]
    if losses:
        sum(losses).backward()
    given = tensors(args)
    if isinstance(program, nn.Module):
        given += [*program.parameters(), *program.buffers()]
    return [*results, *given, *[t.grad for t in given if t.is_leaf and t.grad is not None]]


def stretched(a: Any, b: Any) -> Any:
    c = a * 2
    part = c[1:, ::2]
    part.add_(1).mul_(b)
    c[:, 0] = 5
    c.diagonal().fill_(1.5)
    return c, part, c.t(), c.unfold(1, 3, 2)


def written(a: Any) -> Any:
    a[2:].zero_()
    a[:, 1] += 3
    return a.sum(0)


def broken(a: Any) -> Any:
    b = a * 2
    b = b + 1 if b.sum() > 0 else b - 1
    for i in range(3):
        b = b * 1.1 + i
    return {"a": [b, (b + 1,)], "n": b.shape[0], "none": None}


def mixed(a: Any, n: Any, t: Any, small: Any) -> Any:
    return (a + n, a * t, n // 3, n % 3, t ^ True, (a > 0) & t, small + n, small * 100, n / 2,
            small << 2, ~small, torch.where(t, a, n), a.half() + 1.5, t.sum())  # fmt: skip


def empty(a: Any) -> Any:
    return a.sum(0), torch.cat([a, a * 2]), a.mean(1), a @ torch.ones(3, 2), a.prod(), a.cumsum(0)


def numbers(a: Any) -> Any:
    return a + 1, a * torch.tensor(2), a.expand(3), torch.stack([a, a]), a.max(), a.argmax()


def waves(a: Any, b: Any) -> Any:
    z = torch.complex(a, b)
    return (z * z.conj() + torch.exp(1j * z.real), z.abs(), z.angle(), torch.view_as_real(z),
            torch.fft.fft(z), torch.fft.irfft(torch.fft.rfft(a)))  # fmt: skip


class Hooked(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4)
        self.layer.register_forward_pre_hook(lambda _, given: (given[0] + 1,))
        self.layer.register_forward_hook(lambda _, __, found: found * 2)
        self.layer.weight.register_hook(lambda g: g * 3)

    def forward(self, a: Any) -> Any:
        return self.layer(a)


class Clipped(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, a: Any, scale: float) -> Any:
        ctx.save_for_backward(a)
        ctx.scale = scale
        return a.clamp(min=0) * scale

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (a,) = ctx.saved_tensors
        return g * (a > -1) * ctx.scale, None


class Again(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))

    def forward(self, a: Any) -> Any:
        return checkpoint(self.inner, a, use_reentrant=False)


class Tied(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Embedding(10, 6), nn.Linear(6, 10, bias=False)
        self.out.weight = self.into.weight
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, i: Any) -> Any:
        found = self.into(i)
        self.count += 1
        self.mean.mul_(0.9).add_(found.detach().mean((0, 1)), alpha=0.1)
        return self.out(found - self.mean) + self.count


class Experts(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.each = nn.Linear(6, 3), nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])

    def forward(self, a: Any) -> Any:
        share, which = self.gate(a).softmax(-1).topk(2, -1)
        out = torch.zeros_like(a)
        for number, expert in enumerate(self.each):
            rows, places = torch.where(which == number)
            if rows.numel():
                out.index_add_(0, rows, expert(a[rows]) * share[rows, places, None])
        return out


def grouped(q: Any, k: Any, v: Any) -> Any:
    mask = torch.ones(4, 5, 5, dtype=torch.bool).tril()
    return [F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **named)
            for named in ({}, {"is_causal": True}, {"attn_mask": mask})]  # fmt: skip


def cast_by_itself(a: Any, w: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = F.linear(a, w)
        return found, found.softmax(-1), (found @ found.t()).float() + a.sum()


def ordered(a: Any, i: Any) -> Any:
    return (a.sort(-1, descending=True), a.topk(3, 0), a.kthvalue(2, 1), a.cummax(1),
            a.logcumsumexp(1), a.scatter_reduce(1, i, a[:, :2], "amax", include_self=False),
            a.index_put((i[:, 0],), a[:4] * 2, accumulate=True), a[a > 0].sum())  # fmt: skip


def margins(a: Any, t: Any) -> Any:
    return [F.multilabel_margin_loss(a, t, reduction=how) for how in ("none", "mean", "sum")]


def strided(a: Any) -> Any:
    b = a * 2
    part, turned, beside = b[:3, :2].unsqueeze(1), b.t()[1:3], b[:, 2:4]
    return [
        part.as_strided((2,), (4,)) + 1,
        part.as_strided((2,), (4,), 1) * 3,
        beside.as_strided((2, 2), (1, 4)) * 2,
        turned.as_strided((2,), (3,)) + 0,
    ]


def strided_inputs(a: Any, b: Any) -> Any:
    return (a.as_strided((2,), (4,)) + 1, b.as_strided((2, 2), (3, 1)) * 2,
            b.as_strided((2,), (3,), 2) * 1, b[1:].as_strided((3,), (5,)) - 1)  # fmt: skip


def strided_otherwise(a: Any, z: Any) -> Any:
    b, c = a * 2, z * 2
    return [
        b.view(torch.int32).as_strided((2,), (4,)) + 0,
        z.conj().as_strided((4,), (3,)) + 0,
        c[:, 1:].conj().as_strided((2, 2), (4, 1)) * 2,
        torch.view_as_real(c).as_strided((4,), (3,)) + 0,
        c.conj().imag.as_strided((3,), (6,)) + 1,
        torch.view_as_complex(b.view(-1, 2)).as_strided((3,), (5,)) * 1,
    ]


def overlapping() -> tuple[Any, Any]:
    """Two views of one tensor, with an element in common."""
    whole = x(8, 9, wanted=False)
    return whole[::2, 1:4], whole[0].expand(3, 9)


PROGRAMS: dict[str, Make] = {
    "views that are written to": lambda: (stretched, (x(6, 8), x(5, 4))),
    "an input that is written to": lambda: (written, (x(5, 4, wanted=False),)),
    "branches on values": lambda: (broken, (x(4, 4),)),
    "a factor that torch's decomposition refuses": lambda: (
        fractions_of_whole_numbers, (torch.arange(4), torch.arange(4))),
    "mixed dtypes": lambda: (mixed, (
        x(7), torch.arange(-3, 4), torch.tensor([True, False] * 3 + [True]),
        torch.arange(7, dtype=torch.int8))),
    "nothing": lambda: (empty, (torch.zeros(0, 3, requires_grad=True),)),
    "no axes": lambda: (numbers, (torch.tensor(1.5, requires_grad=True),)),
    "complex numbers": lambda: (waves, (x(4, 6), x(4, 6, seed=3))),
    "hooks": lambda: (Hooked(), (x(3, 5),)),
    "a function with a gradient of its own": lambda: (
        lambda a: Clipped.apply(a, 2.0).sin(), (x(5, 5),)),
    "a checkpoint": lambda: (Again(), (x(4, 6),)),
    "vmap": lambda: (lambda a, b: vmap(lambda s, t: (s * t).sum() + s.max(), in_dims=(0, 1))(a, b),
                     (x(4, 5), x(5, 4, seed=1))),
    "functions of gradients": lambda: (
        lambda a: (grad(lambda z: (z.sin() ** 2).sum())(a), jacrev(lambda z: z.tanh() * z.sum())(a),
                   hessian(lambda z: (z**3).sum() + z.prod())(a)), (x(4, wanted=False),)),
    "tied weights and buffers": lambda: (Tied(), (torch.tensor([[1, 2, 3], [4, 4, 9]]),)),
    "experts": lambda: (Experts(), (x(5, 6),)),
    "a recurrent network": lambda: (
        nn.LSTM(5, 7, 2, batch_first=True, bidirectional=True), (x(3, 6, 5),)),
    "several queries for a key": lambda: (grouped, (x(2, 4, 5, 8), x(2, 2, 5, 8), x(2, 2, 5, 8))),
    "one key for all queries": lambda: (grouped, (x(2, 4, 5, 8), x(2, 1, 5, 8), x(2, 1, 5, 8))),
    "pictures with channels last": lambda: (
        lambda a, w: F.relu(F.conv2d(a, w, stride=2, padding=1)),
        (x(2, 3, 8, 8, wanted=False).contiguous(memory_format=torch.channels_last)
         .requires_grad_(), x(8, 3, 3, 3))),
    "orders and places": lambda: (
        ordered, (x(4, 5), torch.tensor([[0, 1], [2, 3], [3, 0], [1, 2]]))),
    "a loss of alignments": lambda: (
        lambda a, t: F.ctc_loss(a.log_softmax(-1), t, torch.tensor([8, 7]), torch.tensor([3, 2])),
        (x(8, 2, 6), torch.tensor([[1, 2, 3], [2, 4, 1]]))),
    "margins of rows with few labels and many": lambda: (
        margins, (x(4, 5), torch.tensor([[1, 3, -1, 0, 0], [0, -1, 0, 0, 0], [2, 4, 1, -1, 0],
                                         [3, 0, 1, 2, 4]]))),
    "margins of one row": lambda: (margins, (x(5), torch.tensor([1, 3, -1, 2, 0]))),
    "a view that is written to and one beside it": lambda: (
        lambda a, b: (b + 1, a.mul_(2)), overlapping()),
    "places in the memory of what a view is of": lambda: (strided, (x(6, 8),)),
    "places in the memory of inputs with gaps": lambda: (
        strided_inputs, (x(6, 8, wanted=False)[:3, :2].unsqueeze(1), x(6, 8, seed=1)[::2, 1:3])),
    "places in memory that is read as other elements": lambda: (
        strided_otherwise, (x(6, 8, wanted=False),
                            torch.complex(x(4, 4, wanted=False), x(4, 4, seed=1, wanted=False)))),
    "samples of a grid": lambda: (
        lambda a, g: F.grid_sample(a, g, padding_mode="reflection", align_corners=False),
        (x(2, 3, 5, 6), x(2, 4, 4, 2))),
}  # fmt: skip


@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_leaves_what_it_leaves_in_eager_torch(make: Make) -> None:
    theirs, ours = ran(make, False), ran(make, True)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def scattered(a: Any, b: Any) -> Any:
    where = torch.arange(20).view(4, 5) % 3 == 0
    nowhere = torch.zeros_like(where)
    return a.masked_scatter(where, b).sin(), a.masked_scatter(nowhere, b) * 2


def bits(a: Any) -> Any:
    changed = a.detach().clone()
    changed.view(torch.int32).add_(1)
    return changed, a.detach().view(torch.int32) >> 23, a.detach().bfloat16().view(torch.int16)


def narrowed(z: Any) -> Any:
    return [z.to(dtype) for dtype in (torch.bool, torch.uint8, torch.int8, torch.int64)]


def fractions_of_whole_numbers(a: Any, b: Any) -> Any:
    return torch.addcmul(a, a, b, value=0.5), a * b


def whole_numbers(a: Any, b: Any, bytes_: Any) -> Any:
    return a.fmod(b), F.threshold(a, 0.5, 2.0), bytes_ >> torch.arange(7, 11, dtype=torch.uint8)


def signs(a: Any, halves: Any) -> Any:
    return a.angle(), F.threshold(a, 0.5, 2.0), halves.round(decimals=2), halves.round(decimals=-1)


COMPILED: dict[str, Make] = {
    "whole numbers at the ends of their types": lambda: (whole_numbers, (
        torch.tensor([-(2**31), -(2**31), 2**31 - 1, 2**31 - 2, -5, 5], dtype=torch.int32),
        torch.tensor([3, -(2**31), -(2**31), 5, 3, -3], dtype=torch.int32),
        torch.tensor([255, 200, 129, 128], dtype=torch.uint8))),
    "floats at the ends of their types": lambda: (signs, (
        torch.tensor([0.0, -0.0, -1.0, 2.0, torch.inf, torch.nan]).double(),
        torch.tensor([65504.0, -1000.5, 0.125]).half())),
    "complex numbers as truths and as small whole numbers": lambda: (
        narrowed,
        (torch.tensor([0j, 1j, 2, -2.5 + 1j, 300]),),
    ),
    "gradients of a source that is scattered": lambda: (scattered, (x(4, 5), x(9, seed=1))),
    "a bilinear layer": lambda: (nn.Bilinear(3, 4, 2), (x(2, 5, 3), x(2, 5, 4, seed=1))),
    "bits as numbers": lambda: (bits, (x(3, 4),)),
}  # fmt: skip


@pytest.mark.parametrize("make", COMPILED.values(), ids=COMPILED)
def test_a_program_is_compiled_as_a_whole(make: Make) -> None:
    fulgurite.torch.report().reset()
    theirs, ours = ran(make, False), ran(make, True)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert not fulgurite.torch.report().eager


def test_autocast_on_the_host_is_as_close_as_bfloat16_is() -> None:
    theirs = ran(lambda: (cast_by_itself, (x(4, 8), x(8, 8))), False)
    ours = ran(lambda: (cast_by_itself, (x(4, 8), x(8, 8))), True)
    assert [a.dtype for a in ours] == [b.dtype for b in theirs]
    assert max([distance(a, b) for a, b in zip(ours, theirs, strict=True)]) < 2e-2


class Halves(nn.Module):  # type: ignore[misc]
    """What autocast makes of norms behind products."""

    def __init__(self, norm: str) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 12)
        self.norm = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d,
                     "group": lambda n: nn.GroupNorm(2, n)}[norm](12)  # fmt: skip

    def forward(self, a: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = self.norm(self.layer(a) + 3)
            return (found @ found.t()).float()


@pytest.mark.parametrize("norm", ["layer", "batch", "group"])
def test_gradients_of_norms_under_autocast_are_as_close_to_float64_as_torchs(norm: str) -> None:
    apart = {"ours": 0.0, "torch": 0.0}
    for seed in range(6):
        torch.manual_seed(seed)
        model, a = Halves(norm), x(8, 16, seed=seed, wanted=False)
        wide = copy.deepcopy(model).double()
        truth = wide.norm(wide.layer(a.double()) + 3)
        (truth @ truth.t()).tanh().sum().backward()
        right = [p.grad for p in wide.layer.parameters()]
        for which in apart:
            model.zero_grad()
            torch._dynamo.reset()
            call = torch.compile(model, backend="fulgurite") if which == "ours" else model
            call(a).tanh().sum().backward()
            apart[which] += sum([distance(p.grad, r) for p, r in
                                 zip(model.layer.parameters(), right, strict=True)])  # fmt: skip
    assert apart["ours"] < 1.3 * apart["torch"]


def test_a_product_and_its_bias_are_rounded_once() -> None:
    a, w, b = [x(*shape, seed=i, wanted=False).bfloat16()
               for i, shape in enumerate([(32, 64), (48, 64), (48,)])]  # fmt: skip
    ours = torch.compile(F.linear, backend="fulgurite")(a, w, b)
    exact = F.linear(a.double(), w.double(), b.double())
    assert ((ours.double() - exact).abs() <= exact.abs() * 2.0**-8 + 1e-4).all()


def test_no_garbage_is_collected_while_the_backend_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    compiled = backend.compiled

    def watched(*args: Any, **named: Any) -> Any:
        seen.append(gc.isenabled())
        return compiled(*args, **named)

    monkeypatch.setattr(backend, "compiled", watched)
    assert gc.isenabled()
    torch._dynamo.reset()
    torch.compile(lambda a: a.sin() * 3.25, backend="fulgurite")(x(3)).sum().backward()
    assert seen and not any(seen[:1]) and gc.isenabled()
