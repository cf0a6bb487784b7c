"""`fg.jit`: a function whose calls are captured once and replayed.

In: a function of trees of tensors, numbers and anything else. Out: a `Jitted`, called like it. A
call looks for a capture whose checks hold, newest first; if there is none the function is captured,
and the reason is said on the log channel `fulgurite.jit`. A few captures are kept. Inside another
capture, a transform, or the body of a loop it is the plain function: what surrounds it sees through
it. Whatever cannot be replayed runs as plain lazy code, which is slower and never stale.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

from ..config import current
from ..errors import ArgumentError, JitWarning, user_frame, user_line
from ..runtime.gc_pause import held_back
from ..runtime.recording import note
from ..tensor import SCOPES, is_recording
from .capture import MISS, Capture, Captured, Inline, Mismatch, RetryCapture
from .dynamic_shapes import check_dynamic
from .replay import GuardFailure
from .sizes import Seen

LOG = logging.getLogger("fulgurite.jit")
MOST = 32  # captures that a function keeps
_PATIENCE = 4  # captures in a row of which nothing could be kept, after which
_PAUSE = 64  # so many calls are not tried
_TURNS = 2  # changes of a closed-over number after which it is given at run time
_SOON = 3  # captures that a size that changes takes
_lock = threading.RLock()  # one capture at a time: it binds tensors to placeholders


class Jitted:
    """A function that is captured and replayed."""

    __fulgurite_jit__ = True

    def __init__(self, function: Callable[..., Any], dynamic: Any = None, donate: Any = ()) -> None:
        self.function = function
        self.dynamic, free = check_dynamic(None if dynamic is False else dynamic)
        self._seen = None if dynamic is False else Seen(free)  # shapes of calls that were captured
        self.donate = _check_donate(donate)
        self._captures: tuple[Captured, ...] = ()
        self._fixed: dict[str, str] = {}  # the paths to numbers that decide something, and where
        self._changes: Counter[str] = Counter()  # of numbers that are no arguments
        self._floating: set[str] = set()  # those that change again and again
        self._vain = self._pause = 0
        self._vanity = ""  # why nothing could be kept of the last capture of which nothing was
        self._warned = False  # that it is captured again and again?
        self._recall = True  # may captures come from the disk?
        self.captured = 0  # how often the function was captured
        update_wrapper(self, function, updated=())  # its attributes are not ours: __getattr__

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else Method(self, owner)

    def __getattr__(self, name: str) -> Any:
        if name == "function":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self.function, name)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        now = SCOPES.__dict__  # one look: those of a thread's own object cost more
        if now["capturing"] or now["transforms"] or now["stack"] or now["bodies"]:
            return self.function(*args, **keywords)
        options, recording = current(), is_recording()
        for captured in self._captures:  # as `_replayed` does, without one more call
            if captured.recording is recording and (
                captured.options is options or captured.options == options
            ):
                try:
                    result = captured.call(args, keywords)
                except GuardFailure:
                    continue
                if result is not MISS:
                    return result
        return self._capture(args, keywords)

    def _replayed(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        options, recording = current(), is_recording()
        for captured in self._captures:
            if captured.recording is recording and (
                captured.options is options or captured.options == options
            ):
                try:
                    result = captured.call(args, keywords)
                except GuardFailure:
                    continue
                if result is not MISS:
                    return result
        return MISS

    @property
    def captures(self) -> tuple[Captured, ...]:
        """Those that are kept, the newest first."""
        return self._captures

    @property
    def is_recalled(self) -> bool:
        """True if a capture of it came from the disk."""
        return any([captured.replay.recalled for captured in self._captures])

    def cover(self, sizes: Sequence[tuple[int, ...]]) -> bool:
        """Compile what calls need whose sizes that vary are these; False: the next captures."""
        with _lock:
            for captured in self._captures:
                try:
                    captured.replay.cover(sizes)
                except GuardFailure:
                    return False
        return True

    def clear(self) -> None:
        """Forget all captures."""
        self._captures = ()

    def _capture(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        if self._pause:
            self._pause -= 1
            return self.function(*args, **keywords)
        with _lock:
            result = self._replayed(args, keywords)
            if result is not MISS:  # another thread was first
                return result
            difference = self._mismatch(args, keywords)
            self._drop_spent()
            LOG.info("%s is captured: %s", name, difference.why)
            self.captured += 1
            begin, about = time.perf_counter_ns(), self._about(difference)
            if self.captured > MOST and not self._warned:
                self._warned = True
                self._warn(name, difference)
            try:
                with held_back():  # thousands of nodes, and hardly a cycle
                    found, result, problem = self._attempt(args, keywords)
            except Inline as reason:
                self._gave_up(name, str(reason))
                found, problem = None, ""
                note("capture", name, begin, about | {"refused": str(reason)})
            else:
                note("capture", name, begin, about | {"refused": problem})
                if found is None:
                    self._gave_up(name, problem)
                    return result
            if found is not None:
                found.settle()
                self._captures = (found, *self._captures)[:MOST]
                self._vain = 0
                try:
                    result = found.call(args, keywords)
                except GuardFailure:  # another thread changed something
                    result = MISS
                if found.replay.is_spent:
                    return self._capture(args, keywords)
                if result is not MISS:
                    if found.keep is not None:
                        found.keep()
                        found.keep = None
                    return result
                self._captures = self._captures[1:]
                self._gave_up(name, f"its checks do not hold: {found.mismatch(args, keywords).why}")
        return self.function(*args, **keywords)

    def _drop_spent(self) -> None:
        """Forget captures of the disk that were asked for what is not there."""
        left = tuple([captured for captured in self._captures if not captured.replay.is_spent])
        if len(left) < len(self._captures):
            self._captures, self._recall = left, False

    def _about(self, difference: Mismatch) -> dict[str, Any]:
        """What is remembered of a capture: why it was needed, what would help, and who called."""
        first = not self._captures and not self._vanity
        return {
            "why": difference.why, "advice": "" if first else self._advice(difference),
            "line": user_line(3), "times": self.captured, "first": first,
            "function": weakref.ref(self),
        }  # fmt: skip

    def _attempt(
        self, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[Captured | None, Any, str]:
        """Capture a call; if need be with all numbers as they are."""
        settings = self.dynamic, self.donate
        fixed = self._fixed
        seen = self._seen if current().dynamic else None
        work: Capture | None = None
        while True:
            try:
                work = Capture(
                    self.function,
                    args,
                    keywords,
                    fixed,
                    self._floating,
                    *settings,
                    seen=seen,
                    recall=self._recall,
                )
                return work.run()
            except RetryCapture as again:
                if again.all_fixed:
                    break
            except Exception:
                if work is None or work.sizes is None:
                    raise
                seen = None  # the function may not take sizes that vary: nobody asked for them
        work = Capture(self.function, args, keywords, fixed, self._floating, *settings, True)
        kept = work.run()
        for path in work.survey.static_numbers:
            fixed.setdefault(path, "")
        return kept

    def _gave_up(self, name: str, reason: str) -> None:
        LOG.info("%s is not replayed: %s", name, reason)
        self._vanity = f"it could not be replayed: {reason}"
        self._vain += 1
        if self._vain >= _PATIENCE:
            self._vain, self._pause = 0, _PAUSE

    def _mismatch(self, args: Any, keywords: Any) -> Mismatch:
        """Why no capture holds for a call: what the nearest one says, of equals the newest."""
        if not self._captures:
            return Mismatch(self._vanity or "its first call")
        differences = [captured.mismatch(args, keywords) for captured in self._captures]
        found = min(differences, key=lambda difference: difference.distance)
        if found.number:
            self._changes[found.number] += 1
            if self._changes[found.number] >= _TURNS:  # from now on it is given at run time
                self._floating.add(found.number)
        return found if found.why else Mismatch("another thread changed something")

    def _advice(self, difference: Mismatch) -> str:
        """What to do about captures that hold for too few calls."""
        number, shape = difference.number, difference.shape
        if number:
            label = number if number.isidentifier() else "n"
            return (f'give a variable in its place, fg.Var("{label}", low, high).bind(value), or a '
                    "tensor, and let neither choose a branch or a length of Python's")  # fmt: skip
        if shape and self._seen is not None and current().dynamic:
            if self._seen.fixed.total():
                return ("let its sizes decide less: x.shape[0] in place of len(x), no list as long "
                        "as they are, no fg.cond or scan over them; or pad to a few")  # fmt: skip
            if self.captured <= _SOON:
                return "nothing, if it is the second or third size: one capture serves all later"
        if shape:
            return (f'name the sizes that vary, fg.jit(f, dynamic={{"{shape}": {{axis: '
                    'fg.Var("n", low, high)}}), or pad to a few shapes')  # fmt: skip
        if not self._captures:
            return "mend that, or leave fg.jit out: each attempt costs more than the call"
        return "let it stay as it is from call to call, or pass tensors and numbers instead"

    def _warn(self, name: str, difference: Mismatch) -> None:
        """Say once that a function is captured again and again, at the line that calls it."""
        number = difference.number
        lines = [f"{name} was captured {self.captured} times, now because: {difference.why}"]
        if self._fixed.get(number):
            lines.append(f"  its value decides something at {self._fixed[number]}")
        frame = user_frame(2)
        text = "\n".join([*lines, f"  try: {self._advice(difference)}"])
        if frame is None:
            warnings.warn(text, JitWarning, stacklevel=2)
            return
        warnings.warn_explicit(
            text, JitWarning, frame.f_code.co_filename, frame.f_lineno,
            frame.f_globals.get("__name__"), frame.f_globals.setdefault("__warningregistry__", {}),
        )  # fmt: skip


class Method:
    """A captured method of one object."""

    __slots__ = ("__func__", "__self__")
    __fulgurite_jit__ = True

    def __init__(self, jitted: Jitted, owner: Any) -> None:
        self.__func__, self.__self__ = jitted, owner

    @property
    def function(self) -> Any:
        """The plain method."""
        return self.__func__.function.__get__(self.__self__)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.__func__(self.__self__, *args, **keywords)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__func__, name)


def jitted(function: Any, dynamic: Any, donate: Any) -> Any:
    """The function, captured and replayed: what `fg.jit` gives."""
    if isinstance(function, Jitted):
        function = function.function
    if isinstance(function, staticmethod | classmethod):
        raise ArgumentError(
            f"jit of a {type(function).__name__}", "put @staticmethod above @fg.jit, not below it"
        )
    if not callable(function):
        raise ArgumentError(f"{type(function).__name__} is not a function", "give a function")
    return Jitted(function, dynamic, donate)


def _check_donate(donate: Any) -> tuple[str | int, ...]:
    names = (donate,) if isinstance(donate, str | int) else donate
    if not isinstance(names, tuple | list | set) or not all(
        [isinstance(name, str | int) for name in names]
    ):
        raise ArgumentError(f"donate is {donate!r}", 'name arguments: donate=("state",)')
    return tuple(names)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)
