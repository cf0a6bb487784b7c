"""What to write instead: hints for names and keywords that other libraries have and we do not.

In: a name that was asked for in vain. Out: an `AttributeError` or `TypeError` whose text says what
is meant here, from the table `FOREIGN`, or else the nearest names that there are (difflib; for
attributes of tensors Python does that itself). The text is made when somebody reads it: `hasattr`
asks in vain all the time, and pays for nothing. Beside it: which names `dir` shows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, NoReturn

from .errors import FulguriteError

_GPU = 'devices are "cpu" and "reference" so far: x.to("cpu")'
_SHAPE = "x.shape[0] for one size, x.shape for all; x.size is the number of elements"

FOREIGN: dict[str, dict[str, str]] = {  # where -> name -> what to write
    "fulgurite": {
        "manual_seed": "fg.random.seed(0)", "seed": "fg.random.seed(0)",
        "PRNGKey": "fg.random.key(0)", "Generator": "fg.random.key(0)",
        "cuda": _GPU, "mps": _GPU, "device_put": "x.to(device)",
        "device": 'a device is a name: fg.zeros(3, device="cpu"), x.to("cpu")',
        "compile": "fg.jit", "pmap": "fg.vmap", "vectorize": "fg.vmap", "remat": "fg.checkpoint",
        "autograd": "fg.grad(f)(x), or loss.backward() and x.grad",
        "lax": "fg.scan, fg.while_loop and fg.cond", "numpy": "fg itself: fg.sum(x)",
        "inference_mode": "fg.no_grad()", "set_grad_enabled": "fg.no_grad()",
        "enable_grad": "leave fg.no_grad(): gradients are recorded outside of it",
        "from_jax": "fg.from_dlpack(theirs)",
        "as_tensor": "fg.asarray(data)", "ndarray": "fg.Tensor", "FloatTensor": "fg.Tensor(data)",
        "is_tensor": "isinstance(x, fg.Tensor)", "GradScaler": "fg.optim.GradScaler",
        "amp": 'fg.autocast("bfloat16"), fg.optim.GradScaler', "Module": "fg.nn.Module",
        "Parameter": "fg.nn.Parameter",
        "set_default_dtype": "give dtype= where a tensor is made", "utils": "fg.data, fg.nn.utils",
        "float": "fg.float32", "double": "fg.float64", "half": "fg.float16", "long": "fg.int64",
        "int": "fg.int32", "short": "fg.int16", "cfloat": "fg.complex64", "bool_": "fg.bool",
        "eval": "model.eval()", "set_num_threads": "fg.config(threads=2)",
        "tree_map": "fg.tree.map", "tree_util": "fg.tree", "block_until_ready": "fg.realize(x)",
    },
    "fulgurite.random": {
        "PRNGKey": "fg.random.key(0)", "manual_seed": "fg.random.seed(0)",
        "default_rng": "fg.random.key(0), and key=key in each draw",
        "random": "fg.random.uniform(shape)", "standard_normal": "fg.random.normal(shape)",
        "integers": "fg.random.randint(low, high, shape)",
    },
    "fulgurite.nn": {
        "relu": "fg.relu, fg.nn.functional.relu", "sigmoid": "fg.sigmoid, fg.nn.functional.sigmoid",
        "DataParallel": "the module itself: one machine is all there is",
    },
    "fulgurite.jit": {
        "static_argnums": "leave it out: what an argument is, is checked at every call",
        "static_argnames": "leave it out: what an argument is, is checked at every call",
        "donate_argnums": 'donate=(0,), or by name: donate=("state",)',
        "donate_argnames": 'donate=("state",)', "device": "move the arguments: x.to(device)",
        "fullgraph": "leave it out", "mode": "leave it out",
        "backend": "leave it out: devices are where the tensors are",
    },
    "Tensor": {
        "cuda": _GPU, "is_cuda": "x.device", "data": "x.detach() to read; to write "
        "`with fg.no_grad(): x.assign(value)`", "at": "y = fg.asarray(x, copy=True); y[0] = value",
        "block_until_ready": "x.realize()", "type": "x.dtype, x.astype(dtype)",
        "is_leaf": "x.requires_grad", "grad_fn": "fg.explain(x)", "copy": "x.clone()",
        "retain_grad": "fg.grad: gradients are kept for leaves, made by requires_grad=True",
        "register_hook": "fg.custom_vjp", "new_zeros": "fg.zeros(shape, dtype=x.dtype)",
        "new_ones": "fg.ones(shape, dtype=x.dtype)", "new_empty": "fg.zeros(shape, dtype=x.dtype)",
        "new_full": "fg.full(shape, value, dtype=x.dtype)", "values": "x.numpy()",
        "new_tensor": "fg.Tensor(data, dtype=x.dtype)", "to_numpy": "x.numpy()",
        "nbytes": "x.size * x.dtype.itemsize", "itemsize": "x.dtype.itemsize",
        "normal_": "x.assign(fg.random.normal(x.shape))", "detach_": "x = x.detach()",
        "uniform_": "x.assign(fg.random.uniform(x.shape))", "is_contiguous": "x.contiguous()",
        "stride": "x.numpy().strides: a tensor has no layout of its own",
        "pin_memory": "x itself", "eval": "x.realize()", "compute": "x.realize()",
    },
    "Module": {"cuda": _GPU, "load_weights": "model.load_state_dict(weights)"},
}  # fmt: skip


IN_PLACE = (  # torch's that we have under the name without `_` only
    "abs_", "ceil_", "cos_", "erf_", "exp_", "floor_", "gather_", "index_add_", "index_copy_",
    "index_fill_", "log_", "masked_fill_", "neg_", "pow_", "reciprocal_", "relu_", "round_",
    "rsqrt_", "scatter_", "scatter_add_", "sigmoid_", "sign_", "sin_", "sqrt_", "square_",
    "squeeze_", "swapaxes_", "t_", "tanh_", "transpose_", "tril_", "triu_", "unsqueeze_",
)  # fmt: skip


class MissingNameError(AttributeError):
    """A name that is not there, and what to write instead."""

    def __init__(self, what: str, name: str, hint: str | Callable[[], str]) -> None:
        super().__init__(what)
        self.name, self._hint = name, hint

    def __str__(self) -> str:
        hint = self._hint if isinstance(self._hint, str) else self._hint()
        return str(self.args[0]) + (f"\n  try: {hint}" if hint else "")


class UnknownKeywordError(FulguriteError, TypeError):
    """A keyword that a function does not take, and what to write instead."""

    def __init__(self, function: str, name: str, known: Sequence[str], where: str = "") -> None:
        hint = hint_for(name, where, known) or f"it takes {', '.join(known)}"
        super().__init__(f"{function}() takes no keyword {name!r}", hint)


class NotCallableError(FulguriteError, TypeError):
    """A value that was called as other libraries' method of the name is."""


