"""Tests of tensor/torch_aliases.py: other libraries' names are our functions, and nothing else."""

import inspect
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, GradientError
from fulgurite.tensor.torch_aliases import KEYWORDS, Habits, _Alias
from tests.functional.helpers import raises, tensor

VALUES = np.random.default_rng(0).uniform(0.1, 0.9, (2, 3, 4))
X: Any = tensor(VALUES)
ALIASES = {name: a.target for name, a in vars(Habits).items() if isinstance(a, _Alias)}
NAMES = {name: target for name, target in ALIASES.items() if isinstance(target, str)}


@pytest.mark.parametrize("name", NAMES)
def test_an_alias_is_the_function_itself(name: str) -> None:
    target = NAMES[name]
    ours = inspect.getattr_static(fg.Tensor, target, None) or getattr(fg, target)
    assert inspect.isfunction(ours)
    assert inspect.getattr_static(fg.Tensor, name) is ours
    if hasattr(fg, target):
        assert getattr(fg, name) is getattr(fg, target)


def test_every_name_of_the_table_is_on_the_tensor() -> None:
    assert not any(isinstance(getattr(fg.Tensor, name), _Alias) for name in ALIASES)


def functions() -> list[tuple[str, Any]]:
    found = [(f"fg.{n}", getattr(fg, n)) for n in fg.__all__]
    found += [(f"Tensor.{n}", m) for n, m in vars(fg.Tensor).items() if not n.startswith("_")]
    found = [(n, f) for n, f in found if inspect.isfunction(f)]
    meshes = "fulgurite.distributed"  # whose axes are those of a mesh
    return [(n, f) for n, f in found if not f.__module__.startswith(meshes)]


@pytest.mark.parametrize(
    ("name", "function"), functions(), ids=lambda x: x if isinstance(x, str) else ""
)
def test_every_function_with_axis_or_keepdims_takes_dim_and_keepdim(
    name: str, function: Any
) -> None:
    ours = inspect.signature(function).parameters
    theirs = {t: o for t, o in KEYWORDS if o in ours and t in ("dim", "keepdim")}
    if theirs:
        assert hasattr(function, "__wrapped__"), f"{name} does not take {theirs}"


def test_dim_means_axis_and_keepdim_means_keepdims() -> None:
    for name in ("sum", "mean", "max", "argmax", "std", "logsumexp", "any"):
        want = getattr(fg, name)(X, axis=1, keepdims=True).numpy()
        got = getattr(fg, name)(X, dim=1, keepdim=True).numpy()
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(getattr(X, name)(dim=1, keepdim=True).numpy(), want)
    assert X.softmax(dim=0).sum(dim=0).shape == (3, 4)
    assert fg.concat([X, X], dim=2).shape == (2, 3, 8)  # type: ignore[call-arg]
    assert X.flatten(start_dim=1, end_dim=2).shape == (2, 12)
    assert X.flip(dims=(0, 2)).shape == X.shape
    assert fg.permute_dims(X, dims=(2, 0, 1)).shape == (4, 2, 3)  # type: ignore[call-arg]
    assert X.var(ddof=1).item() == X.var(correction=1).item()


