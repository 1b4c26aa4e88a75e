"""Run chat templates in a process that may crash: `python -I chat_child.py`.

It reads requests from stdin and writes answers to stdout, as frames: 8 bytes of length, then JSON.
It imports Jinja and only one file of toynn, so that it starts quickly. It limits itself: a template
that needs too much memory gets MemoryError, one that needs too much CPU time ends the process.
"""

import functools
import json
import runpy
import sys
from collections.abc import Callable
from datetime import datetime
from importlib import import_module
from typing import Any, NoReturn

#: What transformers gives a template without documents.
NOTHING = {"documents": None}
Render = Callable[..., str]


def main() -> None:
    """Answer requests until stdin ends.

    The first frame has limits and the module path. Each other one has a template's source,
    messages, and beginnings to render: [number of messages, add_generation_prompt]. An answer is
    [texts, None, None], or [None, why, line]. The first of texts is a string. The others are
    [length, whether the first text begins with it]: as strings, they would grow with the square of
    a conversation.
    """
    limits = _read()
    limit = runpy.run_path(limits["platform"])["limit"]
    sys.path[:] = limits["path"]
    import_module("jinja2.ext")
    import_module("jinja2.sandbox")
    limit(memory=limits["memory"])
    while (request := _read()) is not None:
        limit(seconds=limits["seconds"])
        try:
            answer: list[Any] = [_render(**request, characters=limits["characters"]), None, None]
        except MemoryError:
            answer = [None, f"it takes more than {limits['memory'] >> 20} MiB of memory", None]
        except Exception as error:  # an unknown program may raise anything
            answer = [None, str(error)[:300], getattr(error, "lineno", None)]
        _write(answer)


def _render(
    source: str,
    messages: list[Any],
    beginnings: list[tuple[int, bool]],
    tokens: dict[str, str],
    characters: int,
    tools: list[Any] | None = None,
) -> list[Any]:
    """Return the text of the first beginning, and the facts about the others.

    A beginning that the template refuses has no text: [0, False].
    """
    render, texts = _compiled(source), list[Any]()
    for count, prompt in beginnings:
        some = messages[:count]
        arguments = {"add_generation_prompt": prompt, "tools": tools, **NOTHING, **tokens}
        try:
            text = render(messages=some, **arguments)
        except MemoryError:
            raise
        except Exception:  # such as an answer without a question, which does follow
            if not texts:
                raise
            texts.append([0, False])
            continue
        if len(text) > characters:
            raise ValueError(f"its text has {len(text)} characters")
        texts.append([len(text), texts[0].startswith(text)] if texts else text)
    return texts


def _read() -> Any:
    """Read a request; None at the end."""
    length = sys.stdin.buffer.read(8)
    return json.loads(sys.stdin.buffer.read(int.from_bytes(length, "little"))) if length else None


def _write(answer: list[Any]) -> None:
    frame = json.dumps(answer).encode()
    sys.stdout.buffer.write(len(frame).to_bytes(8, "little") + frame)
    sys.stdout.buffer.flush()


@functools.lru_cache(maxsize=8)
def _compiled(source: str) -> Render:
    """Compile a template. Raises Jinja's errors, or Python's if it is nested too deep."""
    jinja2, sandbox = import_module("jinja2"), import_module("jinja2.sandbox")
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _generation()],
    )

    def refuse(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": refuse, "strftime_now": _now}
    render: Render = environment.from_string(source).render
    return render


def _now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any
) -> str:
    """Return plain JSON: Jinja's own filter escapes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _generation() -> type:
    """Return an extension for {% generation %}, which renders its contents unchanged."""
    nodes = import_module("jinja2.nodes")
    extension: Any = import_module("jinja2.ext").Extension

    class Generation(extension):  # type: ignore[misc]
        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    return Generation


if __name__ == "__main__":
    main()
