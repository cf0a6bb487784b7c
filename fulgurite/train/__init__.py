"""`fulgurite train digits|mnist|charlm`: a network learns, from data that is already here.

In: the name of a task. Out: a trained network, what it makes of data it has never seen, the loss
curve as a picture, and a checkpoint to go on from. `tasks` says what is learned, `loop` how a run
goes; `fulgurite/cli/train.py` reads the words on the command line.
"""

from .loop import Plan, Report, train

__all__ = ["Plan", "Report", "train"]