def test_torch_habits_work_on_tensors() -> None:
    assert X.view(6, 4).shape == (6, 4)
    assert X.view(-1).shape == (24,)
    assert X.unsqueeze(1).shape == (2, 1, 3, 4)
    assert X.unsqueeze(dim=-1).shape == (2, 3, 4, 1)
    assert X.permute(2, 0, 1).shape == (4, 2, 3)
    assert X.transpose(0, 1).shape == (3, 2, 4)
    assert X[0].t().shape == (4, 3)
    assert X[:1].expand(5, -1, -1).shape == (5, 3, 4)
    assert X.numel() == 24
    assert X.dim() == 3
    assert X.contiguous().shape == X.shape
    assert X.bmm(X.mT).shape == (2, 3, 3)
    assert X[0].mm(X[1].T).shape == (3, 3)
    assert X.clamp(min=0.5).min().item() == 0.5
    assert X.clamp(0.2, 0.5).max().item() == 0.5
    assert X.clamp_max(0.5).max().item() == 0.5
    assert X.masked_fill(X > 0.5, 7.0).max().item() == 7
    assert X.view_as(fg.ones((4, 6))).shape == (4, 6)
    assert X[:1].expand_as(X).shape == X.shape
    assert len(X.chunk(2, dim=2)) == 2
    assert len(X.unbind()) == 2
    assert X.add(1).sub(1).mul(2).div(2).shape == X.shape
    assert X.lt(2).all().item() is True
    assert X.amax(dim=0).shape == (3, 4)
    assert X.cumsum(dim=1).shape == X.shape
    assert X.topk(2, dim=1).values.shape == (2, 2, 4)
    assert X.sort(dim=0).shape == X.shape
    assert X.index_select(1, fg.Tensor([0, 2])).shape == (2, 2, 4)
    assert X.masked_select(X > 0.5).shape == (int((VALUES > 0.5).sum()),)
    assert X.masked_select(X[:1] > 2).shape == (0,)
    assert X.repeat_interleave(2, dim=0).shape == (4, 3, 4)
    assert X.roll(shifts=1, dims=0).shape == X.shape
    assert X.unfold(2, 2, 1).shape == (2, 3, 3, 2)
    assert X.diagonal(0, dim1=1, dim2=2).shape == (2, 3)
    assert X.tril(diagonal=1).shape == X.shape
    assert X.scatter_add(1, fg.zeros((2, 1, 4), "int32"), X).shape == X.shape
    assert X.take_along_dim(fg.zeros((2, 1, 4), "int32"), dim=1).shape == (2, 1, 4)
    assert X.type_as(fg.ones(1, "int8")).dtype is fg.int8


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("float", "float32"), ("double", "float64"), ("half", "float16"),
        ("bfloat16", "bfloat16"), ("int", "int32"), ("long", "int64"), ("bool", "bool"),
    ],
)  # fmt: skip
def test_a_dtypes_name_casts(name: str, dtype: str) -> None:
    assert getattr(X, name)().dtype.name == dtype


def test_habits_work_on_the_module() -> None:
    module: Any = fg
    assert module.cat([X, X]).shape == (4, 3, 4)
    assert module.concatenate([X, X], axis=1).shape == (2, 6, 4)
    assert module.clamp(X, max=0.5).max().item() == 0.5
    np.testing.assert_allclose(module.arcsin(X).numpy(), np.arcsin(VALUES), rtol=1e-6)
    assert module.unsqueeze(X, 0).shape == (1, 2, 3, 4)
    assert module.cumsum(X, axis=0).shape == X.shape
    assert module.repeat_interleave(X, 2, 0).shape == (4, 3, 4)
    assert module.take_along_dim(X, fg.zeros((2, 1, 4), "int32"), dim=1).shape == (2, 1, 4)
    assert module.cast(X, "int8").dtype is fg.int8


def test_a_keyword_said_twice_is_an_error_that_names_the_line() -> None:
    with raises(ArgumentError, "mean the same"):
        X.sum(axis=0, dim=0)
    with pytest.raises(TypeError):
        X.sum(dimension=0)


def test_names_with_an_underscore_give_the_tensor_itself_a_new_value() -> None:
    p = fg.nn.Parameter([1.0, 2.0])
    before = p * 1
    with fg.no_grad():
        assert p.mul_(2).add_(fg.ones(2), alpha=-0.5) is p
        assert p.tolist() == [1.5, 3.5] and before.tolist() == [1.0, 2.0]
        assert p.sub_(1.0, alpha=0.5).div_(2).clamp_(max=1.0).tolist() == [0.5, 1.0]
        assert p.lerp_(fg.zeros(2), 0.5).tolist() == [0.25, 0.5]
        assert p.fill_(3).tolist() == [3, 3] and p.zero_().tolist() == [0, 0]
        assert p.copy_([3.0, 4.0]).tolist() == [3, 4] and p.requires_grad
    with raises(GradientError, "cannot be assigned while gradients are recorded"):
        p.add_(1)
    assert p.norm().item() == 5 and p.cpu().tolist() == [3, 4]
    assert fg.arange(6).unflatten(0, (2, -1)).shape == (2, 3)


def test_a_clone_has_its_own_value_and_hands_on_the_gradient() -> None:
    x = fg.Tensor([1.0, 2.0], requires_grad=True)
    y = x.clone()
    y += 1
    (y * y).sum().backward()
    assert x.tolist() == [1, 2] and y.tolist() == [2, 3]
    assert x.grad is not None and x.grad.tolist() == [4, 6]


def test_torchs_way_to_make_a_tensor_works_beside_the_module_of_the_name() -> None:
    made = fg.tensor([1.0, 2.0], requires_grad=True)
    assert isinstance(made, fg.Tensor) and made.requires_grad
    module: Any = fg.tensor
    assert module.Tensor is fg.Tensor and module.__name__ == "fulgurite.tensor"
