"""Fine-tuning: low-rank additions (LoRA) or all weights, AdamW, and checkpoints to go on from.

In: a model and a text (`.txt`, or `.jsonl` with `text` or `messages` a line). Out: a folder with a
checkpoint and `weights.safetensors`, which `apply` puts into the model again. A LoRA leaves each
matrix as it is, packed or not, and adds scale · B · A to it, of which B begins with zeros. A batch
follows from the seed and the number of the step alone, so a run that was killed and resumed ends
with the bits of one that was not.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np

import fulgurite as fg

from ..core.op import Array
from ..errors import ArgumentError, NonFiniteError
from ..io import load_checkpoint, save_checkpoint, save_safetensors
from ..io.files import FileError, tensor_digest
from ..io.safetensors import SafetensorsFile
from .model import Model
from .quantized import Matrix

CHECKPOINT, WEIGHTS = "checkpoint.fgc", "weights.safetensors"
_SMALLER = "train with a smaller rate"
HELD_OUT = 0.1  # of the windows of the text


@dataclass(frozen=True)
class Settings:
    """How to fine-tune; a rank of 0 trains all weights."""

    steps: int = 200
    batch: int = 4
    length: int = 128  # tokens of a window
    rate: float = 1e-3
    rank: int = 8
    alpha: float = 16.0  # the addition is scaled by alpha / rank
    decay: float = 0.01
    seed: int = 0
    save_every: int = 50

    def __post_init__(self) -> None:
        least = {"steps": 1, "batch": 1, "length": 2, "rank": 0, "save_every": 1, "seed": 0}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ArgumentError(
                    f"{name} is {getattr(self, name)}", f"give {name.replace('_', '-')} {bound}"
                )
        if not (0 < self.rate < math.inf) or not math.isfinite(self.alpha) or self.decay < 0:
            raise ArgumentError("rate, alpha or decay is no useful number", "leave them out")


@dataclass
class Report:
    """What happened: losses of the steps, and of the held-out windows before and after."""

    losses: list[float] = field(default_factory=list)
    before: float = math.nan
    after: float = math.nan
    first: int = 0  # the step that this run began with
    is_stopped: bool = False
    weights: str = ""


class Lora:
    """A matrix with a low-rank addition, in the place of a `Matrix`."""

    def __init__(self, base: Matrix, a: fg.Tensor, b: fg.Tensor, scale: float) -> None:
        self.base, self.a, self.b, self.scale = base, a, b, scale

    @property
    def shape(self) -> tuple[int, ...]:
        """(outputs, inputs)."""
        return self.base.shape

    def values(self) -> fg.Tensor:
        """All values, with the addition."""
        return self.base.values() + (self.b @ self.a) * self.scale

    def __call__(self, x: fg.Tensor) -> fg.Tensor:
        """x @ values.mT, without making them."""
        return self.base(x) + ((x @ self.a.mT) @ self.b.mT) * self.scale

    def met(self, x: fg.Tensor) -> fg.Tensor:
        """What the weights meet of x: all of it, as the addition does."""
        return x

    def pieces(self, x: fg.Tensor) -> list[Lora]:
        """The outputs in the parts of `Matrix.pieces`."""
        parts = self.base.pieces(x)
        ends = list(accumulate([part.shape[0] for part in parts]))
        return [
            Lora(part, self.a, self.b[end - part.shape[0] : end], self.scale)
            for part, end in zip(parts, ends, strict=True)
        ]


class Trained:
    """The weights that are trained, by name, as a checkpoint keeps them."""

    def __init__(self, tensors: dict[str, fg.Tensor]) -> None:
        self.tensors = tensors

    def state_dict(self) -> dict[str, fg.Tensor]:
        """The weights by name."""
        return dict(self.tensors)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the values of other weights of the same names and shapes."""
        wrong = set(state) ^ set(self.tensors)
        wrong |= {n for n, t in self.tensors.items() if n in state and state[n].shape != t.shape}
        if wrong:
            raise FileError(
                f"weights are of another model or rank: {sorted(wrong)[0]!r}",
                "use the model and rank that they were trained with",
            )
        with fg.no_grad():
            for name, tensor in self.tensors.items():
                tensor.assign(fg.Tensor(state[name]).astype(tensor.dtype))


def _parts(model: Model) -> Iterator[tuple[str, dict[str, Any], str]]:
    decoder = model.decoder
    for key in list(decoder.top):
        yield key, decoder.top, key
    for number, layer in enumerate(decoder.layers):
        for key in list(layer):
            yield f"layers.{number}.{key}", layer, key


