"""Optimisers, schedules, clipping, mixed precision: everything between a gradient and a weight.

`optimizer = fg.optim.AdamW(model.parameters(), lr=1e-3)`, then `optimizer.step()` after
`loss.backward()`, or `optimizer.step(grads)` with what `fg.value_and_grad` gave. A step is one
plan; state and names are torch's.
"""

from .._hints import surface as _surface
from . import lr_scheduler
from .adam import LAMB, Adam, AdamW, Lion
from .gradients import (
    EMA,
    Accumulator,
    clip_by_norm,
    clip_by_value,
    clip_grad_norm_,
    clip_grad_value_,
    global_norm,
)
from .lbfgs import LBFGS
from .matrix import Adafactor, Muon
from .optimizer import Group, Optimizer
from .precision import GradScaler, LossScaler, Policy
from .schedule import Schedule, constant, cosine, join, linear, step_decay, warmup
from .sgd import SGD, Adagrad, RMSprop
from .variants import ASGD, Adadelta, Adamax, NAdam, RAdam, Rprop

__all__ = [
    "ASGD", "EMA", "LAMB", "LBFGS", "SGD", "Accumulator", "Adadelta", "Adafactor", "Adagrad",
    "Adam", "AdamW", "Adamax", "GradScaler", "Group", "Lion", "LossScaler", "Muon", "NAdam",
    "Optimizer", "Policy", "RAdam", "RMSprop", "Rprop", "Schedule", "clip_by_norm", "clip_by_value",
    "clip_grad_norm_", "clip_grad_value_", "constant", "cosine", "global_norm", "join", "linear",
    "lr_scheduler", "step_decay", "warmup",
]  # fmt: skip

__getattr__, __dir__ = _surface(__name__)
