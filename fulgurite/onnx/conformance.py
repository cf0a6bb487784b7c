"""`python -m fulgurite.onnx.conformance`: the node tests of the installed `onnx` package.

In: the cases that package generates (models with inputs and expected outputs). Out: a table by
operator, and a reason for everything that did not pass. A case passes if element types, shapes and
numbers agree within the tolerance it asks for, and all of it was native code: a kernel that ran by
interpretation, or an operator whose work NumPy or Python did, counts as a failure named "host",
except for linear algebra, Fourier transforms and strings, which have no other form.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fulgurite as fg

from ..cli.progress import Progress
from ..runtime.device import get_device
from . import load

HOST_IS_FINE = {"Det", "Inverse", "fft", "strings", "linear algebra", "StringConcat",
                "StringSplit", "StringNormalizer", "RegexFullMatch"}  # fmt: skip
EPSILON = {"bfloat16": 2**-7, "float16": 2**-10}  # tolerances below them ask for equal bits
BY_DESIGN = {
    "Bernoulli": "random numbers: which ones is not specified",
    "RandomUniformLike": "random numbers: which ones is not specified",
    "Dropout": "random numbers: which ones is not specified",
}


@dataclass(frozen=True)
class Result:
    """What became of one case."""

    name: str
    operator: str
    passed: bool
    reason: str = ""


def cases(without: Sequence[str] = ()) -> list[Any]:
    """All node tests of the installed `onnx` package, but for those of some of its modules."""
    try:
        from onnx.backend.test.case import node
    except ImportError as problem:
        raise SystemExit(f"the node tests come with the onnx package: {problem}") from None
    state = np.random.get_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in pkgutil.walk_packages(node.__path__, f"{node.__name__}."):
            if module.name.rsplit(".", 1)[1] not in without:
                importlib.import_module(module.name)
    np.random.set_state(state)
    found = [case for case in node._NodeTestCases if case.model is not None]
    return sorted(found, key=lambda case: str(case.name))


def operators_of(every: Sequence[Any]) -> dict[str, str]:
    """The operator that each case is about; an expanded one belongs to what was expanded."""
    whole = {case.name: case.model.graph.node[0].op_type for case in every
             if len(case.model.graph.node) == 1}  # fmt: skip
    found = {}
    for case in every:
        plain = re.sub(r"_expanded(_ver\d+|_function)?.*$", "", case.name)
        last = case.model.graph.node[-1].op_type
        found[case.name] = whole.get(plain) or whole.get(case.name) or last
    return found


def run_case(case: Any, operator: str, device: str = "cpu") -> Result:
    """One case on one device."""
    place = get_device(device)
    before = len(getattr(place, "interpreted", ()))
    try:
        with fg.config(device=device, tier="native"):
            model = load(case.model.SerializeToString())
            for inputs, expected in case.data_sets:
                given = [_input(x) for x in inputs]
                found = list(_called(model, given).values())
                if len(found) != len(expected):
                    return Result(case.name, operator, False, f"{len(found)} outputs")
                for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
                    why = difference(ours, _input(theirs), case.rtol, case.atol)
                    if why:
                        why = BY_DESIGN.get(operator, f"output {number}: {why}")
                        return Result(case.name, operator, False, why)
    except Exception as problem:  # a finding, whatever it is
        text = str(problem).split("\n")[0]
        return Result(case.name, operator, False, f"{type(problem).__name__}: {text}"[:200])
    hosts = {h for plan in _plans(model) for h in plan.hosts}
    interpreted = getattr(place, "interpreted", ())[before:]
    allowed = bool(hosts & HOST_IS_FINE)
    if hosts - HOST_IS_FINE:
        return Result(case.name, operator, False, f"host: {', '.join(sorted(hosts))}")
    if interpreted and not allowed:
        return Result(case.name, operator, False, f"host: {interpreted[0]}"[:200])
    return Result(case.name, operator, True)


def _plans(model: Any) -> Iterator[Any]:
    for plans in model._plans.values():
        yield from plans
    if model.last is not None:
        yield model.last


def _called(model: Any, given: list[Any]) -> Any:
    """Inputs in the model's own order; optional ones may be missing."""
    names = [info.name for info in model.program.graph.input]
    return model(**{n: v for n, v in zip(names, given, strict=False)})


