"""Turn conversations into ids, in parts: the assistant's parts have loss, the rest has none.

The chat template renders the text. Special tokens count where the template wrote them, not where a
message did. An answer ends with a token that ends turns. In GLM's templates that is the first token
of the next message, so it is added after the last answer too. Many conversations are rendered on
all cores, and their texts encoded together.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from itertools import dropwhile, takewhile
from typing import Any, NamedTuple

from toynn.errors import DataError, GGUFError
from toynn.formats.tokenizer.ahead import in_order
from toynn.formats.tokenizer.chat import ChatTemplate, Message
from toynn.formats.tokenizer.pieces import Algorithm, Pieces
from toynn.formats.tokenizer.vocab import TokenType, Vocab
from toynn.system.printing import strings_in

#: Usual roles of chat templates; a template may name others, such as ipython.
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
#: Roles whose messages may stand before an answer that nobody asked for.
SILENT = ("system", "developer")
#: Names of roles in some data sets.
MEANT = {"human": "user", "prompter": "user", "gpt": "assistant", "bot": "assistant"}
GUARDS = [chr(code) for code in range(0xFDD0, 0xFDF0)]  # noncharacters, so not in ordinary text
NEAR = 0.6  # similarity, of 1, from which a name is suggested
TOGETHER = 2**18  # characters that are encoded at once

#: Messages, and tools for the template, or None.
Talk = tuple[Sequence[Message], Sequence[Message] | None]


class Turn(NamedTuple):
    """A part of a conversation: its ids, and whether they have loss."""

    ids: list[int]
    trained: bool


class _Rendered(NamedTuple):
    texts: list[str]  # alternately without loss and with loss
    guard: str


def unknown_role(role: object, named: Collection[str] = ()) -> str:
    """Return the error for an unknown role, with a suggestion; "" for a known role.

    ``named`` are the roles that the chat template names, besides the usual ones.
    """
    if role in ROLES or role in named:
        return ""
    name = str(role).strip().lower()
    near = get_close_matches(MEANT.get(name, name), ROLES, 1, NEAR)
    return (
        f"expected {', '.join(ROLES)}, or one that the chat template names; got {role!r:.80}"
        f"{f': did you mean {near[0]}?' if near else ''}"
    )


class Conversations:
    """Encodes conversations with the vocabulary and the template of a file."""

    def __init__(
        self, vocab: Vocab, cutter: Pieces, model: Algorithm, template: Callable[[], ChatTemplate]
    ) -> None:
        self._vocab, self._cutter, self._model = vocab, cutter, model
        self._template = template
        self._special_ids = frozenset(id for _, id in vocab.specials)
        self._begins: dict[str, str] = {}  # by role: see _next_begins

    def prompt(self, messages: Sequence[Message], add_generation_prompt: bool) -> list[int]:
        """Return the ids of messages.

        Raises GGUFError, and DataError for text that is not Unicode and for an unknown role.
        """
        messages, guard = self._guarded(messages)
        text = self._template().render(messages, add_generation_prompt)
        return self._begun(self._cutter.encoded(self._model, text, True, False, guard))

    def turns(self, talk: Talk) -> list[Turn]:
        """Return the ids of a conversation in parts. Raises GGUFError and DataError."""
        return self._encoded([self._rendered(talk)])[0]

    def all_turns(self, talks: Iterable[Talk]) -> Iterator[list[Turn]]:
        """Yield what ``turns`` returns for many talks. Raises its errors and those of ``talks``."""
        waiting: list[_Rendered] = []
        length = 0
        try:
            for rendered in in_order(self._rendered, talks):
                waiting.append(rendered)
                length += sum(map(len, rendered.texts))
                if length >= TOGETHER:
                    yield from self._encoded(waiting)
                    waiting, length = [], 0
        except Exception:
            yield from self._encoded(waiting)  # an earlier error comes first
            raise
        yield from self._encoded(waiting)

    def _rendered(self, talk: Talk) -> _Rendered:
        """Return a conversation as texts; every second one is the assistant's."""
        messages, guard = self._guarded(talk[0])
        ends, texts = [0], []
        answers = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
        first = next((i for i, each in enumerate(messages) if each["role"] not in SILENT), 0)
        asked = next(
            (i for i, each in enumerate(messages) if each["role"] == "user"), len(messages)
        )
        # Templates refuse a prompt without messages, or begin it differently: none for the first.
        borders = [
            side for i in answers for side in ((i + (i == first), i != first), (i + 1, False))
        ]
        whole, begun = self._template().render_beginnings(
            messages, [(len(messages), False), *borders], talk[1]
        )
        behind = 0  # of the previous answer
        for index, (at, begins), end in zip(answers, begun[::2], begun[1::2], strict=True):
            if index == first or (index < asked and not begins):
                header = self._header((messages[:index], talk[1]), messages[index + 1 :])
                header = header.removesuffix(self._lead)
                at = len(header) if whole.startswith(header) else -1
            elif not begins:
                at = self._begin_of(whole, ends[-1], (messages[:index], talk[1]), behind)
            upto = end[0] if end[1] else self._end_behind(whole, at)[1]
            if not ends[-1] <= at <= upto:
                raise GGUFError(
                    f"{self._vocab.path}: tokenizer.chat_template: cannot tell which part "
                    f"message {index} is: the template writes the messages up to it differently "
                    f"when others follow; split the conversation after its first answer, or "
                    f"train on text"
                )
            behind = index + 1
            ended = self._end_behind(whole, at)
            if upto == len(whole) and ended[0] < 0:
                whole += self._next_begins("tool" if messages[index].get("tool_calls") else "user")
                ended = self._end_behind(whole, at)
            if ended[0] == upto:  # the next message's first token ends this one
                upto = ended[1]
            else:  # a token that a template writes behind the end is not the answer's
                marks = [mark.end() for mark in self._ends.finditer(whole, at, upto)]
                upto = marks[-1] if marks and whole[marks[-1] : upto].strip() else upto
            for border in (at, upto):
                texts.append(whole[ends[-1] : border])
                ends.append(border)
        return _Rendered([*texts, whole[ends[-1] :]], guard)

    def _header(self, before: Talk, after: Sequence[Message] = ()) -> str:
        """Return the text up to the content of an answer between these messages."""
        messages, tools = before
        behind = list(dropwhile(lambda each: each["role"] == "tool", after))  # it calls none
        texts: list[str] = []
        for said in "ab":
            talk = [*messages, {"role": "assistant", "content": said}, *behind]
            texts += self._template().render_beginnings(talk, [(len(talk), False)], tools)[:1]
        same = takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False))
        return "".join(each for each, _ in same)

    @cached_property
    def _lead(self) -> str:
        """The text between a question's generation prompt and the content of its answer.

        It has loss; an empty thought is an example.
        """
        question = [{"role": "user", "content": "a"}]
        try:
            header = self._header((question, None))
            prompt = self._template().render(question, True)
        except GGUFError:  # the template wants more than a question
            return ""
        begun = header.startswith(prompt)
        at = len(prompt) if begun else self._begin_of(header, 0, (question, None), 0)
        return header[at:] if at >= 0 else ""

    def _begin_of(self, whole: str, end: int, before: Talk, behind: int) -> int:
        """Return where an answer begins, if the text does not begin with its prompt; else -1.

        The generation prompt may open a thought that the template leaves out of old answers. Then
        the answer begins behind the special tokens and lines of the prompt that the text has, too.
        The template may also leave thoughts out of earlier answers. So the messages since the
        previous answer are looked for where it ends: at ``end`` of the text, and before message
        ``behind``.
        """
        messages, tools = before
        borders = [(len(messages), True), (len(messages), False), (behind, False)]
        asked, ((plain, begins), *earlier) = self._template().render_beginnings(
            messages, borders if behind else borders[:2], tools
        )
        marks = [mark.end() for mark in self._marks.finditer(asked, plain)]
        marks = marks if plain < len(asked) else [plain]
        since = at = 0
        if begins and earlier and not whole.startswith(asked[:plain]):
            since, begins = earlier[0]
            ended = self._ends.match(asked, since)  # a message's first token may end the answer
            since = ended.end() if ended else since
            at = whole.find(asked[since : min(marks, default=plain)], end)
            begins &= at >= 0 and not whole[end:at].strip()
        had = [mark for mark in marks if begins and whole.startswith(asked[since:mark], at)]
        return at + max(had) - since if had else -1

    def _end_behind(self, text: str, begin: int) -> tuple[int, int]:
        """Return begin and end of the first token after ``begin`` that ends a turn; else -1."""
        mark = self._ends.search(text, max(begin, 0))
        return mark.span() if mark else (-1, -1)

    @cached_property
    def _ends(self) -> re.Pattern[str]:
        """Find tokens that end a turn."""
        return _any_of(self._vocab.tokens[id] for id in self._vocab.eog)

    @cached_property
    def _marks(self) -> re.Pattern[str]:
        """Find special tokens and ends of lines."""
        return _any_of([*(text for text, _ in self._vocab.specials), "\n"])

    def _next_begins(self, role: str) -> str:
        """Return the token that begins a message after an answer, if it ends a turn; else ""."""
        if role not in self._begins:
            talk = [{"role": each, "content": "a"} for each in ("user", "assistant", role)]
            try:
                text, [(at, begins)] = self._template().render_beginnings(
                    talk, [(3, False), (2, False)]
                )
            except GGUFError:  # the template has no such role
                text, at, begins = "", 0, False
            start, end = self._end_behind(text, at)
            self._begins[role] = text[start:end] if begins and start == at else ""
        return self._begins[role]

    def _encoded(self, many: Sequence[_Rendered]) -> list[list[Turn]]:
        """Return the turns of conversations; all texts are encoded at once.

        A text continues the one before, unless that ends with a special token. Whether it does is
        guessed from the pieces. If the ids show that a guess was wrong, the texts of that
        conversation are encoded again, one after the other.
        """
        cut = [self._cut(*rendered) for rendered in many]
        asked = [part for texts in cut for pieces in texts for part in pieces if _is_text(part)]
        encoded = iter(self._model.encode_all(asked) if asked else ())
        turns = []
        for rendered, texts in zip(many, cut, strict=True):
            parts: list[list[int]] = []
            as_taken = True
            for pieces in texts:
                if pieces and _is_text(pieces[0]):
                    as_taken &= pieces[0][1] == self._continued(parts)
                parts.append([])
                for part in pieces:
                    parts[-1] += next(encoded) if _is_text(part) else [part[0]]
            if not as_taken:
                parts = self._one_by_one(*rendered)
            parts[0] = self._begun(parts[0])
            turns.append([Turn(ids, k % 2 == 1) for k, ids in enumerate(parts) if ids])
        return turns

    def _cut(self, texts: list[str], guard: str) -> list[list[tuple[Any, bool]]]:
        continues, cut = False, []
        for text in texts:
            cut.append(list(self._cutter.of(text, True, continues, guard)))
            if cut[-1]:
                continues = _is_text(cut[-1][-1]) or self._vocab.prefix_once
        return cut

    def _one_by_one(self, texts: list[str], guard: str) -> list[list[int]]:
        parts: list[list[int]] = []
        for text in texts:
            continued = self._continued(parts)
            parts.append(self._cutter.encoded(self._model, text, True, continued, guard))
        return parts

    def _continued(self, parts: Sequence[list[int]]) -> bool:
        """Return whether the next text continues these parts.

        It does unless they end with a special token, after which a space is added again.
        """
        last = next((ids[-1] for ids in reversed(parts) if ids), None)
        ended = last in self._special_ids and not self._vocab.prefix_once
        return last is not None and not ended

    def _begun(self, ids: list[int]) -> list[int]:
        """Return ids with one BOS in front if the file wants it; templates often write it."""
        bos = self._vocab.bos
        return [bos, *ids] if self._vocab.add_bos and bos is not None and ids[:1] != [bos] else ids

    def _guarded(self, messages: Sequence[Message]) -> tuple[list[Message], str]:
        """Check roles; insert a guard into each control token's text that a message contains.

        The template passes the guard through; encoding drops it after finding special tokens. So
        the ids are those of the original text, without control tokens.
        """
        for index, message in enumerate(messages):
            if wrong := unknown_role(message.get("role"), self._template().names):
                raise DataError(f"message {index}: role: {wrong}")
        said = "\n".join(strings_in(messages))
        types = self._vocab.types
        texts = [
            text
            for text, id in self._vocab.specials
            if types[id] != TokenType.USER_DEFINED and text in said
        ]
        if not texts:
            return list(messages), ""
        guard = next((guard for guard in GUARDS if guard not in said), None)
        if guard is None:
            raise DataError("a conversation contains every one of U+FDD0 to U+FDEF")
        controls = _any_of(texts)

        def broken(value: Any) -> Any:
            if isinstance(value, str):
                return controls.sub(lambda match: guard.join(match[0]) + guard, value)
            if isinstance(value, Mapping):
                return {key: broken(part) for key, part in value.items()}
            return [broken(part) for part in value] if isinstance(value, list) else value

        return [broken(message) for message in messages], guard


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return what finds any of some texts, of two that begin together the longer one."""
    listed = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, listed)) if listed else "(?!)")


def _is_text(part: tuple[Any, bool]) -> bool:
    """Return whether a piece is a text, not the id of a special token."""
    return isinstance(part[0], str)
