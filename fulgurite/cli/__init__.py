"""The `fulgurite` command.

Goes in: the words after `fulgurite`. Comes out: text on standard output and an
exit code, 0 for success and 1 for a finding. One function per subcommand; it
imports what it needs when it runs, so `fulgurite --help` stays quick and
`doctor` can still report on an installation in which something is missing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import cache, chat, finetune, launch, look, models, plan, serve, train, tune
from . import run as run_cli

LIBRARIES = ("numpy", "ml_dtypes", "llvmlite", "triton", "onnx", "safetensors")
CPU_FEATURES = (
    *("sse4_2", "avx", "f16c", "fma", "avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile"),
    *("asimd", "asimdhp", "bf16", "sve", "sve2"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the arguments, run the subcommand and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fulgurite",
        description="Lazy tensors that fuse into few kernels.",
        epilog="Run 'fulgurite COMMAND --help' for what a command takes.",
    )
    parser.add_argument("--version", action="version", version=f"fulgurite {own_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    doctor_parser = commands.add_parser(
        "doctor",
        help="show versions, devices and the cache folder, and run a self-test of some seconds",
        description="Show what fulgurite finds on this machine and check that it computes "
        "correctly. Paste the output into a bug report.",
        epilog="The exit code is 1 if a check of the self-test fails. "
        "FULGURITE_CACHE_DIR chooses the cache folder.",
    )
    doctor_parser.set_defaults(run=lambda _: doctor())
    train.add_commands(commands)
    cache.add_commands(commands)
    run_cli.add_command(commands)
    launch.add_command(commands)
    plan.add_command(commands)
    tune.add_command(commands)
    look.add_commands(commands)
    models.add_command(commands)
    chat.add_commands(commands)
    serve.add_command(commands)
    finetune.add_command(commands)
    words = sys.argv[1:] if argv is None else list(argv)
    arguments = parser.parse_args(words, argparse.Namespace(words=words))
    if not hasattr(arguments, "run"):
        parser.print_help()
        return 0
    try:
        with _printable():
            code: int = arguments.run(arguments)
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough: `fulgurite doctor | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


@contextmanager
def _printable() -> Iterator[None]:
    """Letters that the terminal's encoding does not have are printed as escapes, no error."""
    before = [(stream, getattr(stream, "errors", None)) for stream in (sys.stdout, sys.stderr)]
    strict: list[Any] = [stream for stream, errors in before if errors == "strict"]
    for stream in strict:
        stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        for stream in strict:
            if not stream.closed:
                stream.reconfigure(errors="strict")


def doctor() -> int:
    """Print what is here and whether it works; 1 if a check fails."""
    print(f"fulgurite {own_version()}")
    _print_section("versions", [("python", _python()), *((n, _version(n)) for n in LIBRARIES)])
    _print_section("platform", [("system", platform.platform()), ("cpu", cpu_summary()),
                                ("hot path", _hot_path())])  # fmt: skip
    _print_section("devices", devices())
    _print_section("cache", [("folder", _cache_state(cache_folder()))])

    results = _selftest()
    lines = [
        (name, f"{'ok' if ok else 'FAILED'}: {_indented(detail)}") for name, ok, detail in results
    ]
    _print_section("self-test", lines)
    failed = sum(not ok for _, ok, _ in results)
    print(f"\n{failed} of {len(results)} checks failed" if failed else "\nall checks passed")
    return 1 if failed else 0


def _hot_path() -> str:
    """Whether building graphs runs as C."""
    from ..core.extension import in_words

    return in_words()


def _indented(text: str) -> str:
    return text.replace("\n", "\n      ")


def own_version() -> str:
    """The installed version, or the source tree's when it is used without installing."""
    found = _version_or_none("fulgurite")
    return found or str(getattr(sys.modules["fulgurite"], "__version__", "(not installed)"))


def devices() -> list[tuple[str, str]]:
    """Each device's name and what can be said of it here."""
    from ..codegen.cpu.llvm import versions

    reason = versions.unusable()
    native = f"ready (native code by llvmlite {_version('llvmlite')})"
    from ..runtime.cuda.report import summary

    gpus = [(f"cuda:{n}" if n else "cuda", text) for n, text in enumerate(summary())]
    return [
        ("reference", "ready (NumPy, fused kernels interpreted)"),
        ("cpu", f"falls back to reference: {reason}" if reason else native),
        *gpus,
    ]


def cpu_summary() -> str:
    """The processor, the threads we may use, and its vector features where Linux lists them."""
    # the affinity mask, where there is one: a container's share is not the whole machine
    affinity = getattr(os, "sched_getaffinity", None)
    threads = len(affinity(0)) if affinity is not None else os.cpu_count()
    name = platform.processor() or platform.machine()
    features: set[str] = set()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        elif key.strip() in ("flags", "Features"):
            features.update(value.split())
    known = " ".join(f for f in CPU_FEATURES if f in features) or "vector features unknown"
    return f"{name}, {threads} threads, {known}"


def cache_folder() -> Path:
    """Where compiled code is kept: FULGURITE_CACHE_DIR, or the platform's cache folder."""
    from ..runtime import cache

    return Path(cache.cache_folder(os.environ.get("FULGURITE_CACHE_DIR", "")))


def _cache_state(folder: Path) -> str:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        return f"{folder} (NOT writable: set FULGURITE_CACHE_DIR to a folder that is)"
    return f"{folder} (writable{'' if existing == folder else ', not made yet'})"


def _selftest() -> list[tuple[str, bool, str]]:
    try:
        from . import selftest
    except ImportError as error:  # a broken NumPy is a finding, not a traceback
        return [("import", False, f"{error}: try 'pip install --force-reinstall fulgurite'")]
    return selftest.run()


def _python() -> str:
    return f"{platform.python_version()} ({platform.python_implementation()})"


def _version(library: str) -> str:
    return _version_or_none(library) or "not installed"


def _version_or_none(library: str) -> str | None:
    """A library's version without importing it."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def _print_section(title: str, lines: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in lines)
    print(f"\n{title}")
    for name, text in lines:
        print(f"  {name:<{width}}  {text}")
