"""Convert the example formats of other programs to toynn's.

    Alpaca     instruction, input, output                        prompt, completion
    ShareGPT   conversations: [{from, value}, ...], system       messages
    OpenAI     messages with parts, tools and tool calls         messages, tools

The prompt is the one that Alpaca was trained with. Source: Taori et al. 2023, Stanford Alpaca.
"""

from collections.abc import Collection, Mapping
from typing import Any

from toynn.errors import DataError

#: The keys that tell which format a row has.
FORMS = (
    ("prompt", "completion"),
    ("messages",),
    ("conversations",),
    ("instruction", "output"),
    ("text",),
)
#: All keys that are read, in any format.
READ = frozenset(key for form in FORMS for key in form)
READ |= {"tools", "system", "input", "chosen", "rejected", "label"}


class _Every(frozenset[str]):
    """All names, for readers that keep every column."""

    def __contains__(self, name: object) -> bool:
        return True


EVERY = _Every()
_INTRO = "Below is an instruction that describes a task"
_PAIRED = ", paired with an input that provides further context"
_ASK = ". Write a response that appropriately completes the request.\n\n"
#: Roles by the value of ShareGPT's "from", including what other programs write there.
ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}


def from_alpaca(where: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the prompt and completion of an instruction and its optional input.

    Raises DataError for a field that is not a string.
    """
    for key in ("instruction", "input", "output"):
        if not isinstance(row.get(key, ""), str | None):
            raise DataError(f"{where}: {key}: expected a text; got {row[key]!r:.80}")
    instruction, context = row["instruction"], row.get("input") or ""
    prompt = f"{_INTRO}{_PAIRED if context else ''}{_ASK}### Instruction:\n{instruction}\n\n"
    prompt += f"### Input:\n{context}\n\n" if context else ""
    return {"prompt": f"{prompt}### Response:\n", "completion": row["output"]}


def from_sharegpt(where: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the messages of a conversation. Raises DataError for a malformed turn."""
    turns = row["conversations"]
    if not isinstance(turns, list) or not turns:
        raise DataError(f"{where}: conversations: expected a list of turns; got {turns!r:.80}")
    messages = []
    if row.get("system"):
        messages.append({"role": "system", "content": row["system"]})
    for index, turn in enumerate(turns):
        if isinstance(turn, dict) and {"role", "content"} <= turn.keys():
            messages.append(turn)
            continue
        if not isinstance(turn, dict) or not {"from", "value"} <= turn.keys():
            raise DataError(
                f"{where}: turn {index}: expected from and value; got "
                f"{', '.join(turn) if isinstance(turn, dict) else type(turn).__name__}"
            )
        if turn["from"] not in ROLES:
            raise DataError(
                f"{where}: turn {index}: from: expected one of {', '.join(ROLES)}; got "
                f"{turn['from']!r:.80}"
            )
        messages.append({"role": ROLES[turn["from"]], "content": turn["value"]})
    return {"messages": messages}


def checked_calls(where: str, messages: Any) -> Any:
    """Return messages with string contents, after checking that every tool call has its result.

    The parts of a content are joined; a missing content next to tool calls becomes "". Raises
    DataError for pictures, and for a call that is not followed by its result.
    """
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        return messages  # the reader says what is wrong
    checked = []
    for index, message in enumerate(messages):
        at = f"{where}: message {index}"
        fields = {k: v for k, v in message.items() if v is not None or k == "content"}
        calls = fields.get("tool_calls")
        if calls is not None and (not isinstance(calls, list) or not calls):
            raise DataError(f"{at}: tool_calls: expected a list of calls; got {calls!r:.80}")
        for number, call in enumerate(calls or ()):
            _check_call(f"{at}: tool call {number}", call)
        content = fields.get("content")
        if isinstance(content, list):
            fields["content"] = "".join(_text_of(at, part) for part in content)
        elif content is None and calls:
            fields["content"] = ""
        checked.append(fields)
        behind = messages[index + 1 : index + 1 + len(calls or ())]
        roles = [other.get("role") for other in behind if isinstance(other, dict)]
        if calls and behind and (len(behind) < len(calls) or set(roles) != {"tool"}):
            raise DataError(
                f"{at}: {len(calls)} tool calls: expected as many results (messages of the role "
                f"tool) after it; got {', '.join(map(str, roles)) or 'nothing'}"
            )
    return checked


def _check_call(at: str, call: Any) -> None:
    """Refuse a call without a function's name and arguments, in OpenAI's wrapper or bare."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not {"name", "arguments"} <= function.keys():
        raise DataError(
            f'{at}: expected {{"function": {{"name": ..., "arguments": ...}}}}; got {call!r:.80}'
        )


def _text_of(at: str, part: Any) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise DataError(f"{at}: content: expected parts of type text; got {kind!r}")


def renamed(
    where: str,
    row: Mapping[str, Any],
    columns: Mapping[str, str],
    read: Collection[str] = READ,
) -> Mapping[str, Any]:
    """Return a row with its columns renamed: ``columns`` has new names, each with the old one.

    Other columns that are ``read`` keep their names, unless a renamed column takes the name. If the
    renamed columns alone make up a format, columns of any format are dropped, so that the format is
    not ambiguous. Raises DataError for a column that the row lacks.
    """
    for new, column in columns.items():
        if column not in row:
            names = ", ".join(map(repr, list(row)[:8])) or "none"
            swapped = f"; type --columns {column}={new}" if new in row else ""
            raise DataError(f"{where}: expected a column {column!r}; got {names}{swapped}")
    named = {new: row[old] for new, old in columns.items()}
    whole = any(named.keys() >= set(form) for form in FORMS)
    hidden = {key for form in FORMS for key in form} if whole else set()
    others = row.keys() - set(columns.values()) - hidden
    return {name: row[name] for name in row if name in others and name in read} | named
