"""Every option, in one typed table: `fg.config(name=value)` for a block, `FULGURITE_NAME` outside.

In: keyword arguments or environment variables. Out: the frozen `Options` in force here. Options
that can change a plan or its bits are part of every cache key (`Options.key`), so a tuned answer
never stands in for an untuned one. docs/config.md is generated from this table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import field, fields, replace
from typing import Any

from .core.lazy_dataclass import dataclass
from .errors import ArgumentError


def _option(default: Any, doc: str, in_key: bool = True, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"doc": doc, "in_key": in_key, "choices": choices})


class _Kept:
    """Where options keep their key, which every lookup of a plan asks for."""

    __slots__ = ("_key",)
    _key: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Options(_Kept):
    """What can be chosen; see docs/config.md."""

    device: str = _option("cpu", "where new tensors live", in_key=False)
    simplify: bool = _option(True, "apply the exact algebraic laws before scheduling")
    fuse: bool = _option(True, "compute many ops in one kernel; off: a kernel for each op")
    tier: str = _option(
        "auto", "who runs graphs: native code, or auto, which leaves tiny ones to NumPy",
        in_key=False, choices=("auto", "native"),
    )  # fmt: skip
    threads: int = _option(
        0, "threads that share a large kernel; 0: as many as the process may use", in_key=False
    )
    vectors: str = _option(
        "auto", "widest vectors of native code; auto: the processor's own",
        choices=("auto", "avx512", "avx2", "sse2"),
    )  # fmt: skip
    search: bool = _option(True, "look for better kernels than the greedy ones: streaming folds")
    tune: str = _option(
        "off", "with search: time kernels that cost about the same (ties), or all (full)",
        choices=("off", "ties", "full"),
    )  # fmt: skip
    dynamic: bool = _option(True, "sizes that change for the second time are given at run time")
    exact: bool = _option(False, "no reassociation and no excess precision anywhere")
    deterministic: bool = _option(True, "the same bits on every run and thread count")
    matmul_precision: str = _option(
        "float32", "products of float32 on a GPU: exact, or with 10 bits of mantissa (tf32)",
        choices=("float32", "tf32"),
    )  # fmt: skip
    cublas: str = _option(
        "float8",
        "products on a GPU by cuBLASLt: of float8, where it was timed to be better (auto), on, off",
        choices=("float8", "auto", "on", "off"),
    )
    autocast: str = _option(
        "off", "dtype of products and convolutions of float32: what fg.autocast sets",
        in_key=False, choices=("off", "bfloat16", "float16"),
    )  # fmt: skip
    channels_last: str = _option(
        "auto", "images between kernels with channels last, rows aligned: as timed (auto), on, off",
        choices=("auto", "on", "off"),
    )  # fmt: skip
    strip_bytes: int = _option(
        0, "of a matrix between kernels; larger ones are made some rows at a time; 0: never"
    )
    verify: bool = _option(
        False, "check the graph after every stage, and that kernels agree", in_key=False
    )
    check_nan: bool = _option(
        False, "look at every result, and name the line that first made a NaN or infinity",
        in_key=False,
    )  # fmt: skip
    poison: bool = _option(False, "fill fresh memory with garbage before use", in_key=False)
    origins: bool = _option(True, "note the user's line beside every node", in_key=False)
    schedule_cache: int = _option(1024, "most compiled graphs kept in memory", in_key=False)
    disk_cache: bool = _option(True, "keep compiled code on disk for later processes", in_key=False)
    cache_dir: str = _option(
        "", "the folder of the disk cache; empty: the platform's cache folder", in_key=False
    )
    cache_limit: int = _option(1 << 30, "most bytes kept in the disk cache", in_key=False)
    log: str = _option("", "what to report on standard error: any of cache, stages", in_key=False)

    @property
    def key(self) -> tuple[object, ...]:
        """The part of the options that plans depend on."""
        try:
            return self._key
        except AttributeError:
            object.__setattr__(self, "_key", tuple([getattr(self, name) for name in _IN_KEY]))
            return self._key


_IN_KEY = tuple(f.name for f in fields(Options) if f.metadata["in_key"])
_FIELDS = {f.name: f for f in fields(Options)}


def _checked(name: str, value: object, where: str) -> object:
    """A value in the type of its option, or a clear error."""
    known = _FIELDS.get(name)
    if known is None:
        raise ArgumentError(f"there is no option {name!r}", f"one of {', '.join(_FIELDS)}")
    kind = type(known.default)
    if isinstance(value, str) and kind is bool:
        truths = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
        value = truths.get(value.lower(), value)
    elif isinstance(value, str) and kind is int and value.lstrip("-").isdigit():
        value = int(value)
    choices = known.metadata["choices"]
    if type(value) is not kind or (choices and value not in choices):
        allowed = " or ".join(choices) if choices else kind.__name__
        raise ArgumentError(f"{where} is {value!r}", f"give it a value of {allowed}")
    if isinstance(value, int) and value < 0:
        raise ArgumentError(f"{where} is {value}", "give it 0 or more")
    return value


def _check_device(name: object) -> None:
    from .runtime.device import DeviceError, has_device, known_devices  # which needs the options

    if not has_device(name):
        raise DeviceError(f"there is no device {name!r}", f"one of {known_devices()}")


def from_environment(environment: dict[str, str] | None = None) -> Options:
    """The defaults, changed by `FULGURITE_*` variables."""
    known = os.environ if environment is None else environment
    given = {
        name: _checked(name, known[variable], variable)
        for name in _FIELDS
        if (variable := f"FULGURITE_{name.upper()}") in known
    }
    return replace(Options(), **given)  # type: ignore[arg-type]


_defaults: Options | None = None
_current: ContextVar[Options | None] = ContextVar("fulgurite_options", default=None)


def current() -> Options:
    """The options in force here."""
    global _defaults
    options = _current.get()
    if options is not None:
        return options
    if _defaults is None:
        _defaults = from_environment()
    return _defaults


def config(**changes: object) -> AbstractContextManager[Options]:
    """Other options for a block: `with fg.config(verify=True): ...` (this thread only)."""
    checked = {name: _checked(name, value, name) for name, value in changes.items()}
    if "device" in checked:
        _check_device(checked["device"])
    return _changed(checked)


@contextmanager
def _changed(checked: dict[str, object]) -> Iterator[Options]:
    options = replace(current(), **checked)  # type: ignore[arg-type]
    token = _current.set(options)
    try:
        yield options
    finally:
        _current.reset(token)
