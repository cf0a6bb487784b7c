"""`fulgurite run model.onnx`: a model on inputs from files or from nowhere, timed and checked.

In: the words after `fulgurite run`. Out: what the model takes and gives, a summary of every output,
and, if asked, times (`--time 50`: cold, warm median, 99th percentile, memory), the same from
onnxruntime beside it (`--check onnxruntime`), and the outputs in a file. The exit code is 1 if
outputs differ. Inputs that are not given are random numbers of the right shape.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..core.op import Array
from ..errors import ArgumentError, FulguriteError, ShapeError
from .types import BOOL, STRING

TURN = 5  # runs in a row: threads of the other one may spin for a while after its last


def command(arguments: argparse.Namespace) -> int:
    """Run a model as asked; errors become lines."""
    try:
        return _command(arguments)
    except MemoryError as problem:
        print(f"fulgurite run: not enough memory: {problem}", file=sys.stderr)
        print("  try: smaller shapes", file=sys.stderr)
        return 1
    except FulguriteError as problem:
        print(f"fulgurite run: {problem.what}", file=sys.stderr)
        if problem.hint:
            print(f"  try: {problem.hint}", file=sys.stderr)
        return 1


def _command(arguments: argparse.Namespace) -> int:
    import fulgurite as fg

    from . import load

    if min(arguments.time, arguments.threads, arguments.seed) < 0:
        raise ArgumentError("--time, --threads and --seed are counts", "give 0 or more")
    if arguments.output and not Path(arguments.output).parent.is_dir():
        raise ArgumentError(f"--output {arguments.output}: no such folder", "make it first")
    options = {"threads": arguments.threads} if arguments.threads else {}
    with fg.config(**options):
        begin = time.perf_counter()
        model = load(arguments.model, device=arguments.device)
        loaded = time.perf_counter() - begin
        print(f"{arguments.model}: opset {model.opset}, {len(model.program.graph.node)} nodes")
        for word, ports in (("takes", model.inputs), ("gives", model.outputs)):
            for port in ports:
                print(f"  {word} {port}")
        given = inputs_for(model, arguments.input, arguments.dim, arguments.seed)
        try:
            cold, found = _timed(lambda: _computed(model, given), "building and compiling")
        except FulguriteError as problem:
            raise _with_guesses(problem, model, arguments) from problem
        figures: dict[str, Any] = {"load_ms": loaded * 1e3, "cold_ms": cold * 1e3}
        print(f"\nloaded in {_ms(loaded)}, first run in {_ms(cold)}")
        _summary(found)
        if arguments.output:
            _write(arguments.output, _named(found))
            print(f"wrote {arguments.output}")
        code = 0
        peer: Any = None
        if arguments.check:
            peer = _peer(arguments.model, arguments.threads)
        if arguments.time:
            figures |= _times(model, given, arguments.time, peer)
        if peer is not None:
            code = _checked(found, peer, given, arguments.tolerance, figures)
        if arguments.json:
            print(json.dumps(figures))
        return code


# --- inputs --------------------------------------------------------------------------------------


def inputs_for(model: Any, given: list[str], dims: list[str], seed: int) -> dict[str, Any]:
    """An array for every input, from what was asked and from what the model says."""
    sizes = _sizes(model, dims)
    rng = np.random.default_rng(seed)
    named = {port.name: port for port in (*model.inputs, *model.optional)}
    found: dict[str, Any] = {}
    for text in given:
        name, sign, what = text.partition("=")
        if not sign and len(model.inputs) == 1:
            name, what = model.inputs[0].name, text
        if name not in named:
            raise ArgumentError(
                f"--input {name}: there is no such input", f"one of {', '.join(named)}"
            )
        found[name] = _input(named[name], what, sizes, rng)
        for said, size in zip(named[name].shape or (), np.shape(found[name]), strict=False):
            if sizes.get(str(said), size) != size:
                raise ShapeError(
                    f"--dim {said}={sizes[str(said)]}, and {size} in --input {text}",
                    "leave one of them out",
                )
    for port in model.inputs:
        if port.name not in found and port.form != "optional":
            found[port.name] = _random(port, _shape(port, sizes, port.name), rng)
    return found


def _sizes(model: Any, dims: list[str]) -> dict[str, int]:
    """The sizes that --dim gives to dimensions of the model."""
    known = {name for port in model.inputs for name in port.dims}
    sizes: dict[str, int] = {}
    for text in dims:
        name, _, size = text.partition("=")
        if not size.isdecimal():
            raise ArgumentError(f"--dim {text}", "write it as --dim batch=4")
        if name not in known:
            raise ArgumentError(
                f"--dim {name}: there is no such dimension", f"one of {', '.join(sorted(known))}"
            )
        sizes[name] = int(size)
    return sizes


def _with_guesses(
    problem: FulguriteError, model: Any, arguments: argparse.Namespace
) -> FulguriteError:
    """An error of the model, with the inputs and sizes that the user left to us."""
    if len(model.inputs) == 1 and arguments.input:
        return problem
    said = {text.partition("=")[0] for text in arguments.dim}
    given = {text.partition("=")[0] for text in arguments.input}
    made = [port for port in model.inputs if port.name not in given and port.form == "tensor"]
    names = {name for port in made for name in port.dims} - said
    hints = [*[f"--dim {name}=4" for name in sorted(names)], *map(_example, made)]
    if not hints:
        return problem
    what = f"{problem.what} (inputs that are not given are random, sizes that are open are 1)"
    more = f"{problem.hint}; or say what it takes: {' '.join(hints)}"
    return ArgumentError(what, more.removeprefix("; or "))


def _example(port: Any) -> str:
    """An option that would make up an input."""
    sizes = "x".join(str(n) if isinstance(n, int) else "1" for n in port.shape or ())
    return f"--input {port.name}={'rand:' + sizes if sizes else '1'}"


def _shape(port: Any, sizes: dict[str, int], name: str) -> tuple[int, ...]:
    if port.shape is None:
        raise ArgumentError(
            f"the model does not say the shape of {name!r}", f"--input {name}=rand:1x3x224x224"
        )
    return tuple(n if isinstance(n, int) else sizes.get(n or "", 1) for n in port.shape)


def _random(port: Any, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if port.kind is STRING or port.kind is None or port.kind.carrier is None:
        raise ArgumentError(f"input {port} cannot be made up", "give it with --input")
    dtype = port.kind.carrier.numpy
    if port.kind.carrier.is_integer:
        high = 2 if any(word in port.name.lower() for word in ("mask", "type", "segment")) else 100
        return rng.integers(0, 2 if port.kind is BOOL else high, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def _input(port: Any, what: str, sizes: dict[str, int], rng: np.random.Generator) -> Array:
    """One input from what the user wrote: a way to make it, a file, or a number."""
    kind, _, text = what.partition(":")
    if kind in ("rand", "zeros", "ones") and (text or what == kind):
        parts = text.split("x") if text else []
        if not all(part.isdecimal() for part in parts):
            raise ArgumentError(f"{what!r} is no shape", "write it as rand:1x3x224x224")
        shape = tuple(map(int, parts)) if text else _shape(port, sizes, port.name)
        if kind == "rand":
            return _random(port, shape, rng)
        return np.full(shape, int(kind == "ones"), port.kind.carrier.numpy)
    path = Path(what)
    if path.suffix == ".npy":
        return _cast(port, _loaded(path))
    if path.suffix.lower() in (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif"):
        from ..cli.png import read_picture

        return _placed(port, read_picture(path), sizes)
    try:
        number = int(what) if what.lstrip("+-").isdecimal() else float(what)
    except ValueError:
        raise ArgumentError(
            f"--input {port.name}={what}", "give a .png, a .npy, rand:1x3x224x224 or a number"
        ) from None
    return _cast(port, np.full(_shape(port, sizes, port.name) if port.shape else (), number))


def _loaded(path: Path) -> Array:
    try:
        found: Array = np.load(path, allow_pickle=False)
        return found
    except (OSError, ValueError) as problem:
        raise ArgumentError(f"{path} cannot be read: {problem}", "give a .npy file") from None


def _cast(port: Any, array: Array) -> Array:
    """An array in the input's type; whole numbers are not made of fractions."""
    if port.kind is None or port.kind.carrier is None or array.dtype.kind not in "biuf":
        return array
    with np.errstate(invalid="ignore"):
        found = array.astype(port.kind.carrier.numpy)
    if port.kind.carrier.is_integer and not np.array_equal(found, array):
        raise ArgumentError(f"input {port} does not hold these numbers", "give whole ones in range")
    return found


