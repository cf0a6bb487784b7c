"""Commands that are to end with a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fulgurite.cli import main


def refused(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says that must fail."""
    try:
        code: Any = main(list(words))
    except SystemExit as ended:
        code = ended.code
    assert code, f"{words} has not failed"
    return capsys.readouterr().err
