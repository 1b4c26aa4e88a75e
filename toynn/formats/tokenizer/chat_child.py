"""The process that runs chat templates, and may crash: `python -I chat_child.py`.

It reads requests from stdin and writes answers to stdout, as frames: 8 bytes of length, JSON. It
imports Jinja, and of toynn one file, so that it starts quickly, and limits itself: a template that
needs more memory gets MemoryError, one that needs more time of the CPU ends the process.
"""

import functools
import json
import runpy
import sys
from collections.abc import Callable
from datetime import datetime
from importlib import import_module
from typing import Any, NoReturn

__all__ = ["main"]

#: What transformers gives a template that is asked for no documents.
NOTHING = {"documents": None}
Render = Callable[..., str]


def main() -> None:
    """Answer requests until stdin ends.

    The first names limits and where modules are; the others a template's source, messages, and
    which of their beginnings to render: [how many, add_generation_prompt] each. An answer is
    [texts, None, None], or [None, why, line]; of texts there is the first, and of each other its
    length and whether the first begins with it: whole, they would be the square of a conversation.
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
        except Exception as error:  # the program is anyone's, and so is its failure
            answer = [None, str(error)[:10_000], getattr(error, "lineno", None)]
        _write(answer)


def _render(
    source: str,
    messages: list[Any],
    beginnings: list[tuple[int, bool]],
    tokens: dict[str, str],
    characters: int,
    tools: list[Any] | None = None,
) -> list[Any]:
    """Return the text of a conversation, and what is to be known of its beginnings."""
    render, texts = _compiled(source), list[Any]()
    for count, prompt in beginnings:
        some = messages[:count]
        given = {"add_generation_prompt": prompt, "tools": tools, **NOTHING, **tokens}
        text = render(messages=some, **given)
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
    """Compile a template. Raises what Jinja does, or Python where it is nested too deep."""
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


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """Return JSON as it is: Jinja's own filter escapes it for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _generation() -> type:
    """Return an extension for {% generation %}: what stands in it is rendered as if it did not."""
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