def hint_for(name: str, where: str, known: Iterable[str]) -> str:
    """What to write instead of a name: the table's word, or the nearest names that there are."""
    import difflib

    if name in FOREIGN.get(where, {}):
        return FOREIGN[where][name]
    names = [k for k in known if not k.startswith("_")]
    near = difflib.get_close_matches(name, names, 3, 0.75)
    return " or ".join(near or [k for k in names if k.lower() == name.lower()])


# --- attributes ----------------------------------------------------------------------------------


class Foreign:
    """A name of other libraries that is no attribute here: to ask for it is an error that says so.

    A descriptor and not `__getattr__`, for which a class pays at every attribute that it does have.
    """

    __slots__ = ("hint", "name")

    def __init__(self, name: str, hint: str) -> None:
        self.name, self.hint = name, hint

    def __get__(self, thing: object, owner: type) -> NoReturn:
        what = f"{owner.__name__!r} object has no attribute {self.name!r}"
        raise MissingNameError(what, self.name, self.hint)


def warn_off(owner: type, where: str) -> None:
    """Give a class the names of others that it lacks, as errors with hints that `dir` hides."""
    table = dict(FOREIGN[where])
    if where == "Tensor":
        table |= {n: f"x = x.{n[:-1]}(...), or x.assign(x.{n[:-1]}(...))" for n in IN_PLACE}
    for name, hint in table.items():
        if not hasattr(owner, name):
            setattr(owner, name, Foreign(name, hint))


def names_in(thing: object) -> list[str]:
    """The attributes of an object, without those that are only hints."""
    kind = type(thing)
    hidden = {n for c in kind.__mro__ for n, v in vars(c).items() if isinstance(v, Foreign)}
    return [name for name in object.__dir__(thing) if name not in hidden]


# --- modules -------------------------------------------------------------------------------------


def surface(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a module of ours: hints, and its public names."""

    def absent(name: str) -> Any:
        raise MissingNameError(
            f"module {module!r} has no attribute {name!r}", name,
            lambda: hint_for(name, module, dir(sys.modules[module])),
        )  # fmt: skip

    return absent, lambda: names_of(sys.modules[module])


def names_of(module: ModuleType) -> list[str]:
    """The public names of a module: those it lists, or what is defined in it."""
    listed: Iterable[str] | None = getattr(module, "__all__", None)
    special = {name for name in vars(module) if name.startswith("__") and name.endswith("__")}
    if listed is None:
        listed = [
            name for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
        ]  # fmt: skip
    return sorted(special.union(listed))


class Count(int):
    """The number of elements. torch's `x.size(0)` calls it: the error says what that is here."""

    __slots__ = ()

    def __call__(self, *dimensions: object) -> NoReturn:
        """An error, since it is a number."""
        raise NotCallableError("x.size is a number here, as in NumPy", _SHAPE)

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)