def add_lora(model: Model, rank: int, alpha: float, seed: int = 0) -> Trained:
    """Put a LoRA around every matrix of the layers; what is to be trained."""
    random = np.random.default_rng(seed)
    found: dict[str, fg.Tensor] = {}
    for name, place, key in _parts(model):
        matrix = place[key]
        if (
            not name.startswith("layers.")
            or not isinstance(matrix, Matrix)
            or (len(matrix.shape) != 2)
        ):
            continue
        outputs, inputs = matrix.shape
        start = random.standard_normal((rank, inputs)) / math.sqrt(inputs)
        a = fg.Tensor(start.astype(np.float32), requires_grad=True)
        b = fg.Tensor(np.zeros((outputs, rank), np.float32), requires_grad=True)
        found |= {f"{name}.a": a, f"{name}.b": b}
        place[key] = Lora(matrix, a, b, alpha / rank)
    return Trained(found)


def unfreeze(model: Model) -> Trained:
    """Make every weight a float32 tensor that is trained."""
    found: dict[str, fg.Tensor] = {}

    def own(name: str, values: fg.Tensor) -> fg.Tensor:
        with fg.no_grad():
            copied = values.astype(fg.float32).numpy().copy()
        found[name] = fg.Tensor(copied, requires_grad=True)
        return found[name]

    for name, place, key in _parts(model):
        one = place[key]
        if isinstance(one, Matrix):
            bias = None if one.bias is None else own(f"{name}.bias", one.bias)
            place[key] = Matrix(own(name, one.values()), None, bias)
        else:
            place[key] = own(name, one)
    return Trained(found)


def prepare(model: Model, settings: Settings) -> Trained:
    """Make a model ready to be trained, or to take weights that were."""
    model.runs.clear()  # what was captured knows the old weights
    if settings.rank:
        return add_lora(model, settings.rank, settings.alpha, settings.seed)
    return unfreeze(model)


def apply(model: Model, folder: str) -> Model:
    """The model with the weights that `finetune` wrote to a folder."""
    path = folder if folder.endswith(".safetensors") else os.path.join(folder, WEIGHTS)
    file = SafetensorsFile(path)
    metadata = file.metadata or {}
    state = {name: fg.Tensor(np.array(file[name].numpy())) for name in file}
    try:
        settings = Settings(rank=int(metadata["rank"]), alpha=float(metadata["alpha"]))
    except (KeyError, ValueError):
        raise FileError(f"{path!r} was not written by `fulgurite finetune`") from None
    trained = prepare(model, settings)
    trained.load_state_dict(state)
    for tensor in trained.tensors.values():
        tensor.requires_grad = False
    return model


def windows(model: Model, path: str, length: int) -> tuple[Array, Array]:
    """The text's tokens in windows of one more than `length`: those to learn from, and others."""
    ids: list[int] = []
    ends = list(model.config.eos[:1])
    for text, special in _texts(model, path):
        ids += [*model.tokenizer.encode(text, special=special), *ends]
    count = len(ids) // (length + 1)
    if count < 2:
        raise ArgumentError(
            f"{path!r} has {len(ids)} tokens, less than two windows of {length + 1}",
            "give more text, or a smaller --length",
        )
    all_of = np.array(ids[: count * (length + 1)], np.int32).reshape(count, length + 1)
    held = max(1, int(count * HELD_OUT))
    order = np.random.default_rng(0).permutation(count)
    return all_of[np.sort(order[held:])], all_of[np.sort(order[:held])]


def _texts(model: Model, path: str) -> Iterator[tuple[str, bool]]:
    """The texts of a file, and whether tokens that begin a text are to be added."""
    try:
        with open(path, encoding="utf-8") as file:
            whole = file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise FileError(f"{path!r} cannot be read as text: {why}", "give a text file") from None
    if not path.endswith(".jsonl"):
        yield whole, True
        return
    from .templates import template_for

    template = None
    for number, line in enumerate(whole.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            one = json.loads(line)
        except (ValueError, RecursionError):
            one = None
        if _has_surrogate(one):
            raise FileError(
                f"line {number} of {path!r} has half a letter (a lone surrogate)",
                "write the letter whole, or leave it out",
            )
        if isinstance(one, dict) and isinstance(one.get("text"), str):
            yield one["text"], True
        elif isinstance(one, dict) and isinstance(one.get("messages"), list):
            template = template or template_for(model)
            yield template.render(one["messages"], add_generation_prompt=False), template.is_plain
        else:
            raise FileError(
                f"line {number} of {path!r} is no object with 'text' or 'messages'",
                'write lines such as {"text": "..."}',
            )


def _has_surrogate(one: Any) -> bool:
    """True if a text within is none that could be written as UTF-8."""
    try:
        json.dumps(one, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def loss_of(decoder: Any, ids: fg.Tensor) -> fg.Tensor:
    """The mean surprise, in nats, at each token but the first."""
    logits = decoder(ids[:, :-1])
    found: fg.Tensor = fg.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1)
    )
    return found


