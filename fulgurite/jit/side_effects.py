"""Places that a function can change: what was there before it ran, and how to put it back.

In: a list, dict, object, cell or table of globals that a function can reach. Out: what changed in
it while the function ran, each as an `Effect`, which a replay does again; and the way back, so that
a capture, or a function that raises, leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import eq, is_
from typing import Any

import numpy as np

from ..core.lazy_dataclass import dataclass
from ..core.lazy_named_tuple import NamedTuple
from ..tree import rebound

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "nothing"})()


@dataclass(frozen=True)
class Effect:
    """A change: what a variable's thing holds after the function."""

    kind: str  # of the holder
    name: str  # the variable that holds the thing in a replay
    key: Any  # the attribute or item; None: all of it
    value: Any  # MISSING: it is gone
    path: str


@dataclass
class Holder:
    """A thing that can change, as it was."""

    kind: str
    thing: Any
    name: str
    path: str
    before: Any
    key: Any = None

    def effects(self) -> list[Effect]:
        """What is not as it was."""
        if self.kind in _WHOLE:
            now = _WHOLE[self.kind].copy(self.thing)
            return [] if _WHOLE[self.kind].same(now, self.before) else [self._effect(None, now)]
        if self.kind == "attrs":
            now, before = dict(self.thing.__dict__), self.before
            labels = [k for k in {**before, **now} if k != "_cache"]
            return [self._effect(k, now.get(k, MISSING)) for k in labels
                    if now.get(k, MISSING) is not before.get(k, MISSING)]  # fmt: skip
        now = self.held(self.key)
        return [] if now is self.before else [self._effect(self.key, now)]

    def _effect(self, key: Any, value: Any) -> Effect:
        return Effect(self.kind, self.name, key, value, self.path)

    def held(self, key: Any) -> Any:
        """What is there now, at a key if it has several."""
        return _PLACES[self.kind][0](self.thing, key if self.kind == "attrs" else self.key)

    def initial(self, key: Any) -> Any:
        """What was there, at a key if it has several."""
        return self.before.get(key, MISSING) if self.kind == "attrs" else self.before

    def restore(self) -> None:
        """Put back what was there."""
        for effect in self.effects():
            self.put(effect.key, self.initial(effect.key))

    def put(self, key: Any, value: Any) -> None:
        """Let it hold a value, at a key if it has several."""
        if self.kind in _WHOLE:
            _WHOLE[self.kind].write(self.thing, value)
        else:
            _PLACES[self.kind][1](self.thing, key, value)


def set_attribute(thing: Any, key: str, value: Any) -> None:
    """Set an attribute without any code of its class."""
    if isinstance(thing, type):
        if value is MISSING:
            type.__delattr__(thing, key)
        else:
            type.__setattr__(thing, key, value)
        return
    own = thing.__dict__
    if value is MISSING:
        own.pop(key, None)
    else:
        own[key] = value
    rebound()


def refill(thing: Any, items: Any) -> None:
    """Let a dict, set or deque hold these."""
    thing.clear()
    (thing.extend if hasattr(thing, "extend") else thing.update)(items)


# --- kinds of places -----------------------------------------------------------------------------


class _Whole(NamedTuple):
    """How to look at a thing that changes as a whole, and how to change it."""

    copy: Callable[[Any], Any]
    same: Callable[[Any, Any], bool]
    write: Callable[[Any, Any], None]


def _copied(thing: Any) -> Any:
    return thing.copy() if hasattr(thing, "copy") else thing[:]


def _alike(a: Any, b: Any) -> bool:
    """True if two lists, or two dicts in the same order, hold the very same things."""
    if isinstance(a, dict):
        return list(a) == list(b) and _alike(list(a.values()), list(b.values()))
    return len(a) == len(b) and all(map(is_, a, b))


def _same_bytes(a: Any, b: Any) -> bool:
    return bool(a.shape == b.shape and a.tobytes() == b.tobytes())


def _write_items(thing: Any, items: Any) -> None:
    thing[:] = items


_WHOLE: dict[str, _Whole] = {
    "list": _Whole(list, _alike, _write_items),
    "deque": _Whole(list, _alike, refill),
    "set": _Whole(_copied, eq, refill),
    "bytearray": _Whole(_copied, eq, _write_items),
    "array": _Whole(lambda thing: thing, _same_bytes, np.copyto),
    "dict": _Whole(dict, _alike, refill),
}


def _cell_contents(cell: Any, key: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _set_item(thing: Any, key: Any, value: Any) -> None:
    if value is MISSING:
        thing.pop(key, None)
    else:
        thing[key] = value


def _set_slot(thing: Any, key: str, value: Any) -> None:
    if value is MISSING:
        object.__delattr__(thing, key)
    else:
        object.__setattr__(thing, key, value)


def _set_grad(thing: Any, key: Any, value: Any) -> None:
    thing.grad = value


def _set_cell(cell: Any, key: Any, value: Any) -> None:
    if value is MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = value


# of single places: how to read what is there, and how to write it
_PLACES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any, Any], None]]] = {
    "attrs": (lambda thing, key: thing.__dict__.get(key, MISSING), set_attribute),
    "item": (lambda thing, key: thing.get(key, MISSING), _set_item),
    "slot": (lambda thing, key: getattr(thing, key, MISSING), _set_slot),
    "grad": (lambda thing, key: thing.grad, _set_grad),
    "cell": (_cell_contents, _set_cell),
}
