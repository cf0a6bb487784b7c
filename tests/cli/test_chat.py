"""`fulgurite chat` and `fulgurite generate`."""

from __future__ import annotations

import io
import socket
from pathlib import Path
from typing import Any

import pytest

from fulgurite import cli
from fulgurite.models import Batch
from tests.models.samples import folder_of, gguf_of

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
ONE: dict[str, Any] = {"llama.block_count": 1}
pytestmark = pytest.mark.device("first")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(gguf_of(tmp_path / "tiny.gguf", **ONE))


def test_a_conversation_and_a_text_at_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(gguf_of(tmp_path / "tiny.gguf", **ONE))
    lines = iter(
        ["/help", "the tin", "/what", "then", "/reset", "the tin", "", "/system Be", "/exit"]
    )
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    assert cli.main(["chat", path, "-n", "4", "-t", "0", "--system", "the"]) == 0
    found = capsys.readouterr()
    answers = found.out.splitlines()
    assert len(answers) >= 3 and answers[0] == answers[-1]
    assert found.err.count("first token after") == 3 and "/what is no command" in found.err
    assert "a plain one is used" in found.err and next(lines, None) is None
    asked = ["generate", path, "-p", "the", "-n", "5", "--seed", "3"]
    assert cli.main(asked) == 0
    first = capsys.readouterr().out
    assert cli.main(asked) == 0
    assert first.startswith("the") and capsys.readouterr().out == first


def test_what_is_wrong_is_said_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["chat", str(tmp_path / "none.gguf")]) == 1
    assert "none.gguf" in capsys.readouterr().err
    path = str(gguf_of(tmp_path / "tiny.gguf"))
    assert cli.main(["generate", path, "-p", "the", "--top-p", "7"]) == 1
    assert "top_p is 7" in capsys.readouterr().err
    for more, text in (
        (["--seed", "-4"], "seed is -4"),
        (["-t", "nan"], "temperature is nan"),
        (["--draft", str(tmp_path / "gone")], "there is no file"),
        (["-p", "the " * 3000], "this model reads 2048"),
        (["-p", ""], ""),  # its first token is enough
    ):
        assert cli.main(["generate", path, "-p", "the", "-n", "1", *more]) == (1 if text else 0)
        found = capsys.readouterr()
        assert text in found.err and (not text or not found.out)


def test_a_port_that_is_taken_is_told_before_the_model_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        for more, why in ((["--port", port], "in use"), (["--port", "70000"], "0 to 65535")):
            assert cli.main(["serve", str(tmp_path / "none.gguf"), *more]) == 1
            found = capsys.readouterr().err
            assert f"cannot listen on port {more[1]}" in found and why in found


def test_a_server_that_could_answer_nobody_does_not_start(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    for name, text in (("refuses", "{{ raise_exception('no') }}"), ("wrong", "{% if %}")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for more, why in (
        (["--timeout", "nan"], "too small"),
        (["--timeout", "0"], "too small"),
        (["--slots", "100000"], "--slots 100000 is more than 1024"),
        (["--template", str(tmp_path / "refuses")], "refuses the conversation: no"),
        (["--template", str(tmp_path / "wrong")], "cannot be read"),
        (["--template", str(tmp_path / "bytes")], "it is not UTF-8"),
    ):
        assert cli.main(["serve", path, "--port", "0", *more]) == 1
        assert why in capsys.readouterr().err


def test_a_model_whose_own_template_fails_is_served_with_a_warning(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from fulgurite.cli.serve import _check_template
    from fulgurite.models import load

    model = load(path)
    for template, text in (
        ("{{ raise_exception('no') }}", "chat will not work"),
        ("{% if messages[0].role != 'system' %}{{ raise_exception('no') }}{% endif %}", ""),
    ):
        model.template = template
        _check_template(model, None)
        found = capsys.readouterr().err
        assert text in found and bool(text) == bool(found)


def test_how_a_text_begins_is_a_word_an_option_or_piped(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ["-n", "2", "--seed", "3"]
    texts = []
    for words in (["the"], ["-p", "the"], []):
        monkeypatch.setattr("sys.stdin", io.StringIO("the"))
        assert cli.main(["generate", path, *words, *more]) == 0
        texts.append(capsys.readouterr().out)
    assert len(set(texts)) == 1
    assert cli.main(["generate", path, "the", "-p", "the"]) == 1
    assert "is there twice" in capsys.readouterr().err


def test_quantize_says_what_is_wrong_with_paths_and_types(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.gguf"
    assert cli.main(["quantize", path, str(target), "--type", "Q8_0"]) == 0
    folder = folder_of(tmp_path / "folder")
    for words, text in (
        (["missing.gguf", str(target)], "there is no file 'missing.gguf'"),
        ([path, str(target), "--type", "Q9"], "'Q9' is no type"),
        ([path, path], "over itself"),
        ([str(folder), str(tmp_path / "x.gguf")], "is a folder"),
    ):
        capsys.readouterr()
        assert cli.main(["quantize", *words]) == 1
        error = capsys.readouterr().err
        assert error.startswith("fulgurite: ") and text in error and "runpy" not in error
    assert cli.main(["quantize", str(folder), str(tmp_path / "packed")]) == 0
    assert "rows of blocks of 256" in capsys.readouterr().err


def test_bytes_that_are_not_utf8_are_replaced_or_told(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["generate", path, "-p", "a\udcff\udcfe", "-n", "1"]) == 0
    assert "replaced" in capsys.readouterr().err
    for command in ("generate", "chat"):
        piped = io.TextIOWrapper(io.BytesIO(b"a\xff\xfeb\n"), "utf-8")
        monkeypatch.setattr("sys.stdin", piped)
        assert cli.main([command, path, "-n", "1"]) == 1
        assert "is not UTF-8" in capsys.readouterr().err
    (tmp_path / "bad.jinja").write_bytes(b"\xff\xfe")
    assert cli.main(["chat", path, "--template", str(tmp_path / "bad.jinja")]) == 1
    assert "it is not UTF-8" in capsys.readouterr().err


def test_a_text_that_was_interrupted_ends_with_the_status_of_that(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Batch.step

    def step(batch: Batch, tokens: Any) -> Any:
        if batch.lengths[0] == 5:
            raise KeyboardInterrupt
        return own(batch, tokens)

    monkeypatch.setattr(Batch, "step", step)
    assert cli.main(["generate", path, "the", "-n", "20", "--seed", "3"]) == 130
    assert "[stopped]" in capsys.readouterr().out


def test_a_run_of_before_is_not_overwritten_by_fine_tuning_unless_that_is_said(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("the quick brown fox " * 40)
    command = ["finetune", path, str(text), "--save", str(tmp_path / "run"), "--steps", "1",
               "--batch", "1", "--length", "8"]  # fmt: skip
    assert cli.main(command) == 0
    kept = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    assert cli.main(command) != 0
    assert "--resume" in capsys.readouterr().err
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == kept
    assert cli.main([*command, "--overwrite"]) == 0
