"""Chat templates: those of files as transformers renders them, and programs that mean harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fulgurite.models import load
from fulgurite.models.templates import ChatTemplate, TemplateError, chat_ids, template_for

from .samples import gguf_of

pytest.importorskip("jinja2")
pytestmark = pytest.mark.device("none")

CHAT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": " Hi \n"}]
CHATML = """{% for message in messages %}
    {% if loop.first and messages[0]['role'] != 'system' %}
{{ '<|im_start|>system\nYou are kind.<|im_end|>\n' }}
    {% endif %}
{{'<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>' + '\n'}}{%
endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\n' }}{% endif %}"""
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{% continue %}{% endif %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 1) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ '[INST] ' + m.content + ' [/INST]' if m.role == 'user' else m.content + eos_token }}"
    "{% endfor %}{{ tools | tojson }}{{ '%s' | format }}"
)


def test_templates_render_with_what_those_of_files_use() -> None:
    assert ChatTemplate(CHATML).render(CHAT) == (
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    mistral = ChatTemplate(MISTRAL.replace("{{ '%s' | format }}", ""), "<s>", "</s>")
    tools = [{"name": "<é>"}]
    assert mistral.render(CHAT, tools=tools) == '<s>[INST]  Hi \n [/INST][{"name": "<é>"}]'
    with pytest.raises(TemplateError, match="roles must alternate"):
        mistral.render([*CHAT, CHAT[1]])
    now = ChatTemplate("{{ strftime_now('%Y') }}{{ x is defined }}").render([])
    assert now.endswith("False") and len(now) == 9


def test_a_file_without_a_template_gets_the_plain_one_and_one_with_it_its_own(
    tmp_path: Path,
) -> None:
    pytest.importorskip("tokenizers")
    plain = load(gguf_of(tmp_path / "a.gguf"))
    template = template_for(plain)
    assert template.render(CHAT) == "system: Be short.\nuser:  Hi \n\nassistant:"
    assert chat_ids(plain, template, CHAT)[0] == 1
    own = load(gguf_of(tmp_path / "b.gguf", **{"tokenizer.chat_template": "{{ bos_token }}he"}))
    ids = chat_ids(own, template_for(own), CHAT)
    assert ids[0] == 1 and own.tokenizer.decode(ids).strip() == "he"
    assert template_for(own, "x{{ eos_token }}").render([]) == "x</s>"


NESTS = (
    "{% set n = namespace(a=[1], b=[1]) %}{% for i in range(40) %}{% set n.a = [n.a, n.a] %}"
    "{% set n.b = [n.b, n.b] %}{% endfor %}"
)
TUPLES = NESTS.replace("[", "(").replace("]", ")").replace("(1)", "(1,)")
HOSTILE: dict[str, Any] = {
    **{NESTS + "{% if " + test + " %}x{% endif %}": "letters|work" for test in (
        "n.a == n.b", "n.a < n.b", "n.a in [n.b]", "n.a != n.b", "n.a is eq n.b", "n.a is lower",
        "[n.a] | selectattr('x', 'eq', n.b) | list", "[n.a, n.b] | max", "[n.a].index(n.b)",
        "[n.a].count(n.b)", "'%s' % n.a", "'{}'.format(n.a)", "'x' | replace('x', n.a)",
        "[n.a] | select('eq', n.b) | list", "[n.a, n.b] | unique | list", "'x'.join([n.a])",
        "n ~ 'x'", "{'a': n.a}.items() ~ 'x'", "{1: [(n.a, 1)]}.values() ~ 'x'",
    )},
    "{% set a = 'a' * 3000000 %}{% for i in range(2000) %}{% set b = a.upper() %}{% endfor %}":
        "work",
    "{% set a = 'a' * 3000000 %}{% for i in range(2000) %}{% set b = a | upper %}{% endfor %}":
        "work",
    "{% set a = 'a' * 3000000 %}{% for i in range(20000) %}{% set b = a[::-1] %}{% endfor %}":
        "work",
    "{% set a = 'a' * 3000000 %}{% for i in range(20000) %}{% set b = a * 1 %}{% endfor %}":
        "work",
    "{% for i in range(200) %}{% set b = range(100000) | list | sort %}{% endfor %}":
        "work",
    "{% set a = range(100000) | list %}{% for i in range(1000) %}{{ -1 in a }}{% endfor %}":
        "work",
    "{% set a = 'a' * 2000000 %}{{ a.rfind('b' + 'a' * 1000000) }}": "work",
    TUPLES + "{{ {n.a: 1} }}": "letters",
    TUPLES + "{{ {1: 1}[n.a] }}": "letters",
    "{{ ([[1]] * 100000) | sum(start=[]) }}": "work",
    "{{ 1.5 | round(10 ** 9, 'floor') }}": "rounds",
    "{% set n = namespace(x=3) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}":
        "letters",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}": "steps",
    "{{ range(10 ** 9) }}": "fails",
    "{{ 'a' * 10 ** 10 }}": "letters",
    "{{ (9 ** 9) ** (9 ** 9) }}": "letters",
    "{{ ''.__class__.__mro__ }}": "unsafe",
    "{{ cycler.__init__.__globals__ }}": "unsafe",
    "{{ ''.ljust(10 ** 9) }}": "unsafe",
    "{{ 'x' | center(10 ** 9) }}": "cannot be read",
    "{{ '%1000000000d' % 1 }}": "huge width",
    "{{ '{:1000000000d}'.format(1) }}": "huge width",
    "{{ [1] | tojson(indent=10 ** 9) }}": "indents",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "too deep",
    "{% set n = namespace(x='aa') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}":
        "letters",
    "{% set n = namespace(x='aa') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}":
        "letters",
    "{% set n = namespace(x='aa') %}{% for i in range(99) %}{% set n.x %}{{ n.x }}{{ n.x }}"
    "{% endset %}{% endfor %}": "letters",
    "{% set n = namespace(x=1) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
    "{{ n.x }}": "letters",
    "{% set x = 'a' * 999999 %}{{ x | replace('a', x) }}": "letters",
    "{% set x = 'a' * 999999 %}{{ x.replace('a', x) }}": "letters",
    "{% for a in 'x' * 9999 recursive %}{{ loop('x' * 9999) }}{% endfor %}": "too deep",
    "{% include '/etc/passwd' %}": "fails",
    "{{ messages.append(1) }}": "unsafe",
    "{{ 1 / 0 }}": "division",
    "{% if %}": "cannot be read",
    "{{ nothing.at.all }}": "undefined",
    "{% if 1 %}" * 200: "cannot be read",
}  # fmt: skip


