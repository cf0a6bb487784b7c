"""Operators: samples of torch's own OpInfo database through the backend, forward and gradient."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..backend import compiled, decompositions
from ..corrected import corrected
from .judge import Verdict, compare, tensors_in, together

DTYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64,
          "bool": torch.bool}  # fmt: skip
RANDOM = (
    "bernoulli", "cauchy", "dropout", "empty", "exponential", "fractional_max_pool", "geometric",
    "gumbel", "log_normal", "multi_head_attention", "multinomial", "normal", "pca_lowrank",
    "poisson", "rand", "rrelu", "svd_lowrank", "uniform",
)  # fmt: skip


TIES = ("sort", "topk", "kthvalue", "mode", "median")  # of equals torch may tell any


KNOWN = {  # differences that are torch's own
    "nn.functional.hardsigmoid float64": "torch's gradient has 1/6 rounded to float32",
}


def is_random(name: str) -> bool:
    """True if two runs of an operator need not agree: random numbers, uninitialised memory."""
    return any([part in name for part in RANDOM])


def cases(only: str = "") -> Iterator[tuple[Any, str]]:
    """Every operator of the database with every dtype of ours that it takes."""
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        if not any([part in info.name for part in only.split(",")]) or "sparse" in info.name:
            continue  # sparse layouts are not traced by AOTAutograd
        for name, dtype in DTYPES.items():
            if dtype in info.supported_dtypes("cpu"):
                yield info, name


def _moved(value: Any, dtype: Any, leaves: list[Any]) -> Any:
    """A sample's value with tensors of its own, floats in a dtype; `leaves` gets those."""
    if isinstance(value, torch.Tensor):
        grad = value.requires_grad
        found = value.detach().clone()
        if dtype is not None and found.is_floating_point():
            found = found.to(dtype)
        leaves.append(found.requires_grad_(grad))
        return leaves[-1]
    if isinstance(value, list | tuple):
        return type(value)([_moved(v, dtype, leaves) for v in value])
    if isinstance(value, dict):
        return {k: _moved(v, dtype, leaves) for k, v in value.items()}
    return value


def through_aot(function: Callable[..., Any], leaves: list[Any], run: Any) -> Any:
    """A function of tensors compiled as the backend compiles dynamo's graphs."""
    from torch._functorch.aot_autograd import aot_function
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    def compiler(module: Any, inputs: Any) -> Any:
        return compiled(module, inputs, {})

    return aot_function(
        function, fw_compiler=compiler, bw_compiler=compiler, inference_compiler=compiler,
        decompositions=decompositions(), partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )  # fmt: skip


def _filled(value: Any, place: dict[int, int], given: tuple[Any, ...]) -> Any:
    """A sample's value with other tensors in place of its own."""
    if isinstance(value, torch.Tensor):
        return given[place[id(value)]]
    if isinstance(value, list | tuple):
        return type(value)([_filled(v, place, given) for v in value])
    if isinstance(value, dict):
        return {k: _filled(v, place, given) for k, v in value.items()}
    return value


def _gradients(results: list[Any], leaves: list[Any]) -> list[Any]:
    """The gradients of the leaves that have one."""
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    starts = [r for r in results if r.requires_grad]
    if not wanted or not starts:
        return []
    seeds = [_seed(r) for r in starts]
    grads = torch.autograd.grad(starts, wanted, seeds, allow_unused=True)
    return [g if g is not None else torch.zeros(()) for g in grads]


def _seed(result: Any) -> Any:
    """A gradient for a result: not all the same, so that places matter."""
    line = torch.linspace(0.5, 1.5, max(result.numel(), 1), dtype=torch.float64)
    return line[: result.numel()].reshape(result.shape).to(result.dtype)


class Sample:
    """One call of an operator."""

    def __init__(self, info: Any, sample: Any) -> None:
        self.info, self.sample = info, sample

    def run(self, how: str, gradient: bool, dtype: Any = None) -> list[Any]:
        """Results, and gradients of the inputs, of torch or of ours."""
        leaves: list[Any] = []
        parts = (self.sample.input, self.sample.args, self.sample.kwargs)
        input_, args, named = _moved(parts, dtype, leaves)
        place = {id(leaf): i for i, leaf in enumerate(leaves)}

        def function(*given: Any) -> Any:
            x, a, k = [_filled(v, place, given) for v in (input_, args, named)]
            return tensors_in(self.info.op(x, *a, **k))

        if not gradient:
            leaves = [leaf.detach() for leaf in leaves]
        call = function if how == "torch" else through_aot(function, leaves, None)
        with corrected():
            results = list(call(*leaves))
        if not gradient:
            return results
        return [*results, *_gradients(results, leaves)]


def judge(info: Any, dtype: str, most: int, train: bool) -> Iterator[tuple[str, Verdict | str]]:
    """Verdicts on the first samples of an operator: forward, and with gradients."""
    grads = train and dtype in ("float32", "float64") and info.supports_autograd
    random = is_random(info.formatted_name)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = info.sample_inputs("cpu", DTYPES[dtype], requires_grad=grads)
        for number, given in enumerate(itertools.islice(samples, most)):
            sample = Sample(info, given)
            drawn = random or bool(given.kwargs.get("dropout_p"))
            try:
                theirs = sample.run("torch", grads)
            except Exception as problem:
                yield f"{number}", f"torch: {type(problem).__name__}"
                continue
            if not theirs:
                yield f"{number}", "no tensors to compare"
                continue
            found = _verdict(sample, theirs, grads, drawn)
            if isinstance(found, Verdict) and not found.agrees:
                found = KNOWN.get(f"{info.name} {dtype}", found)
            yield f"{number}", found


def _alike(ours: list[Any], theirs: list[Any]) -> Verdict:
    """Do results have the same shapes and dtypes?"""
    pairs = zip(ours, theirs, strict=False)
    same = all([(a.shape, a.dtype) == (b.shape, b.dtype) for a, b in pairs])
    return Verdict(same, 0.0, "" if same else "another shape or dtype")


def _verdict(sample: Sample, theirs: list[Any], grads: bool, random: bool) -> Verdict | str:
    try:
        ours = sample.run("ours", grads)
    except Exception as problem:
        first = str(problem).splitlines()[0][:160] if str(problem) else ""
        if "DataDependentOutput" in repr(problem) or "DynamicOutputShape" in repr(problem):
            return "the data decide its shape: dynamo breaks the graph here"
        return Verdict(False, float("inf"), f"{type(problem).__name__}: {first}")
    if random:
        return _alike(ours, theirs)
    floats = [t for t in theirs if t.is_floating_point()]
    wide = bool(floats) and all(t.dtype == torch.float32 for t in floats)
    exact = (lambda: sample.run("torch", grads, torch.float64)) if wide else None
    tolerance = 1e-9 if not wide and floats else 1e-4
    found = compare(ours, theirs, exact, tolerance)
    apart = not found.agrees and exact is None and len(floats) == len(theirs)
    if apart and math.isfinite(found.error) and together(ours, theirs) <= tolerance:
        return Verdict(True, found.error, "apart by what is nothing beside the other results")
    ties = any([name in sample.info.name for name in TIES])
    if not found.agrees and ties and not theirs[-1].is_floating_point():
        if "arg" in sample.info.name:
            return "of equal elements torch tells any"
        return compare(ours[:1], theirs[:1], None, tolerance)
    return found
