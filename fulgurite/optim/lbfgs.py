"""LBFGS: a quasi-Newton method with a line search, which evaluates the loss as often as it needs.

In: a closure that computes the loss and its gradients at the parameters as they are. Out: the
parameters, assigned. The inverse of the second derivatives is known by the last few steps and the
changes of the gradient along them (Nocedal 1980; two loops over that history). Options, tests and
the strong Wolfe line search are torch's, and so is the layout of the state. All parameters are one
vector on their device; what decides how to go on is asked for as numbers, so a step is many plans,
and cannot be captured by jit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..errors import ArgumentError, FulguriteError, ShapeError
from ..functional.array.movement import concat, reshape
from ..functional.math.elementwise import abs as absolute
from ..functional.math.reduction import max as largest
from ..functional.math.reduction import sum as total
from ..tensor import Tensor, no_grad, realize_all
from .optimizer import Optimizer, Slots, _array, _checked_state, scalar
from .realize_step import realize_step

_CURVED = 1e-10  # what a step and the change of its gradient must have in common to be remembered
_COUNTS = ("func_evals", "n_iter")
_NUMBERS = ("t", "prev_loss", "H_diag")
_VECTORS = ("d", "prev_flat_grad")
_HISTORY = ("old_dirs", "old_stps", "ro")  # changes of the gradient, steps, 1 / their product


class LBFGS(Optimizer):
    """Limited-memory BFGS: few parameters, whole batches, no noise.

    `step(closure)` takes up to `max_iter` steps and calls the closure up to `max_eval` times: it
    must clear the gradients, compute the loss, call `backward()` and return the loss. With
    `line_search_fn="strong_wolfe"` each step is as long as the loss wants it; else it is `lr`.

    >>> w = fg.Tensor([3.0, -2.0], requires_grad=True)
    >>> optimizer = fg.optim.LBFGS([w], line_search_fn="strong_wolfe")
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = ((w - fg.Tensor([1.0, 2.0])) ** 2).sum()
    ...     loss.backward()
    ...     return loss
    >>> first = optimizer.step(closure)
    >>> [round(x, 4) for x in w.tolist()]
    [1.0, 2.0]
    """

    def __init__(
        self, params: Any, lr: float = 1.0, max_iter: int = 20, max_eval: int | None = None,
        tolerance_grad: float = 1e-7, tolerance_change: float = 1e-9, history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:  # fmt: skip
        if line_search_fn not in (None, "strong_wolfe"):
            raise ArgumentError(f"line_search_fn is {line_search_fn!r}", 'use "strong_wolfe"')
        super().__init__(
            params, lr=lr, max_iter=max_iter,
            max_eval=max_iter * 5 // 4 if max_eval is None else max_eval,
            tolerance_grad=tolerance_grad, tolerance_change=tolerance_change,
            history_size=history_size, line_search_fn=line_search_fn,
        )  # fmt: skip
        self.memory: dict[str, Any] = dict.fromkeys(_COUNTS, 0)

    def add_param_group(self, options: Mapping[str, Any]) -> None:
        """Take the parameters: one group, whose vector all of them are."""
        if self.param_groups:
            raise ArgumentError("LBFGS has one group of parameters", "give all in one list")
        super().add_param_group(options)

    def slots(self, group: Any, param: Tensor) -> Slots:
        return {}

    # --- the parameters as one vector ------------------------------------------------------------

    def _gradient(self) -> Tensor:
        """All gradients that the closure left, in a line; those that are missing are 0."""
        with no_grad():
            parts = [p * 0 if p.grad is None else p.grad for p in self.params]
            return concat([reshape(p, (p.size,)) for p in parts]).detach().realize()

    def _values(self) -> Tensor:
        with no_grad():
            flat = concat([reshape(p, (p.size,)) for p in self.params]).detach()
            return flat.contiguous().realize()

    def _put(self, flat: Tensor) -> None:
        """Assign the parameters their parts of a vector."""
        before, start = [param.node for param in self.params], 0
        with no_grad():
            for param in self.params:
                part = reshape(flat[start : start + param.size], param.shape)
                param.assign(part.astype(param.dtype))
                start += param.size
        realize_step(self.params, before)

    # --- steps -----------------------------------------------------------------------------------

    def step(self, closure: Any = None, when: Tensor | None = None) -> Any:
        """Go on until nothing changes any more or the limits are reached; the loss before that."""
        if not callable(closure) or when is not None:
            raise ArgumentError(
                "LBFGS evaluates the loss several times", "give a closure: step(closure)"
            )
        group, memory = self.param_groups[0], self.memory
        first = closure()
        loss, gradient, evaluations = float(first), self._gradient(), 1
        memory["func_evals"] += 1
        if _extent(gradient) <= group["tolerance_grad"]:
            return first
        for count in range(1, group["max_iter"] + 1):
            memory["n_iter"] += 1
            way = self._direction(gradient)
            memory |= {"d": way, "prev_flat_grad": gradient, "prev_loss": loss}
            length = group["lr"]
            if memory["n_iter"] == 1:
                length *= min(1.0, 1.0 / float(total(absolute(gradient))))
            memory["t"] = length
            slope = _product(gradient, way)
            if slope > -group["tolerance_change"]:
                break
            here = _Point(0.0, loss, slope, gradient)
            last = count == group["max_iter"]
            left = group["max_eval"] - evaluations
            found, used = self._moved(closure, here, way, length, last, left)
            loss, gradient, memory["t"] = found.loss, found.gradient, found.length
            evaluations += used
            memory["func_evals"] += used
            if last or evaluations >= group["max_eval"]:
                break
            if _extent(gradient) <= group["tolerance_grad"]:
                break
            if _extent(way) * abs(found.length) <= group["tolerance_change"]:
                break
            if abs(loss - memory["prev_loss"]) < group["tolerance_change"]:
                break
        return first

    def _moved(
        self, closure: Callable[[], Any], here: _Point, way: Tensor, length: float, last: bool,
        trials: int,
    ) -> tuple[_Point, int]:  # fmt: skip
        """The point that a step leads to, where the parameters are left, and its evaluations."""
        start = self._values()

        def put(length: float) -> None:
            with no_grad():
                self._put(start + way * scalar(length, way.device, way.dtype.bits > 32))

        def evaluate(length: float) -> _Point:
            put(length)
            loss = float(closure())
            gradient = self._gradient()
            return _Point(length, loss, _product(gradient, way), gradient)

        group = self.param_groups[0]
        if group["line_search_fn"] is not None:
            least = group["tolerance_change"] / max(_extent(way), _TINY)
            found, used = strong_wolfe(evaluate, here, length, least, trials)
            put(found.length)
            return found, used
        if last:  # nobody will look at the loss again
            put(length)
            return _Point(length, here.loss, here.slope, here.gradient), 0
        return evaluate(length), 1

    def _direction(self, gradient: Tensor) -> Tensor:
        """Minus the gradient, by the second derivatives that the history knows of."""
        memory = self.memory
        if memory["n_iter"] == 1:
            memory |= {"old_dirs": [], "old_stps": [], "ro": [], "H_diag": 1.0}
            return (-gradient).realize()
        change = (gradient - memory["prev_flat_grad"]).realize()
        taken = (memory["d"] * _number(memory["t"], gradient)).realize()
        common = _product(change, taken)
        if common > _CURVED:
            fresh = (change, taken, _number(1.0 / common, gradient))
            for name, value in zip(_HISTORY, fresh, strict=True):
                memory[name] = [*memory[name], value][-self.param_groups[0]["history_size"] :]
            memory["H_diag"] = common / _product(change, change)
        history = list(zip(*[memory[name] for name in _HISTORY], strict=True))
        way, shares = -gradient, []
        for change, taken, part in reversed(history):
            share = total(taken * way) * part
            way = way - change * share
            realize_all(share, way)  # one plan for all, whatever the length of the history
            shares.append(share)
        way = way * _number(memory["H_diag"], gradient)
        for change, taken, part in history:
            way = (way + taken * (shares.pop() - total(change * way) * part)).realize()
        return way.realize()

    # --- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that a later process needs to go on, in torch's layout."""
        group = {k: v for k, v in self.param_groups[0].items() if k != "params"}
        places = list(range(len(self.params)))
        kept = {k: list(v) if isinstance(v, list) else v for k, v in self.memory.items()}
        return {"state": {0: kept}, "param_groups": [{**group, "params": places}]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state_dict` gave, of this library or of torch."""
        groups, states = _checked_state(state)
        if [len(group["params"]) for group in groups] != [len(self.params)]:
            raise ArgumentError(
                "the state is for other parameters", f"load that of {len(self.params)} in one group"
            )
        self.memory = self._loaded_memory(states.get(0, {}))
        for name, value in groups[0].items():
            if name in self.param_groups[0] and name != "params":
                self.param_groups[0][name] = value

    def _loaded_memory(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        like = self._values()

        def vector(value: Any) -> Tensor:
            array = _array(value)
            if array.shape != like.shape:
                raise ShapeError(
                    f"the state has a vector of shape {array.shape}, not {like.shape}",
                    "load the state of the same model",
                )
            return Tensor(array, like.dtype, device=like.device)

        found: dict[str, Any] = {name: int(saved.get(name, 0)) for name in _COUNTS}
        if not found["n_iter"]:
            return found
        try:
            found |= {name: float(_array(saved[name])) for name in _NUMBERS}
            found |= {name: vector(saved[name]) for name in _VECTORS}
            found |= {name: [vector(v) for v in saved[name]] for name in _HISTORY[:2]}
            found["ro"] = [_number(float(_array(v)), like) for v in saved["ro"]]
        except FulguriteError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise ArgumentError(
                f"this is no state of LBFGS: {error}", "give what state_dict() gave"
            ) from None
        if len({len(found[name]) for name in _HISTORY}) != 1:
            raise ArgumentError("the history of the state has gaps", "give what state_dict() gave")
        return found


def _number(value: float, like: Tensor) -> Tensor:
    """A number in memory: other values compile nothing."""
    return scalar(value, like.device, like.dtype.bits > 32)


def _product(a: Tensor, b: Tensor) -> float:
    return float(total(a * b))


def _extent(x: Tensor) -> float:
    """The largest magnitude."""
    return float(largest(absolute(x))) if x.size else 0.0


# --- how far to go -------------------------------------------------------------------------------


class _Point(NamedTuple):
    """Where so much of the direction leads: the loss, its slope along it, and its gradient."""

    length: float
    loss: float
    slope: float
    gradient: Tensor


_DECREASE, _CURVATURE = 1e-4, 0.9  # Nocedal and Wright's c1 and c2
_TINY = 1e-300  # no direction is shorter: its slope is below 0


def strong_wolfe(
    evaluate: Callable[[float], _Point], start: _Point, length: float, least: float, most: int
) -> tuple[_Point, int]:
    """A point where the loss is lower and its slope flatter, and how often the loss was evaluated.

    Nocedal and Wright's algorithms 3.5 and 3.6 with cubic interpolation: lengths grow until two of
    them have such a point between them, then the bracket shrinks. It ends when that is narrower
    than `least`, or after so many trials (`most`) beyond the first.
    """

    def too_high(point: _Point) -> bool:
        return not point.loss <= start.loss + _DECREASE * point.length * start.slope

    def is_flat(point: _Point) -> bool:
        return abs(point.slope) <= -_CURVATURE * start.slope

    before, point, trials = start, evaluate(length), 0
    ends: list[_Point] = []
    while trials < most:
        if too_high(point) or (trials > 1 and point.loss >= before.loss):
            ends = [before, point]
            break
        if is_flat(point):
            return point, trials + 1
        if point.slope >= 0:
            ends = [before, point]
            break
        shortest = point.length + 0.01 * (point.length - before.length)
        further = cubic_minimum(before, point, shortest, point.length * 10)
        before, point, trials = point, evaluate(further), trials + 1
    ends = ends or [start, point]
    low, stuck = _lower(ends), False
    while trials < most:
        left, right = sorted([end.length for end in ends])
        if right - left < least:
            break
        middle = cubic_minimum(ends[0], ends[1], left, right)
        middle, stuck = _kept_inside(middle, left, right, stuck)
        point, trials = evaluate(middle), trials + 1
        if too_high(point) or point.loss >= ends[low].loss:
            ends[1 - low] = point
            low = _lower(ends)
            continue
        if is_flat(point):
            return point, trials + 1
        if point.slope * (ends[1 - low].length - ends[low].length) >= 0:
            ends[1 - low] = ends[low]
        ends[low] = point
    return ends[low], trials + 1


def _lower(ends: list[_Point]) -> int:
    """Which end has the lower loss; NaN is the highest."""
    first, second = [math.inf if math.isnan(end.loss) else end.loss for end in ends]
    return 0 if first <= second else 1


def _kept_inside(length: float, left: float, right: float, stuck: bool) -> tuple[float, bool]:
    """A length that is not too near to an end twice in a row, and whether it is so now."""
    margin = 0.1 * (right - left)
    if min(right - length, length - left) >= margin:
        return length, False
    if not (stuck or length >= right or length <= left):
        return length, True
    nearer_right = abs(length - right) < abs(length - left)
    return (right - margin if nearer_right else left + margin), False


def cubic_minimum(a: _Point, b: _Point, low: float, high: float) -> float:
    """Where the cubic through two losses and slopes is least, within bounds; else their middle."""
    if a.length > b.length:
        a, b = b, a
    try:
        mean = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.length - b.length)
        root = math.sqrt(mean * mean - a.slope * b.slope)
        part = (b.slope + root - mean) / (b.slope - a.slope + 2 * root)
        found = b.length - (b.length - a.length) * part
    except (ValueError, ZeroDivisionError, OverflowError):
        return (low + high) / 2
    return min(max(found, low), high) if math.isfinite(found) else (low + high) / 2
