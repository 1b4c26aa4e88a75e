"""Chat templates: render a conversation as the text that a model was trained with.

A template is an untrusted Jinja program from a model's file. It runs in Jinja's sandbox, in a
separate process with limits of CPU time and memory. It gets what transformers gives it: messages,
add_generation_prompt, bos_token, eos_token, raise_exception(message), strftime_now(format), and the
loop controls.
"""

import atexit
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from toynn.errors import ConfigError, DataError, GGUFError
from toynn.system import platform

QUOTED = re.compile(r"""(["'])([\w-]+)\1""")
Message = Mapping[str, Any]  # role and content at least
#: What data sets call a thought; templates read the first, gpt-oss's the second.
THOUGHTS = ("reasoning_content", "thinking", "reasoning")

#: Limits of rendering one conversation: seconds of the CPU, bytes of the process, characters of the
#: text. The limit is CPU time and not wall time, which would depend on how busy the machine is. The
#: sandbox has nothing to wait for, so a template that does not end uses the CPU.
SECONDS, MEMORY, CHARACTERS = 5, 2**29, 2**25
ENDED = 3  # conversations that a template may fail to end on; then it renders no other


def needed(library: str) -> Any:
    """Import a library of the text extra. Raises ConfigError if it is missing."""
    try:
        return import_module(library)
    except ImportError as error:
        raise ConfigError(
            f"this needs the {library} library, which is not installed: pip install tokenizers "
            "sentencepiece jinja2, all that texts and chats need"
        ) from error


class ChatTemplate:
    """A chat template, compiled in the renderer process.

    Raises GGUFError for an invalid template, DataError for messages that are not plain values.
    """

    def __init__(self, path: Path, source: str, bos_token: str, eos_token: str) -> None:
        needed("jinja2")
        self._path, self._source = path, source
        self._names = frozenset(name for _, name in QUOTED.findall(source))
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._ended = 0
        try:
            self._run((), ())
        except _Failed as error:
            line = "" if error.line is None and error.bounds else f", line {error.line or '?'}"
            raise GGUFError(f"{path}: tokenizer.chat_template{line}: {error}") from None

    @property
    def names(self) -> frozenset[str]:
        """All quoted words of the program; the roles that it distinguishes are among them."""
        return self._names

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """Return the text of a conversation. Raises what `render_beginnings` does."""
        return self.render_beginnings(messages, [(len(messages), add_generation_prompt)])[0]

    def render_beginnings(
        self,
        messages: Sequence[Message],
        beginnings: Sequence[tuple[int, bool]],
        tools: Sequence[Message] | None = None,
    ) -> tuple[str, list[tuple[int, bool]]]:
        """Render several beginnings of a conversation.

        A beginning is (number of messages, whether to add a generation prompt). Return the text of
        the first one; and for each other one its length, and whether the first text begins with it:
        (0, False) if the template refuses it. ``tools`` are descriptions of functions that the
        template may show the model. Raises GGUFError with the template's message, and DataError for
        messages that are not plain values: strings, numbers, lists, mappings.
        """
        try:
            text, *others = self._run([_thinking(each) for each in messages], beginnings, tools)
        except _Failed as error:
            raise GGUFError(
                f"{self._path}: tokenizer.chat_template refuses the conversation: {error}"
            ) from None
        return text, [(length, begins) for length, begins in others]

    def _run(
        self,
        messages: Sequence[Message],
        beginnings: object,
        tools: Sequence[Message] | None = None,
    ) -> list[Any]:
        request: dict[str, Any] = {"source": self._source, "messages": messages}
        request |= {"beginnings": beginnings, "tools": tools}
        try:
            frame = json.dumps({**request, "tokens": self._tokens}).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"messages: expected plain values; {error}") from error
        if self._ended >= ENDED:
            raise _Failed(f"it did not end on {ENDED} others, so it renders no more", bounds=True)
        try:
            return _renderer().ask(frame)
        except _Failed as error:
            self._ended += error.bounds
            raise


def _thinking(message: Message) -> Message:
    """Return a message whose thought has the names that templates read, as transformers does."""
    thought = next((message[key] for key in THOUGHTS if message.get(key) is not None), None)
    named = {"thinking": thought, **message, "reasoning_content": thought}
    return dict(message) if thought is None else named


