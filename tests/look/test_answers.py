"""Tests of look/answers.py, look/bottlenecks.py and docs/why.md: why, and what helps."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite import cli
from fulgurite.errors import ArgumentError
from fulgurite.look.answers import REASONS, TOPICS
from fulgurite.look.bottlenecks import below_limit, outside_kernels
from fulgurite.look.profiler import Row

PAGE = Path(__file__).parents[2] / "docs" / "why.md"
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n((?:    [^\n]*\n)+))?", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d[\d.,e+]*( (ns|us|ms|s|B|KiB|MiB|GiB)\b)?")


def alike(text: str) -> list[str]:
    """Lines without what differs from run to run: numbers, files, and who compiled."""
    text = re.sub(r"[\w/.-]*why\.md:\d+", "why.md", text)
    text = text.replace("loaded from disk in", "compiled in")
    return [NUMBER.sub("#", line.strip()) for line in text.strip().splitlines()]


@pytest.mark.device("cpu")
def test_the_page_shows_what_is_printed_and_what_it_suggests_helps() -> None:
    pytest.importorskip("llvmlite")
    text, shown = PAGE.read_text(encoding="utf-8"), 0
    namespace: dict[str, Any] = {"__name__": "__main__"}
    fg.clear_caches()
    for found in BLOCK.finditer(text):
        line, out = text.count("\n", 0, found.start(1)), io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("\n" * line + found[1], str(PAGE), "exec"), namespace)
        printed, kept = alike(out.getvalue()), alike(found[2] or "")
        shown += bool(kept)
        if "limits" in found[1]:  # what holds a kernel back depends on the day
            printed, kept = printed[:1], kept[:1]
        elif '"time"' in found[1]:  # and so does which part is the largest
            printed, kept = printed[:-1], kept[:-1]
        assert printed == kept
    assert shown == text.count("\n## ") == 10


def row(**changes: Any) -> Row:
    plain = Row("map:add", 1e-3, 1.0, 1, 8e6, 1e6, 0.3, "memory", 1.0, ("a.py:1",))
    return plain._replace(**changes)


class MadeUp:
    """A profile with one row."""

    def __init__(self, found: Row, threads: int = 2) -> None:
        facts = type("Facts", (), {"name": found.name, "lines": found.lines})()
        self.kernels = [found]
        self.runs = [type("Run", (), {"facts": facts, "threads": threads, "thread": 1, "by": ""})()]


@pytest.mark.parametrize(
    ("found", "reason", "advice"),
    [
        (row(seconds=2e-6), "latency: 2 us", "a larger batch"),
        (row(limit=0.9), "memory: it moves", "narrower dtype"),
        (row(limit=0.9, bound="arithmetic"), "arithmetic: it computes", "compute less"),
        (row(busy=0.5), "threads: one of them", "a larger batch"),
        (row(busy=0.7), "tails: threads waited", "divide evenly"),
        (row(), "memory, below its rate", "fulgurite tune"),
    ],
)
def test_what_holds_a_kernel_back_is_told_by_its_figures(
    found: Row, reason: str, advice: str
) -> None:
    profile: Any = MadeUp(found)
    ((question, because, what),) = below_limit(profile)
    assert "map:add at a.py:1" in question and because[0].startswith(reason)
    assert advice in what


def test_small_shares_are_not_asked_about() -> None:
    profile: Any = MadeUp(row(share=0.01))
    assert list(below_limit(profile)) == []


def test_another_branch_of_python_is_named_with_its_line() -> None:
    fg.clear_caches()
    x = fg.Tensor(np.ones((4, 4), np.float32))
    for op in (fg.exp, fg.tanh):
        (op(x) + 1).realize()
    (answer,) = fg.why().about("compiled")
    assert "the first that differs is tanh, not exp" in answer.because[0]
    assert "test_answers.py" in answer.question and "fg.where" in answer.advice


def test_another_dtype_option_or_dropped_plan_is_named() -> None:
    fg.clear_caches()
    for dtype in (np.float32, np.float64):
        fg.Tensor(np.ones(4, dtype)).sum().realize()
    assert "float64[4], not float32[4]" in fg.why().about("compiled")[-1].because[0]
    x = fg.Tensor(np.ones((3, 3), np.float32))
    for exact in (False, True):
        with fg.config(exact=exact):
            (x @ x).realize()
    assert "exact is True, was False" in fg.why().about("compiled")[-1].because[0]


def test_another_device_is_named_and_not_the_shape_of_inputs() -> None:
    fg.clear_caches()
    for device in ("cpu", "reference"):
        with fg.config(device=device):
            fg.Tensor(np.ones((4, 3), np.float32)).sum(axis=0).realize()
    assert "it runs on reference" in fg.why().about("compiled")[-1].because[0]


@pytest.mark.device("cpu")
def test_what_a_size_decides_is_told_from_a_size_that_is_new() -> None:
    by_value = fg.jit(lambda x: x / len(x))
    for n in (3, 4, 5, 6):
        by_value(fg.ones((n, 2)))
    found = fg.why(by_value)
    assert "nothing, if it is the second or third" in str(found[1])
    assert "x.shape[0] in place of len(x)" in str(found[-1])


def test_a_guard_on_a_number_is_named_and_a_variable_is_suggested() -> None:
    fg.clear_caches()

    @fg.jit
    def powers(x: fg.Tensor, n: int) -> fg.Tensor:
        for _ in range(n):
            x = x * 2
        return x

    x = fg.Tensor(np.ones(4, np.float32))
    for n in (2, 3):
        powers(x, n)
    answer = fg.why(powers)[-1]
    assert "n is 3, and was 2" in answer.because[0] and "fg.Var" in answer.advice


def test_functions_of_one_name_have_answers_of_their_own() -> None:
    x = fg.Tensor(np.ones(4, np.float32))

    def made() -> Any:
        return fg.jit(lambda x: x * 2)

    one, other = made(), made()
    one(x)
    assert one.__qualname__ == other.__qualname__
    assert [answer.because for answer in fg.why(one)] == [("its first call",)]
    (answer,) = fg.why(other)
    assert "not captured?" in answer.question and "call it once" in answer.advice
    fg.clear_caches()
    assert "no longer remembered" in str(fg.why(one))


def test_a_capture_is_compared_with_the_nearest_of_those_that_are_kept() -> None:
    call = fg.jit(lambda x, y, z: x + y.sum() + z.sum(), dynamic=False)

    def ones(n: int) -> fg.Tensor:
        return fg.Tensor(np.ones(n, np.float32))

    for sizes in ((8, 4, 2), (9, 5, 3), (8, 4, 7)):
        call(*map(ones, sizes))
    why = fg.why(call)[-1].because[0]
    assert "z has shape (7,), not (2,)" in why  # of the first capture; of the second all differ


def test_an_option_or_a_recording_that_changed_is_named() -> None:
    call = fg.jit(lambda x: x * 2)
    x = fg.Tensor(np.ones(4, np.float32))
    call(x)
    with fg.config(exact=True):
        call(x)
    with fg.no_grad():
        call(x)
    whys = [answer.because[0] for answer in fg.why(call)[1:]]
    assert "exact is True, and was False" in whys[0]
    assert whys[1].endswith(": gradients are not recorded, and were")  # of the first, the nearest


def test_a_first_capture_that_succeeds_has_no_advice() -> None:
    with fg.profile() as p:
        fg.jit(lambda x: x + 1)(fg.ones(4))
    (event,) = [event for event in p.events if event.kind == "capture"]
    assert event.about["first"] and not event.about["advice"]


def test_what_python_ran_is_not_explained_by_limits_of_the_machine() -> None:
    x = fg.Tensor(np.ones((64, 64), np.float32))
    with fg.config(device="reference"), fg.profile() as p:
        (x.to("reference") @ x.to("reference")).realize()
    (answer,) = fg.why(p).about("limits")
    assert "NumPy, op by op" in answer.because[0] and "of the limit" not in str(answer)
    assert "device='cpu'" in answer.advice


def test_a_profile_in_which_nothing_ran_says_so() -> None:
    with fg.profile() as p:
        pass
    (answer,) = fg.why(p)
    assert "no kernel ran" in answer.because[0] and "realize()" in answer.advice


def test_time_in_kernels_is_told_from_the_rest() -> None:
    x = fg.Tensor(np.ones((8, 8), np.float32))
    with fg.profile() as p:
        (x + 1).realize()
    question, because, _ = outside_kernels(p)
    assert question.startswith("where do ") and len(because) == 4
    assert fg.why(p).about("time")[0].because == because


def test_reasons_of_the_scheduler_have_a_meaning() -> None:
    x = fg.Tensor(np.ones((8, 8), np.float32))
    found = fg.why(fg.sort(x @ x, axis=0) + 1).about("kernels")
    assert len(found) == 3 and all(":" in answer.because[0] for answer in found)
    with fg.config(fuse=False):
        assert "fuse" in str(fg.why(fg.exp(x) + 1).about("kernels"))
    assert all(meaning for meaning, _ in REASONS.values())


def test_questions_that_cannot_be_answered_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no answer about int"):
        fg.why(3)
    with pytest.raises(ArgumentError, match="there is no topic 'weather'"):
        fg.why(fg.ones(3) + 1).about("weather")
    with pytest.raises(ArgumentError, match="every value is known"):
        fg.why(fg.ones(3).realize())
    fg.clear_caches()
    assert "nothing" in str(fg.why())


def test_the_command_answers_about_a_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(TOPICS) == set(cli.look.TOPICS)
    script = tmp_path / "work.py"
    script.write_text(
        "import fulgurite as fg\nx = fg.ones((32, 32)).realize()\n"
        "(fg.softmax(x @ x) @ x).realize()\n"
    )
    with fg.config(tier="native"):
        assert cli.main(["why", "--about", "kernels", "--about", "time", str(script)]) == 0
    shown = capsys.readouterr().out
    assert "work.py:3 a kernel of its own?" in shown and "where do " in shown
    assert cli.main(["why", str(tmp_path / "none.py")]) == 1