def _placed(port: Any, picture: Array, sizes: dict[str, int]) -> Array:
    """A picture in the layout and size that an input wants."""
    if port.shape is None or len(port.shape) not in (3, 4):
        raise ArgumentError(f"input {port} is no picture", "give a .npy file")
    channels, *space, last = _picture_axes(port.shape[-3:])
    picture = _with_channels(picture, channels)
    if channels not in (None, picture.shape[2]):
        raise ArgumentError(f"the picture has {picture.shape[2]} channels", f"it takes {port}")
    for axis, size in enumerate(space):  # the nearest rows, then columns
        old = picture.shape[axis]
        new = (size if isinstance(size, int) else sizes.get(size or "")) or old
        picture = np.take(picture, np.arange(new) * old // new, axis=axis)
    if port.kind is not None and port.kind.carrier is not None and port.kind.carrier.is_float:
        picture = (picture / 255).astype(port.kind.carrier.numpy)
    picture = picture if last else np.moveaxis(picture, 2, 0)
    return np.ascontiguousarray(_cast(port, picture[None] if len(port.shape) == 4 else picture))


def _picture_axes(space: tuple[Any, ...]) -> tuple[Any, Any, Any, bool]:
    """The channels (None if open), rows and columns of an input, and if the channels are last."""
    first = space[0] in (1, 3) or (space[0] == 4 and space[-1] not in (1, 3))
    last = space[-1] in (1, 3, 4) and not first
    channels, *rest = (space[-1], *space[:-1]) if last else space
    return channels if channels in (1, 3, 4) else None, *rest, last


def _with_channels(picture: Array, channels: int | None) -> Array:
    """A picture without its alpha, as grey or in colours, where an input wants that."""
    if channels is not None and picture.shape[2] in (2, 4) and channels != picture.shape[2]:
        picture = picture[:, :, :-1]
    if picture.shape[2] == 1 and channels == 3:
        return np.repeat(picture, 3, axis=2)
    if picture.shape[2] == 3 and channels == 1:
        grey: Array = picture @ np.array([0.299, 0.587, 0.114])
        return grey[:, :, None].round().astype(np.uint8)
    return picture


# --- running -------------------------------------------------------------------------------------


def _computed(model: Any, given: dict[str, Any]) -> dict[str, Any]:
    found = model(given)
    return {name: _array(value) for name, value in found.items()}


def _array(value: Any) -> Any:
    if isinstance(value, list):
        return [_array(v) for v in value]
    return np.asarray(value) if value is not None else None


def _timed(work: Callable[[], Any], what: str) -> tuple[float, Any]:
    """A long step with a line that says so, if somebody watches."""
    watched = sys.stderr.isatty()
    if watched:
        print(f"{what} ...", end="\r", file=sys.stderr, flush=True)
    begin = time.perf_counter()
    found = work()
    seconds = time.perf_counter() - begin
    if watched:
        print(" " * (len(what) + 4), end="\r", file=sys.stderr)
    return seconds, found


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def _flat(found: dict[str, Any]) -> dict[str, Array]:
    flat: dict[str, Array] = {}
    for name, value in found.items():
        if isinstance(value, list):
            flat |= {f"{name}.{i}": v for i, v in enumerate(value)}
        elif value is not None:
            flat[name] = value
    return flat


def _named(found: dict[str, Any]) -> dict[str, Array]:
    """Outputs by names that a file can have, each another."""
    named: dict[str, Array] = {}
    for name, array in _flat(found).items():
        safe = _safe(name)
        while safe in named:
            safe += "_"
        named[safe] = array
    return named


def _write(path: str, named: dict[str, Array]) -> None:
    """As `np.savez` does, which cannot write an array that is called "file"."""
    path += "" if path.endswith(".npz") else ".npz"
    try:
        with zipfile.ZipFile(path, "w") as archive:
            for name, array in named.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    plain = array.astype(str) if array.dtype == object else array
                    np.lib.format.write_array(member, plain, allow_pickle=False)
    except OSError as problem:
        raise ArgumentError(
            f"{path} cannot be written: {problem.strerror}", "give another --output"
        ) from None


def _safe(name: str) -> str:
    return name.replace("/", "_").replace("\\", "_").lstrip(".") or "output"


def _summary(found: dict[str, Any]) -> None:
    print("\noutputs")
    for name, array in _flat(found).items():
        about = f"  {name}: {array.dtype}{list(array.shape)}"
        if array.size and array.dtype.kind in "iuf":
            wide = array.astype(np.float64)
            about += f"  min {wide.min():.5g}  max {wide.max():.5g}  mean {wide.mean():.5g}"
            bad = int((~np.isfinite(wide)).sum())
            about += f"  NOT FINITE: {bad}" if bad else ""
            if array.ndim and array.shape[-1] > 1 and array.size == array.shape[-1]:
                about += f"  largest at {int(wide.reshape(-1).argmax())}"
        elif array.size and array.size <= 8:
            about += f"  {array.reshape(-1).tolist()}"
        print(about)


def _times(model: Any, given: dict[str, Any], count: int, peer: Any) -> dict[str, Any]:
    """Warm times, taken in turns with the peer's."""
    from ..cli.progress import Progress

    ours: list[float] = []
    theirs: list[float] = []

    def _ours(given: dict[str, Any]) -> None:
        _computed(model, given)

    for _ in range(3):
        _ours(given)
    rounds: Any = range(0, count, TURN)
    rounds = Progress(rounds, "timing") if sys.stderr.isatty() else rounds
    for begun in rounds:
        for work, times in ((_ours, ours), (peer, theirs)):
            for _ in range(min(TURN, count - begun) if work is not None else 0):
                begin = time.perf_counter()
                work(given)
                times.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak *= 1 if sys.platform == "darwin" else 1024
    figures = {"warm_ms": statistics.median(ours) * 1e3, "best_ms": min(ours) * 1e3,
               "p99_ms": _percentile(ours) * 1e3, "peak_bytes": peak}  # fmt: skip
    print(f"\ntimes of {count} runs, memory of the process at most {peak / 2**20:.0f} MiB")
    _print_times("fulgurite", ours)
    if theirs:
        _print_times("onnxruntime", theirs)
        figures["peer_warm_ms"] = statistics.median(theirs) * 1e3
        figures["peer_best_ms"] = min(theirs) * 1e3
        ratio = min(theirs) / min(ours)
        print(f"  fulgurite is {ratio:.2f} times as fast (by the best run of each)")
    return figures


def _percentile(times: list[float]) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


def _print_times(name: str, times: list[float]) -> None:
    print(
        f"  {name:<11}  median {_ms(statistics.median(times))}  99% {_ms(_percentile(times))}  "
        f"best {_ms(min(times))}"
    )


def _peer(path: str, threads: int) -> Callable[[dict[str, Any]], list[Any]]:
    """onnxruntime on the same file."""
    try:
        import onnxruntime
    except ImportError:
        raise ArgumentError(
            "--check onnxruntime needs onnxruntime, which is not installed",
            "pip install onnxruntime",
        ) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or len(os.sched_getaffinity(0))
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as problem:  # its errors have no common base
        raise _refused(problem) from None

    def run(given: dict[str, Any]) -> list[Any]:
        try:
            return session.run(None, given)  # type: ignore[no-any-return]
        except Exception as problem:
            raise _refused(problem) from None

    return run


def _refused(problem: Exception) -> ArgumentError:
    return ArgumentError(f"onnxruntime does not run this: {problem}", "leave --check out")


def _checked(
    found: dict[str, Any],
    peer: Any,
    given: dict[str, Any],
    tolerance: float,
    figures: dict[str, Any],
) -> int:
    """Compare every output with onnxruntime's: relative to its largest number."""
    print(f"\nagainst onnxruntime (tolerance {tolerance:g})")
    worst = 0.0
    for (name, ours), theirs in zip(found.items(), peer(given), strict=True):
        pairs = zip(ours, theirs, strict=True) if isinstance(theirs, list) else [(ours, theirs)]
        for a, b in pairs:
            off = _distance(np.asarray(a), np.asarray(b))
            worst = max(worst, off)
            print(f"  {name}: {'ok' if off <= tolerance else 'DIFFERS'}, off by {off:.3g}")
    figures["difference"] = worst
    return 0 if worst <= tolerance else 1


def _distance(a: Array, b: Array) -> float:
    """The largest difference over the largest number; infinite if the shapes differ."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if a.dtype.kind in "OUSTb" or not a.size:
        return 0.0 if np.array_equal(a, b) else float("inf")
    if a.dtype.kind == "c":
        return max(_distance(a.real, b.real), _distance(a.imag, b.imag))
    wide, other = a.astype(np.float64), b.astype(np.float64)
    same_nan = np.isnan(wide) == np.isnan(other)
    if not same_nan.all():
        return float("inf")
    with np.errstate(invalid="ignore"):  # infinities that agree
        off = np.where(wide == other, 0.0, np.abs(wide - other))
    scale = np.nanmax(np.abs(np.where(np.isfinite(other), other, 0)), initial=0.0)
    return float(np.nanmax(off, initial=0.0) / max(scale, 1e-30))
