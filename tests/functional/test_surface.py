"""The surface as a whole: every name is documented, typed and shown by an example that runs."""

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fulgurite as fg
from fulgurite import functional
from fulgurite.core.ops.host import HOST_FUNCTIONS
from fulgurite.extend.index_kernel import USER_KERNELS
from fulgurite.graph.fusion.user_patterns import PATTERNS
from fulgurite.tensor.methods import Methods

pytestmark = pytest.mark.device("none")

FAMILIES = sorted(
    ".".join(path.relative_to(Path(functional.__path__[0])).with_suffix("").parts)
    for path in Path(functional.__path__[0]).rglob("[a-z]*.py")
    if path.stem
    not in (
        "assignment",
        "common",
        "nested",
        "results",
        "template",
        "sized_template",
    )  # tensors' own methods, helpers
)
PRIVATE = {  # what the package itself needs
    "basic", "contract", "diagonal_of", "for_sums", "getitem", "neighbours", "operands",
    "pads_of", "per_axis", "placed", "places", "slices_at", "Index", "cuts_of", "part_of",
    "understood", "reduced", "row_of", "windows_of", "overhang", "max_pool_with_indices",
    "adaptive_max_pool_with_indices", "join", "max_unpool", "lp_pool", "p_norm", "classes_along",
    "product_dtype", "wide_products", "narrowed", "added", "wide_result",
}  # fmt: skip


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(fg.__path__, "fulgurite."):
        if not found.name.endswith("__main__"):
            try:
                yield importlib.import_module(found.name)
            except ModuleNotFoundError as missing:
                if missing.name not in (
                    "torch",
                    "triton",
                    "starlette",
                ):  # extras: not installed everywhere
                    raise


@pytest.mark.device("first")  # an example is the same program on every device
@pytest.mark.parametrize("module", list(modules()), ids=lambda module: module.__name__)
def test_the_examples_in_docstrings_are_true(module: Any) -> None:
    fg.clear_caches()  # an example must not depend on what ran before
    known, hosts = (len(PATTERNS), len(USER_KERNELS)), set(HOST_FUNCTIONS)
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder().find(module, extraglobs={"fg": fg}):
        runner.run(example)
        del PATTERNS[known[0] :], USER_KERNELS[known[1] :]  # nor what comes after on its kernels
        for name in set(HOST_FUNCTIONS) - hosts:  # another device runs the same example
            del HOST_FUNCTIONS[name]
    assert runner.summarize().failed == 0


def public() -> Iterator[tuple[str, Any]]:
    for family in FAMILIES:
        module = importlib.import_module(f"fulgurite.functional.{family}")
        for name, value in vars(module).items():
            ours = getattr(value, "__module__", None) == module.__name__
            if ours and callable(value) and not name.startswith("_") and name not in PRIVATE:
                yield name, value


@pytest.mark.parametrize(
    ("name", "function"), list(public()), ids=lambda x: x if isinstance(x, str) else ""
)
def test_every_function_is_public_typed_and_has_an_example(name: str, function: Any) -> None:
    homes = [fg] if name in fg.__all__ else []
    homes += [fg.nn.functional] if hasattr(fg.nn.functional, name) else []
    assert inspect.unwrap(function) in [inspect.unwrap(getattr(home, name)) for home in homes]
    assert ">>> " in (function.__doc__ or "")
    if inspect.isfunction(function):
        signature = inspect.signature(function)
        assert signature.return_annotation is not inspect.Signature.empty
        assert all(
            p.annotation is not inspect.Parameter.empty for p in signature.parameters.values()
        )


def test_all_names_exist_and_are_listed_once() -> None:
    assert len(set(fg.__all__)) == len(fg.__all__)
    assert all(hasattr(fg, name) for name in fg.__all__)


def test_every_public_method_has_a_docstring() -> None:
    for name, method in vars(fg.Tensor).items():
        if (
            inspect.isfunction(method)
            and not name.startswith("_")
            and method.__name__ != "<lambda>"
        ):
            assert method.__doc__, name


def test_a_method_is_its_function_with_the_tensor_first() -> None:
    for name, method in vars(Methods).items():
        if name.startswith("_") or not hasattr(fg, name):
            continue
        if not inspect.isfunction(method):
            assert getattr(fg.Tensor, name) is getattr(fg, name)
            continue
        ours = list(inspect.signature(method).parameters.values())[1:]
        theirs = list(inspect.signature(getattr(fg, name)).parameters.values())[1:]
        for mine, known in zip(ours, theirs, strict=False):
            assert mine.name in (known.name, "other"), name
            assert mine.default == known.default or mine.kind is mine.VAR_POSITIONAL, name


def test_dtypes_are_names_of_the_module() -> None:
    for name in ("bool", "int8", "uint64", "float16", "bfloat16", "float8_e4m3fn", "complex64"):
        assert fg.zeros(2, getattr(fg, name)).dtype.name == name