@pytest.mark.parametrize("source", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_template_is_a_clear_error(source: str) -> None:
    with pytest.raises(TemplateError, match=HOSTILE[source]):
        ChatTemplate(source).render(CHAT)


def test_a_long_conversation_is_no_hostile_one() -> None:
    source = (
        "{% set a = 'a' * 3000000 %}{% set b = 'b' * 3000000 %}"
        "{% for m in messages %}{% if m.role == 'user' and loop.index0 < messages | length %}"
        "{{ m.content | trim }}{{ m['content'][:5].upper() }}{{ 'x' in m.content }}{% endif %}"
        "{% endfor %}"
    )
    chat = [{"role": "user", "content": "some words " * 30}] * 2000
    assert len(ChatTemplate(source).render(chat)) > 600_000


def test_a_damaged_template_is_a_clear_error_or_a_text() -> None:
    import random

    chance = random.Random(3)
    pieces = ["{{", "}}", "{%", "%}", "'", "for", "|", "(", ")", "loop", "**", "[", "messages", "~"]
    for _ in range(100):
        text = list(CHATML)
        for _ in range(chance.randrange(1, 6)):
            text[chance.randrange(len(text))] = chance.choice([*pieces, ""])
        try:
            assert isinstance(ChatTemplate("".join(text)).render(CHAT), str)
        except TemplateError as error:
            assert len(json.dumps(str(error))) < 1000