class _Failed(Exception):
    """A template that cannot be compiled or rendered."""

    def __init__(self, why: str, line: int | None = None, *, bounds: bool = False) -> None:
        super().__init__(why)
        self.line, self.bounds = line, bounds


class _Renderer:
    """The process that renders; it is started when needed, and again if it died."""

    def __init__(self, inherited: "_Renderer | None" = None) -> None:
        self.owner = os.getpid()
        self._inherited = inherited  # kept alive: its process belongs to the parent
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._limits: dict[str, int] = {}

    def ask(self, request: bytes) -> list[Any]:
        """Return the answer to a request: see chat_child.main. Raises _Failed."""
        limits = {"seconds": SECONDS, "memory": MEMORY, "characters": CHARACTERS}
        with self._lock:
            child = self._running(limits)
            answer = None
            try:
                with contextlib.suppress(BrokenPipeError):
                    _send(child, request)
                    answer = _receive(child)
                if answer is None:
                    child.wait()  # it is ending by itself: its exit status says why
            finally:  # also if the wait is interrupted
                if answer is None:
                    self.close()
        if answer is None:
            raise _Failed(_ending(child.returncode), bounds=True)
        texts, why, line = json.loads(answer)
        if texts is None:
            raise _Failed(why, line)
        return list(texts)

    def kill(self) -> None:
        """Kill the process while another thread waits for its answer."""
        child = self._child
        if child is not None and self.owner == os.getpid():
            child.kill()

    def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None and self.owner == os.getpid():
            child.kill()
            child.communicate()

    def _running(self, limits: dict[str, int]) -> "subprocess.Popen[bytes]":
        if self._child is not None and self._child.poll() is None and self._limits == limits:
            return self._child
        self.close()
        program = Path(__file__).with_name("chat_child.py")
        child = self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", os.fspath(program)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            **platform.new_group(),  # Ctrl-C must not reach it
        )
        self._limits = limits
        path = [os.path.abspath(each) for each in sys.path]
        seam = {"platform": platform.__file__}
        _send(child, json.dumps({"path": path, **seam, **limits}).encode())
        return child


def _ending(status: int) -> str:
    """Return why a process gave no answer."""
    if platform.time_is_over(status):
        return f"it takes more than {SECONDS} seconds of the CPU"
    if status == -9:
        return "its process was killed, perhaps since memory ran out"
    return f"its process ended (exit status {status})"


class Renderers:
    """Renderers for threads: the first thread uses the shared one, each other thread its own.

    The shared renderer is never killed, since a thread outside may be waiting for it.
    """

    def __init__(self) -> None:
        self._made: list[_Renderer] = []

    def begin(self) -> None:
        """Give this thread its renderer."""
        self._made.append(_Renderer() if self._made else _renderer())
        _own.renderer = self._made[-1]

    def kill(self) -> None:
        """Kill all renderers but the shared one, so that no thread waits for them."""
        for each in self._made[1:]:
            each.kill()

    def close(self) -> None:
        """End all renderers but the shared one; their threads have ended."""
        for each in self._made[1:]:
            each.kill()
        for each in self._made[1:]:
            each.close()


_the_renderer: _Renderer | None = None
_own = threading.local()  # .renderer: of a thread that has its own


def _renderer() -> _Renderer:
    """Return this thread's renderer, or the shared one; a forked child makes its own."""
    renderer: _Renderer | None = getattr(_own, "renderer", None)
    if renderer is not None and renderer.owner == os.getpid():
        return renderer
    global _the_renderer
    if _the_renderer is None or _the_renderer.owner != os.getpid():
        _the_renderer = _Renderer(_the_renderer)
        atexit.register(_the_renderer.close)
    return _the_renderer


def _send(child: "subprocess.Popen[bytes]", frame: bytes) -> None:
    assert child.stdin is not None
    rest = memoryview(len(frame).to_bytes(8, "little") + frame)
    while rest:
        rest = rest[os.write(child.stdin.fileno(), rest) :]


def _receive(child: "subprocess.Popen[bytes]") -> bytes | None:
    """Return the next frame; None if the process ends."""
    assert child.stdout is not None
    received, length = bytearray(), 8
    while len(received) < length:
        part = os.read(child.stdout.fileno(), 2**20)
        received += part
        if not part:
            return None
        if length == 8 and len(received) >= 8:
            length += int.from_bytes(received[:8], "little")
    return bytes(received[8:])
