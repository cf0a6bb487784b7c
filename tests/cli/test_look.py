"""Tests of fulgurite/cli/look.py: words, scripts that fail, and terminals that know few letters."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import fulgurite as fg
from fulgurite import cli
from fulgurite.cli.look import TOPICS

WORK = "import fulgurite as fg\nx = fg.ones((32, 32)).realize()\n(x @ x + 1).realize()\n"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    path = tmp_path / "work.py"
    path.write_text(f"import sys\nprint('words:', sys.argv[1:])\n{WORK}")
    return path


@pytest.mark.parametrize(
    ("words", "given", "rows"),
    [
        (["--top", "1", "--by=line"], [], "line"),
        (["--by", "module", "7", "--top", "1"], ["7", "--top", "1"], "module"),
        (["--", "--by", "line"], ["--by", "line"], "kernel"),
        (["--help"], ["--help"], "kernel"),
    ],
)
def test_options_may_stand_behind_the_script_and_the_rest_is_its_own(
    words: list[str], given: list[str], rows: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["trace", str(work), *words]) == 0
    shown = capsys.readouterr().out
    assert f"words: {given}\n" in shown
    (head,) = [line.split() for line in shown.splitlines() if " GFLOP/s " in line]
    assert rows in head


@pytest.mark.parametrize("command", ["trace", "viz"])
def test_a_number_of_rows_or_a_graph_is_from_one_on(
    command: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    option = {"trace": "--top", "viz": "--graph"}[command]
    for number in ("-3", "0", "two"):
        with pytest.raises(SystemExit, match="2"):
            cli.main([command, option, number, str(work)])
        assert f"{number} is no number from 1 on" in capsys.readouterr().err


def test_a_graph_that_there_is_none_of_says_which_there_are(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = tmp_path / "nothing.py"
    nothing.write_text("")
    page = str(tmp_path / "page.html")
    fg.clear_caches()
    assert cli.main(["viz", "--graph", "99", "-o", page, str(work)]) == 1
    assert "there is no graph 99: give --graph 1" in capsys.readouterr().err
    assert cli.main(["viz", "-o", page, str(nothing)]) == 1
    assert "nothing was computed" in capsys.readouterr().err and not Path(page).exists()


def test_errors_of_a_script_show_its_own_lines_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "wrong.py"
    script.write_text(f"{WORK}def f(x):\n    return x @ fg.ones((5, 7))\nf(x)\n")
    assert cli.main(["why", str(script)]) == 1
    shown = capsys.readouterr()
    assert "inner sizes 32 and 5 differ" in shown.err and "where do " in shown.out
    files = [line for line in shown.err.splitlines() if line.startswith('  File "')]
    assert len(files) == 2 and all("wrong.py" in line for line in files)
    script.write_text("def f():\n    return {}['key']\ntry:\n    1 / 0\nexcept ValueError: ...\n")
    assert cli.main(["trace", str(script)]) == 1
    shown = capsys.readouterr()
    assert shown.err.count('  File "') == 1 and "ZeroDivisionError" in shown.err
    assert "failed before anything ran" in shown.err and not shown.out


def test_a_question_without_an_answer_is_told_so(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["why", str(work), "--about", "captured"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("nothing to say about captured; there are answers about ")
    assert set(said.rpartition("about ")[2].split(", ")) < set(TOPICS)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_letters_that_a_terminal_does_not_have_are_escaped(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, page = tmp_path / "größe.py", tmp_path / "日本.html"
    script.write_text(f"{WORK}with fg.scope('日本'): (x * 2).realize()\n", encoding="utf-8")
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", out)
    assert cli.main(["trace", "--by", "module", str(script)]) == 0
    fg.clear_caches()
    assert cli.main(["viz", "--no-assembly", "-o", str(page), str(script)]) == 0
    assert out.errors == "strict"  # as it was
    out.seek(0)
    shown = out.read()
    assert ("日本.html" in shown) == (encoding == "utf-8")
    assert (r"\u65e5\u672c" in shown) == (encoding != "utf-8")
    assert "größe.py" in page.read_text(encoding="utf-8")
