"""The blocks of docs/torch.md, which need torch, run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "torch.md"


def test_the_blocks_of_the_page_run_one_after_the_other() -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```py\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), namespace)
    assert next(namespace["model"].parameters()).grad is not None
