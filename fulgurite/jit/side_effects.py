"""Places that a function can change: what was there before it ran, and how to put it back.

In: a list, dict, object, cell or table of globals that a function can reach. Out: what changed in
it while the function ran, each as an `Effect`, which a replay does again; and the way back, so that
a capture, or a function that raises, leaves everything as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..tree import rebound

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "nothing"})()


@dataclass(frozen=True)
class Effect:
    """A change: what a variable's thing holds after the function."""

    kind: str  # of the holder
    name: str  # the variable that holds the thing in a replay
    key: Any  # the attribute or item; None: all of it
    value: Any  # MISSING: it is gone
    way: str


@dataclass
class Holder:
    """A thing that can change, as it was."""

    kind: str
    thing: Any
    name: str
    way: str
    before: Any
    key: Any = None

    def effects(self) -> list[Effect]:
        """What is not as it was."""
        kind, thing = self.kind, self.thing
        if kind in ("list", "deque"):
            return [] if _alike(list(thing), self.before) else [self._effect(None, list(thing))]
        if kind in ("set", "bytearray"):
            return [] if thing == self.before else [self._effect(None, thing.copy())]
        if kind == "array":
            same = thing.shape == self.before.shape and thing.tobytes() == self.before.tobytes()
            return [] if same else [self._effect(None, thing)]
        if kind == "dict":
            same = list(thing) == list(self.before)
            same = same and _alike(list(thing.values()), list(self.before.values()))
            return [] if same else [self._effect(None, dict(thing))]
        if kind == "attrs":
            now, before = dict(thing.__dict__), self.before
            labels = [k for k in {**before, **now} if k != "_cache"]
            return [self._effect(k, now.get(k, MISSING)) for k in labels
                    if now.get(k, MISSING) is not before.get(k, MISSING)]  # fmt: skip
        now = self._now()
        return [] if now is self.before else [self._effect(self.key, now)]

    def _effect(self, key: Any, value: Any) -> Effect:
        return Effect(self.kind, self.name, key, value, self.way)

    def held(self, key: Any) -> Any:
        """What is there now, at a key if it has several."""
        return self.thing.__dict__.get(key, MISSING) if self.kind == "attrs" else self._now()

    def initial(self, key: Any) -> Any:
        """What was there, at a key if it has several."""
        return self.before.get(key, MISSING) if self.kind == "attrs" else self.before

    def _now(self) -> Any:
        if self.kind == "item":
            return self.thing.get(self.key, MISSING)
        if self.kind == "slot":
            return getattr(self.thing, self.key, MISSING)
        if self.kind == "grad":
            return self.thing.grad
        assert self.kind == "cell", self.kind
        try:
            return self.thing.cell_contents
        except ValueError:
            return MISSING

    def restore(self) -> None:
        """Put back what was there."""
        for effect in self.effects():
            self.put(effect.key, self.initial(effect.key))

    def put(self, key: Any, value: Any) -> None:
        """Let it hold a value, at a key if it has several."""
        kind, thing = self.kind, self.thing
        if kind in ("list", "bytearray"):
            thing[:] = value
        elif kind in ("dict", "set", "deque"):
            thing.clear()
            (thing.extend if kind == "deque" else thing.update)(value)
        elif kind == "array":
            np.copyto(thing, value)
        elif kind == "attrs":
            set_attribute(thing, key, value)
        elif kind == "item":
            if value is MISSING:
                thing.pop(key, None)
            else:
                thing[key] = value
        elif kind == "slot":
            if value is MISSING:
                object.__delattr__(thing, key)
            else:
                object.__setattr__(thing, key, value)
        elif kind == "grad":
            thing.grad = value
        elif value is MISSING:
            del thing.cell_contents
        else:
            thing.cell_contents = value


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


def _alike(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all([x is y for x, y in zip(a, b, strict=True)])
