"""Chat templates: a conversation as the text that a model was trained with.

A template is a program in Jinja that came with a file from elsewhere, so it runs in Jinja's
sandbox, with what transformers gives it: messages, add_generation_prompt, bos_token, eos_token,
raise_exception(message), strftime_now(format), and the loop controls.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from toynn.errors import ConfigError, GGUFError

__all__ = ["ChatTemplate", "Message", "needed"]

Message = Mapping[str, Any]  # role and content at least


def needed(library: str) -> Any:
    """Import a library of the text extra. Raises ConfigError where it is missing."""
    try:
        return import_module(library)
    except ImportError as error:
        raise ConfigError(
            f'this needs the {library} library, which is not installed: pip install "toynn[text]"'
        ) from error


class ChatTemplate:
    """A template, compiled."""

    def __init__(self, path: Path, source: str, bos_token: str, eos_token: str) -> None:
        jinja2, sandbox = needed("jinja2"), needed("jinja2.sandbox")
        self._path, self._tokens = path, {"bos_token": bos_token, "eos_token": eos_token}
        self._error: type[Exception] = jinja2.TemplateError
        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _generation()],
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": self._raise, "strftime_now": _now}
        try:
            self._template = environment.from_string(source)
        except Exception as error:  # of Jinja's, or of Python's where it is nested too deep
            raise GGUFError(
                f"{path}: tokenizer.chat_template, line {getattr(error, 'lineno', '?')}: {error}"
            ) from error

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """Return the text of a conversation. Raises GGUFError with what the template says."""
        try:
            text: str = self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._tokens,
            )
        except Exception as error:  # the program is anyone's, and so is its failure
            raise GGUFError(
                f"{self._path}: tokenizer.chat_template refuses the conversation: {error}"
            ) from error
        return text

    def _raise(self, message: str) -> NoReturn:
        raise self._error(message)


def _now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """Return JSON as it is: Jinja's own filter escapes it for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _generation() -> type:
    """Return an extension for {% generation %}: what stands in it is rendered as if it did not."""
    nodes = needed("jinja2.nodes")
    extension: Any = needed("jinja2.ext").Extension

    class Generation(extension):  # type: ignore[misc]
        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    return Generation
