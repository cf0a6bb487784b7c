"""`fulgurite chat` and `fulgurite generate`: text from a language model, at the terminal.

In: a Hugging Face folder or a GGUF file, and what the user types. Out: the answer on standard
output as it is made; tokens per second and everything else on standard error.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..models.generate import Generator
    from ..models.sampling import SamplingOptions
    from ..models.templates import ChatTemplate

HELP = """  /help          this list
  /system TEXT   begin again with this system prompt
  /reset         forget the conversation
  /exit          leave (or Ctrl-D); Ctrl-C stops an answer"""


def add_commands(commands: Any) -> None:
    """Add `chat` and `generate` to the command line."""
    chat = commands.add_parser(
        "chat",
        help="talk with a language model: fulgurite chat model.gguf",
        description="Talk with a language model from a GGUF file or a Hugging Face folder. Type a "
        "line, read the answer as it is made; /help lists what else can be typed.",
    )
    add_model(chat)
    add_draft(chat)
    chat.add_argument("--system", metavar="TEXT", help="what the model is told before you speak")
    chat.add_argument("--template", metavar="FILE", help="a chat template instead of the model's")
    add_sampling(chat, 1024)
    chat.set_defaults(run=guarded(_chat))
    generate = commands.add_parser(
        "generate",
        help="let a language model go on with a text: fulgurite generate model.gguf -p 'Once'",
        description="Write what a language model thinks comes after a text.",
    )
    add_model(generate)
    add_draft(generate)
    generate.add_argument("text", nargs="?", help="how it begins")
    generate.add_argument("-p", "--prompt", metavar="TEXT", help="the same")
    add_sampling(generate, 128)
    generate.set_defaults(run=guarded(_generate))


def add_sampling(parser: argparse.ArgumentParser, most: int) -> None:
    """The options that say how tokens are chosen."""
    group = parser.add_argument_group("how tokens are chosen")
    group.add_argument(
        "-n", "--max-tokens", type=int, default=most, help=f"stop after so many ({most})"
    )
    group.add_argument(
        "-t", "--temperature", type=float, default=0.8,
        help="0 takes the most likely token, larger is bolder (0.8)",
    )  # fmt: skip
    group.add_argument("--top-k", type=int, default=40, help="only the k most likely (40; 0: all)")
    group.add_argument(
        "--top-p", type=float, default=0.95, help="only the likely ones with this share (0.95)"
    )
    group.add_argument(
        "--min-p", type=float, default=0.0, help="only those with this part of the best's chance"
    )
    group.add_argument(
        "--repetition-penalty", type=float, default=1.0, help="over 1: less of what came (1)"
    )
    group.add_argument("--stop", action="append", default=[], help="end before this text")
    group.add_argument("--seed", type=int, help="the same number gives the same text")


def sampling(arguments: argparse.Namespace) -> SamplingOptions:
    """The options as the command line has them."""
    from ..models.sampling import SamplingOptions

    a = arguments
    return SamplingOptions(
        max_tokens=a.max_tokens, temperature=a.temperature, top_k=a.top_k, top_p=a.top_p,
        min_p=a.min_p, repetition_penalty=a.repetition_penalty, stop=tuple(a.stop), seed=a.seed,
    )  # fmt: skip


def add_model(parser: argparse.ArgumentParser) -> None:
    """The options that say which model."""
    parser.add_argument("path", help=".gguf file, or folder with config.json")
    parser.add_argument("--adapter", metavar="FOLDER", help="weights of `fulgurite finetune`")
    parser.add_argument("--activation-bytes", type=int, choices=(1, 2, 3), default=1,
                        help="of what packed weights are multiplied with: 1 is quickest and as "
                        "good as llama.cpp, 3 is as good as float32 (1)")  # fmt: skip


def add_draft(parser: argparse.ArgumentParser) -> None:
    """The option of speculative decoding."""
    parser.add_argument("--draft", metavar="PATH", help="a smaller model with the same tokens that "
                        "guesses: the text is the same")  # fmt: skip


def draft_of(arguments: argparse.Namespace) -> Any:
    """The model that guesses, if there is one."""
    from ..models import load

    return load(arguments.draft) if arguments.draft else None


def model_of(arguments: argparse.Namespace) -> Any:
    """The model that the options ask for."""
    from ..models import load

    model = load(arguments.path, activation_bytes=arguments.activation_bytes)
    if arguments.adapter:
        from ..models.finetune import apply

        apply(model, arguments.adapter)
    return model


def guarded(run: Any) -> Any:
    """The command, with errors of ours as text and Ctrl-C as an end."""

    def checked(arguments: argparse.Namespace) -> int:
        from ..errors import FulguriteError

        try:
            code: int = run(arguments)
        except FulguriteError as error:
            hint = f"\n  try: {error.hint}" if error.hint else ""
            print(f"fulgurite: {error.what}{hint}", file=sys.stderr)
            return 1
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            print(f"fulgurite: {what}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print(file=sys.stderr)
            return 130
        return code

    return checked


def _generate(arguments: argparse.Namespace) -> int:
    from ..models import Generator

    options = sampling(arguments)
    text = _prompt(arguments)
    model = model_of(arguments)
    ids = model.encode(text)
    generator = Generator(model, draft_of(arguments))
    generator.check(ids)
    print(text, end="", flush=True)
    return 130 if _stream(generator, ids, options)[1] else 0


def _prompt(arguments: argparse.Namespace) -> str:
    """How the text begins: what is given, or what is piped in."""
    from ..errors import ArgumentError

    given = [text for text in (arguments.text, arguments.prompt) if text is not None]
    if len(given) == 1:
        return _whole_text(str(given[0]))
    if given or sys.stdin.isatty():
        what = "is there twice" if given else "is missing"
        raise ArgumentError(f"how the text begins {what}", "fulgurite generate PATH 'Once upon'")
    try:
        return _whole_text(sys.stdin.read())
    except UnicodeDecodeError:
        raise _not_utf8("what is piped in") from None


def _not_utf8(what: str) -> Exception:
    from ..errors import ArgumentError

    return ArgumentError(f"{what} is not UTF-8", "give text as UTF-8")


def _whole_text(text: str) -> str:
    """The text, with a sign for each byte that was none of UTF-8, and a warning."""
    whole = "".join("\ufffd" if "\ud800" <= one <= "\udfff" else one for one in text)
    if whole != text:
        print("[bytes that are not UTF-8 are replaced]", file=sys.stderr)
    return whole


def read_template(path: str | None) -> str | None:
    """The chat template of a file, if one is given."""
    if not path:
        return None
    from ..models.tokens import read_text

    return read_text(path)


def _stream(generator: Generator, ids: list[int], options: SamplingOptions) -> tuple[str, bool]:
    """Print tokens as they come, and how fast they did; their text, and if Ctrl-C ended it."""
    start = time.perf_counter()
    first, count, parts, is_stopped = start, 0, list[str](), False
    try:
        for token in generator.generate(ids, options):
            first = first if count else time.perf_counter()
            count += 1
            parts.append(token.text)
            print(token.text, end="", flush=True)
    except KeyboardInterrupt:
        is_stopped = True
        print(" [stopped]", end="")
    print(flush=True)
    end = time.perf_counter()
    rate = f", {(count - 1) / (end - first):.1f} tokens/s" if count > 1 and end > first else ""
    print(
        f"[{len(ids)} tokens read, first token after {first - start:.2f} s, {count} written{rate}]",
        file=sys.stderr,
    )
    return "".join(parts), is_stopped


def _chat(arguments: argparse.Namespace) -> int:
    from ..models import Generator
    from ..models.templates import template_for

    source = read_template(arguments.template)
    options = sampling(arguments)
    model = model_of(arguments)
    template = template_for(model, source)
    if template.is_plain:
        print("[no chat template in the file: a plain one is used]", file=sys.stderr)
    print(f"[{model!r}; /help for help]", file=sys.stderr)
    generator = Generator(model, draft_of(arguments))
    chat = Chat(generator, template, options, arguments.system)
    while True:
        try:
            line = _whole_text(input("> "))
        except UnicodeDecodeError:
            raise _not_utf8("what is typed or piped in") from None
        except EOFError:
            print()
            return 0
        if not chat.say(line.strip()):
            return 0


class Chat:
    """A conversation: what was said, and the commands that begin with a slash."""

    def __init__(
        self,
        generator: Generator,
        template: ChatTemplate,
        options: SamplingOptions,
        system: str | None = None,
    ) -> None:
        from dataclasses import replace

        stop = (*options.stop, "\nuser:") if template.is_plain else options.stop
        self.generator, self.template, self.system = generator, template, system
        self.options = replace(options, stop=stop)
        self.messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        """Forget all but the system prompt."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def say(self, line: str) -> bool:
        """Answer a line, or do what it says; False if it was /exit."""
        from ..errors import FulguriteError

        command, _, rest = line.partition(" ")
        if command in ("/exit", "/quit"):
            return False
        if command == "/system":
            self.system = rest.strip() or None
        if command in ("/reset", "/system"):
            self.reset()
            print("[a new conversation]", file=sys.stderr)
        elif command.startswith("/"):
            unknown = "" if command == "/help" else f"  {command} is no command; there are:\n"
            print(unknown + HELP, file=sys.stderr)
        elif line:
            asked = [*self.messages, {"role": "user", "content": line}]
            try:
                answer = self._answer(asked)
            except FulguriteError as error:  # too long, or the template refuses it
                print(f"[{error.what}; /reset begins anew]", file=sys.stderr)
                return True
            self.messages = [*asked, {"role": "assistant", "content": answer.strip()}]
        return True

    def _answer(self, messages: list[dict[str, str]]) -> str:
        from ..errors import ArgumentError
        from ..models.templates import chat_ids

        model = self.generator.model
        ids = chat_ids(model, self.template, messages)
        if len(ids) >= model.config.context:
            raise ArgumentError(
                f"the conversation has {len(ids)} tokens, the model reads {model.config.context}"
            )
        return _stream(self.generator, ids, self.options)[0]