def finetune(
    model: Model,
    data: str,
    folder: str,
    settings: Settings | None = None,
    resume: bool = False,
    tell: Callable[[int, float], None] = lambda step, loss: None,
) -> Report:
    """Train a model on a text; `tell(step, loss)` is called after each step.

    A KeyboardInterrupt ends it with a checkpoint. With `resume` it goes on from the folder's.
    """
    path = os.path.join(folder, CHECKPOINT)
    settings = _settled(path, settings) if resume else settings or Settings()
    _check_length(model, settings)
    train, held = windows(model, data, settings.length)
    digest = tensor_digest("", [("train", train), ("held", held)])
    trained = prepare(model, settings)
    parameters = list(trained.tensors.values())
    optimizer = fg.optim.AdamW(parameters, settings.rate, weight_decay=settings.decay)
    report = Report()
    decoder = model.decoder
    look = fg.jit(lambda ids: loss_of(decoder, ids))
    if resume:
        saved = load_checkpoint(path, model=trained, optimizer=optimizer, generator=False)
        report.first, report.losses = saved["step"], list(saved["losses"])
        report.before = saved["before"]
        if saved.get("data", digest) != digest:
            raise ArgumentError(
                f"the checkpoint is of a run with other data than {data!r}", "give the same file"
            )
    else:
        report.before = _held_out(look, held, settings.batch)
    os.makedirs(folder, exist_ok=True)

    @fg.jit
    def step(ids: fg.Tensor) -> fg.Tensor:
        value = loss_of(decoder, ids)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return value

    for number in range(report.first, settings.steps):
        try:
            value = float(step(_batch(train, settings, number)))
            report.losses.append(_finite(value, number + 1))
            done = number + 1
            tell(done, report.losses[-1])
        except KeyboardInterrupt:
            report.is_stopped = True
            done = len(report.losses)
        if report.is_stopped or done % settings.save_every == 0 or done == settings.steps:
            _check_finite(trained, done)
            save_checkpoint(
                path, model=trained, optimizer=optimizer, generator=False, step=done,
                losses=report.losses, before=report.before, settings=asdict(settings),
                data=digest,
            )  # fmt: skip
        if report.is_stopped:
            return report
    report.after = _held_out(look, held, settings.batch)
    report.weights = os.path.join(folder, WEIGHTS)
    about = {"rank": str(settings.rank), "alpha": repr(settings.alpha)}
    save_safetensors(trained.tensors, report.weights, about)
    return report


def _check_length(model: Model, settings: Settings) -> None:
    if settings.length > model.config.context:
        raise ArgumentError(
            f"windows of {settings.length} tokens are longer than the model's context of "
            f"{model.config.context}", f"give a length of {model.config.context} or less",
        )  # fmt: skip


def _finite(value: float, step: int) -> float:
    if not math.isfinite(value):
        raise NonFiniteError(f"the loss of step {step} is {value}; nothing is written", _SMALLER)
    return value


def _check_finite(trained: Trained, done: int) -> None:
    """An error before weights that are no numbers are written over good ones."""
    wrong = [n for n, t in trained.tensors.items() if not np.isfinite(t.detach().numpy()).all()]
    if wrong:
        raise NonFiniteError(
            f"after step {done} {wrong[0]!r} is not finite; nothing is written", _SMALLER
        )


def _settled(path: str, asked: Settings | None) -> Settings:
    """The settings of a checkpoint; more steps may be asked for, nothing else."""
    saved = load_checkpoint(path, generator=False)
    if "settings" not in saved:
        raise FileError(f"{path!r} is no checkpoint of `fulgurite finetune`")
    found = Settings(**saved["settings"])
    if asked is not None and replace(asked, steps=found.steps) != found:
        raise ArgumentError(
            f"the checkpoint is of a run with {found}", "leave the other options out"
        )
    return found if asked is None else replace(found, steps=max(asked.steps, saved["step"]))


def _batch(train: Array, settings: Settings, number: int) -> fg.Tensor:
    """The windows of a step, which follow from the seed and its number."""
    random = np.random.default_rng([settings.seed, number])
    return fg.Tensor(train[random.integers(0, len(train), settings.batch)])


def _held_out(look: Any, held: Array, batch: int) -> float:
    """The mean loss of the held-out windows, in batches of one size."""
    total, count = 0.0, 0
    with fg.no_grad():
        for start in range(0, len(held), batch):
            some = held[start : start + batch]
            filled = some[np.arange(batch) % len(some)] if len(some) < batch else some
            total, count = total + float(look(fg.Tensor(filled))) * len(some), count + len(some)
    return total / count
