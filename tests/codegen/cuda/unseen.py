"""Folds that no rule was written for, in Triton's interpreter, beside the reference device.

`python -m tests.codegen.cuda.unseen interpret` prints what was counted as JSON; `read` lets Triton
read the texts.
"""

from __future__ import annotations

import json
import os
import sys
import warnings

os.environ |= {"FULGURITE_DEVICE": "reference", "FULGURITE_DISK_CACHE": "0"}
os.environ |= {"FULGURITE_SHADOW": sys.argv[1], "FULGURITE_SHADOW_LARGEST": "0"}

from tests.codegen.cuda import shadow
from tests.graph.unseen import UNSEEN, results, tensors


def main() -> None:
    """Run all of it."""
    warnings.simplefilter("ignore")
    shadow.pytest_configure(None)
    for name in UNSEEN:
        for result in results(name, tensors("float32")):
            result.numpy()
    print(json.dumps({"counts": shadow.counts, "bad": shadow.bad}))


if __name__ == "__main__":
    main()