def _input(value: Any) -> Any:
    """Stored tensors, sequences and optionals as arrays and lists."""
    if isinstance(value, list | tuple):
        return [_input(v) for v in value]
    if value is None or isinstance(value, np.ndarray):
        return value
    if hasattr(value, "DESCRIPTOR"):
        import onnx

        convert = {
            "TensorProto": onnx.numpy_helper.to_array,
            "SequenceProto": onnx.numpy_helper.to_list,
            "OptionalProto": onnx.numpy_helper.to_optional,
        }[value.DESCRIPTOR.name]
        return _input(convert(value))
    return np.asarray(value)


def difference(ours: Any, theirs: Any, rtol: float, atol: float) -> str:
    """What differs between a result and what was expected; nothing if they agree."""
    if isinstance(theirs, list):
        if not isinstance(ours, list) or len(ours) != len(theirs):
            return f"a sequence of {len(theirs)} was expected"
        found = [difference(a, b, rtol, atol) for a, b in zip(ours, theirs, strict=True)]
        return next(filter(None, found), "")
    if theirs is None or ours is None:
        return "" if theirs is ours else "one of them is missing"
    got, want = np.asarray(ours), np.asarray(theirs)
    if want.dtype.kind in "OUST":
        texts = ([_text(x) for x in a.reshape(-1)] for a in (got, want))
        same = got.shape == want.shape and next(texts) == next(texts)
        return "" if same else f"strings differ: {got.reshape(-1)[:3]} {want.reshape(-1)[:3]}"
    if got.dtype != want.dtype:
        return f"element type {got.dtype} instead of {want.dtype}"
    if got.shape != want.shape:
        return f"shape {got.shape} instead of {want.shape}"
    return _distance(_widened(got), _widened(want), EPSILON.get(want.dtype.name), rtol, atol)


def _widened(a: Any) -> Any:
    """Numbers that NumPy computes with: floats in float64."""
    known = a if a.dtype.kind in "biufc" else a.astype(np.float32)
    return known.astype(np.float64) if known.dtype.kind == "f" else known


def _distance(got: Any, want: Any, step: float | None, rtol: float, atol: float) -> str:
    """Which numbers are too far apart, and if that is rounding."""
    close = np.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)
    if close.all():
        return ""
    place = tuple(int(i) for i in np.argwhere(~close)[0])
    if step is not None and np.allclose(got, want, rtol=2 * step, atol=step):
        return f"rounding: {(~close).sum()} of {close.size} numbers are off by a last bit"
    if got.dtype.kind == "f" and np.allclose(got, want, rtol=rtol, atol=1e-6, equal_nan=True):
        return f"rounding: the expected numbers themselves are off by {abs(want[place]):.1g}"
    return f"{(~close).sum()} of {close.size} numbers: {got[place]} instead of {want[place]}"


def _text(x: Any) -> str:
    return x.decode("utf-8") if isinstance(x, bytes) else str(x)


def table(results: Sequence[Result]) -> str:
    """Passed and all cases by operator, then every failure with its reason."""
    rows: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        rows[result.operator].append(result)
    width = max(map(len, rows), default=8)
    lines = [f"{'operator':<{width}}  passed  of"]
    for name in sorted(rows):
        passed = sum(r.passed for r in rows[name])
        flag = "" if passed == len(rows[name]) else "  <-"
        lines.append(f"{name:<{width}}  {passed:>6}  {len(rows[name]):>2}{flag}")
    failed = [r for r in results if not r.passed]
    if failed:
        lines += ["", "not passed:"]
        lines += [f"  {r.name}: {r.reason}" for r in failed]
    passed = len(results) - len(failed)
    lines += ["", f"{passed} of {len(results)} passed"]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that are asked for and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m fulgurite.onnx.conformance",
        description="Run the node tests of the installed onnx package.",
    )
    parser.add_argument("--device", default="cpu", help="where to run them (cpu)")
    parser.add_argument("--only", default="", metavar="PATTERN", help="cases whose name matches")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every Nth case, from I on")
    parser.add_argument("--json", default="", metavar="FILE", help="write the results there too")
    parser.add_argument("--least", type=int, default=0, help="exit with 1 if fewer pass")
    arguments = parser.parse_args(argv)
    every = cases()
    operators = operators_of(every)
    first, step = (int(n) for n in arguments.part.split("/"))
    chosen = [case for case in every if re.search(arguments.only, case.name)][first::step]
    results = []
    bar = Progress(chosen, "node tests")
    for case in bar:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results.append(run_case(case, operators[case.name], arguments.device))
        bar.note(f"{sum(r.passed for r in results)} passed")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps([asdict(r) for r in results]), encoding="utf-8")
    print(table(results))
    return 1 if sum(r.passed for r in results) < arguments.least else 0


if __name__ == "__main__":
    sys.exit(main())
