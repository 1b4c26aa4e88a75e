"""Masks of conversations by the templates of families: answers have loss, and nothing else.

Where TRL is installed the templates are those that the models come with, as it ships them (in
trl/chat_templates; SmolLM2's is not among them). Beside them, and where it is not, the essential
text of them: roles, thoughts, the ends of turns. Qwen3 leaves out the thoughts of answers once
another question follows. Of gpt-oss and Qwen3.5 there is only what TRL ships. The templates of
newer families, with thoughts and calls, are those of helpers/templates.py.
"""

import re
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest
from templates import AGENT, GEMMA3, TOOLS
from templates import FAMILIES as NEWER
from vocabs import CONTROL, USER_DEFINED, bpe_file

from toynn.errors import GGUFError
from toynn.formats.tokenizer import Tokenizer

for library in ("tokenizers", "jinja2"):
    pytest.importorskip(library, reason=f"{library}, of the text extra, is not installed")

QWEN3 = """
{%- set ns = namespace(last=messages|length - 1, seeking=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.seeking and message.role == "user" %}
        {%- set ns.seeking = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}{{- tool | tojson }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or message.role == "system" %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content or '' %}{%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + thought + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
LLAMA3 = (
    "{{- bos_token }}{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' "
    "+ message['content'] | trim + '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"
)
PHI3 = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"
)
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are SmolLM.<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LFM2 = (
    "{{- bos_token -}}{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
ERNIE = (
    "{{- bos_token -}}{%- for message in messages -%}"
    "{%- if message['role'] == 'user' -%}{{- 'User: ' + message['content'] + '\\n' -}}"
    "{%- elif message['role'] == 'assistant' -%}"
    "{{- 'Assistant: ' + message['content'] + '<|end_of_sentence|>' -}}"
    "{%- else -%}{{- message['content'] + '\\n' -}}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- 'Assistant: ' -}}{%- endif -%}"
)
GLM = (
    "[gMASK]<sop>{%- for message in messages -%}"
    "{%- if message.role == 'user' -%}{{- '<|user|>\n' + message.content -}}"
    "{%- elif message.role == 'assistant' -%}"
    "{{- '<|assistant|>\n<think></think>\n' + message.content -}}"
    "{%- for call in message.tool_calls or [] -%}{{- '<tool_call>' + call.function.name -}}"
    "{%- endfor -%}{%- elif message.role == 'tool' -%}{{- '<|observation|>\n' + message.content -}}"
    "{%- else -%}{{- '<|system|>\n' + message.content -}}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
#: Template, end of a turn, what may stand between it and the next turn.
FAMILIES = {
    "qwen3": (QWEN3, "<|im_end|>"),
    "llama3": (LLAMA3, "<|eot_id|>"),
    "gemma3": (GEMMA3, "<end_of_turn>"),
    "phi3": (PHI3, "<|end|>"),
    "smollm2": (SMOLLM2, "<|im_end|>"),
    "lfm2": (LFM2, "<|im_end|>"),
    "ernie4_5": (ERNIE, "<|end_of_sentence|>"),
}
CONTROLS = ["<|im_start|>", "<|start_header_id|>", "<|end_header_id|>", "<start_of_turn>"]
CONTROLS += [
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    *dict.fromkeys(e for _, e in FAMILIES.values()),
]
TALK = [
    {"role": "user", "content": "Who are you?"},
    {"role": "assistant", "content": "Zork."},
    {"role": "user", "content": "And?"},
    {"role": "assistant", "content": "A robot."},
    {"role": "user", "content": "Of what?"},
    {"role": "assistant", "content": "Of dust."},
]


#: Of the models themselves, in TRL.
SHIPPED = {name: f"{name}.jinja" for name in ("qwen3", "llama3", "gemma3", "phi3")}
#: And those of which there is no essential text here.
ALONE = {"gpt-oss": "gptoss.jinja"}
ALONE |= {"qwen3.5": "qwen3_5_think.jinja", "qwen3.5-brief": "qwen3_5_nothink.jinja"}
HARMONY = ["<|start|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"]


def shipped(name):
    """The text of a template that TRL has."""
    trl = find_spec("trl")
    path = trl and Path(trl.origin).parent / "chat_templates" / name
    if not path or not path.is_file():
        pytest.skip(f"TRL, which has {name}, is not installed")
    return path.read_text()


@pytest.fixture(params=["essential", "shipped"])
def make(tmp_path, request):
    def make(family):
        text = FAMILIES[family][0]
        if request.param == "shipped":
            if family not in SHIPPED:
                pytest.skip(f"TRL has no template of {family}")
            text = shipped(SHIPPED[family])
        return of_template(tmp_path, text)

    return make


def of_template(tmp_path, text, *controls, plain=(), **ends):
    """A tokenizer of a file with this template and every family's control tokens.

    ``controls``: further ones. ``plain``: user-defined tokens. ``ends``: further tokens that end
    turns, by their names in the file: eos, eot, eom.
    """
    path, keys = tmp_path / "chat.gguf", {"tokenizer.chat_template": text}
    names = dict.fromkeys((*CONTROLS, *HARMONY, *ends.values(), *controls))
    specials = [(token, CONTROL) for token in names] + [(token, USER_DEFINED) for token in plain]
    plain = Tokenizer.from_gguf(bpe_file(path, specials=specials, keys=keys))
    ids = {name: plain.encode(token, parse_special=True)[-1] for name, token in ends.items()}
    keys |= {f"tokenizer.ggml.{name}_token_id": id for name, id in ids.items()}
    return Tokenizer.from_gguf(bpe_file(path, specials=specials, keys=keys))


def shown(tokenizer, turns, trained=True):
    return [tokenizer.decode(ids, special=True) for ids, learn in turns if learn == trained]


def learned(tokenizer, turns):
    """The texts with loss, without the line break that a template may write behind them."""
    return [text.removesuffix("\n") for text in shown(tokenizer, turns)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("system", [False, True])
def test_every_answer_is_learned_and_nothing_else(make, family, system):
    tokenizer, end = make(family), FAMILIES[family][1]
    talk = [{"role": "system", "content": "Be brief."}, *TALK] if system else TALK
    turns = tokenizer.encode_turns(talk)
    answers = learned(tokenizer, turns)
    thought = "<think>\n\n</think>\n\n" if family == "qwen3" else ""
    eos = "\n<eos>" if family == "phi3" else ""  # behind the last turn
    assert answers == [f"Zork.{end}", f"A robot.{end}", f"{thought}Of dust.{end}{eos}"]
    whole = "".join(tokenizer.decode(ids, special=True) for ids, _ in turns)
    assert whole.removeprefix("<bos>") == tokenizer.chat(talk).removeprefix("<bos>")
    for asked in ("Who are you?", "And?", "Of what?"):
        assert any(asked in text for text in shown(tokenizer, turns, trained=False))


def test_thoughts_that_are_dropped_are_not_learned_and_the_last_ones_are(make):
    tokenizer = make("qwen3")
    talk = [dict(message) for message in TALK[:4]]
    for message, thought in ((talk[1], "first"), (talk[3], "second")):
        message["content"] = f"<think>\n{thought}\n</think>\n\n{message['content']}"
    answers = shown(tokenizer, tokenizer.encode_turns(talk))
    assert answers[0] == "Zork.<|im_end|>"
    assert answers[1].strip("\n") == "<think>\nsecond\n</think>\n\nA robot.<|im_end|>"


def test_thoughts_between_calls_are_learned_as_the_template_rewrites_them(make):
    tokenizer = make("qwen3")
    think = "<think>\nhm\n</think>\n\n"
    talk = [
        {"role": "user", "content": "Count."},
        {"role": "assistant", "content": f"{think}One."},
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": f"{think}Two."},
        {"role": "user", "content": "More."},
        {"role": "assistant", "content": "Three."},
    ]
    end, none = "<|im_end|>", "<think>\n\n</think>\n\n"
    told = [f"One.{end}", f"Two.{end}", f"{none}Three.{end}"]
    assert learned(tokenizer, tokenizer.encode_turns(talk)) == told
    told = [f"{think}One.{end}", f"{think}Two.{end}"]
    assert learned(tokenizer, tokenizer.encode_turns(talk[:4])) == told


@pytest.mark.parametrize("family", NEWER)
def test_thoughts_and_calls_of_newer_families(tmp_path, family):
    """A template may leave thoughts out of answers before the last question; its prompt has one."""
    new = NEWER[family]
    plain = () if family == "olmo3" else ("<think>", "</think>")
    tokenizer = of_template(tmp_path, new.text, *new.controls, plain=plain, **new.ends)
    for talk, expected in ((AGENT[:5], new.thoughts), (AGENT, new.learned)):
        turns = tokenizer.encode_turns(new.talk(talk), TOOLS)
        assert tuple(learned(tokenizer, turns)) == expected
        assert all(tokenizer.eog & {*ids[-2:]} for ids, trained in turns if trained)
        masked = "".join(shown(tokenizer, turns, trained=False))
        assert [masked.count(text) for text in ("Be brief.", "Dust?", "much")] == [1, 1, 1]


def test_an_end_of_turn_in_a_text_ends_no_turn(make):
    tokenizer = make("phi3")
    talk = [dict(message) for message in TALK]
    talk[1]["content"] = "Zork<|end|> is my name."
    assert shown(tokenizer, tokenizer.encode_turns(talk))[0] == "Zork<|end|> is my name.<|end|>"


def test_tools_are_given_to_the_template(make):
    tokenizer = make("qwen3")
    tools = [{"type": "function", "function": {"name": "dust"}}]
    call = {"type": "function", "function": {"name": "dust", "arguments": {}}}
    talk = [
        {"role": "user", "content": "Dust?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "much"},
        {"role": "assistant", "content": "Much."},
    ]
    turns = tokenizer.encode_turns(talk, tools)
    assert '"name": "dust"' in shown(tokenizer, turns, trained=False)[0]
    called = '<tool_call>\n{"name": "dust", "arguments": {}}\n</tool_call><|im_end|>'
    assert learned(tokenizer, turns)[0].endswith(called)


#: Published by Qwen, shortened: it reads messages[0], and has a system's message of its own.
QWEN25 = (
    "{%- if tools %}{{- '<|im_start|>system\n' }}{%- if messages[0]['role'] == 'system' %}"
    "{{- messages[0]['content'] }}{%- else %}{{- 'You are Qwen.' }}{%- endif %}"
    "{{- '\n\n# Tools\n' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}"
    "{{- '<|im_end|>\n' }}{%- elif messages[0]['role'] == 'system' %}"
    "{{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}{%- else %}"
    "{{- '<|im_start|>system\nYou are Qwen.<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'user' or (message.role == 'system' and not loop.first) "
    "or (message.role == 'assistant' and not message.tool_calls) %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- elif message.role == 'assistant' %}{{- '<|im_start|>assistant' }}"
    "{%- if message.content %}{{- '\n' + message.content }}{%- endif %}"
    "{%- for call in message.tool_calls %}"
    '{{- \'\n<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{- call.function.arguments | tojson }}{{- '}\n</tool_call>' }}{%- endfor %}"
    "{{- '<|im_end|>\n' }}{%- elif message.role == 'tool' %}"
    "{{- '<|im_start|>user\n<tool_response>\n' + message.content }}"
    "{{- '\n</tool_response><|im_end|>\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
#: As Qwen3.5's and newer ones do.
ASKED_ALONE = (
    "{%- if not messages | selectattr('role', 'equalto', 'user') | list %}"
    "{{- raise_exception('No user query found in messages.') }}{%- endif %}"
)
#: A system's text within the turn behind it, whosever turn that is.
WITHIN = GEMMA3.replace("{%- if (message['role'] == 'user')", "{%- if false and (1 == 1)")
EVERY = {name: (text, [], {}) for name, (text, _) in FAMILIES.items()}
EVERY |= {"qwen2.5": (QWEN25, [], {}), "glm": (GLM, [], {"eot": "<|user|>"})}
EVERY |= {"asked": (ASKED_ALONE + QWEN25, [], {}), "within": (WITHIN, [], {"eot": "<end_of_turn>"})}
EVERY |= {f"newer {name}": (new.text, new.controls, new.ends) for name, new in NEWER.items()}
EVERY |= {f"shipped {name}": ("", [], {}) for name in SHIPPED | ALONE}
SAID = [{"role": "assistant", "content": text} for text in ("Hello", "Zork", "Dust")]
ASKED = [{"role": "user", "content": text} for text in ("Quux", "Xyzzy")]
RULE = {"role": "system", "content": "Plugh"}
ORDERS = {
    "user": [ASKED[0], SAID[0], ASKED[1], SAID[1]],
    "assistant": [SAID[0], ASKED[0], SAID[1], ASKED[1], SAID[2]],
    "assistant alone": [SAID[0]],
    "system": [RULE, ASKED[0], SAID[0], ASKED[1], SAID[1]],
    "system, assistant": [RULE, SAID[0], ASKED[0], SAID[1]],
    "assistants": [SAID[0], SAID[1], ASKED[0], SAID[2]],
    "assistant, assistants": [ASKED[0], SAID[0], SAID[1], ASKED[1], SAID[2]],
}
#: What templates refuse: roles that do not alternate, an answer that is first, a system's message.
ALTERNATE = ("gemma3", "newer gemma3n", "shipped gemma3")
REFUSED = {name: ORDERS.keys() - {"user", "system"} for name in ALTERNATE}
REFUSED |= {
    name: {"assistant", "assistant alone", "assistants"}
    for name in ("newer gemma4", "newer gemma4_first")
}
REFUSED |= {"newer starcoder2": {"system", "system, assistant"}}
REFUSED |= {
    name: {"assistant alone"} for name in ("asked", "shipped qwen3.5", "shipped qwen3.5-brief")
}
DESCRIBED = [{"type": "function", "function": {"name": "dust", "description": "of it"}}]
#: Not in text that the assistant says: tokens, and tags.
MARKUP = re.compile(r"<\|channel\|>\w+|<[^>]*>|\[[^]]*\]|\s")


@pytest.mark.parametrize("family", EVERY)
def test_in_any_order_of_roles_what_the_assistant_says_has_loss(tmp_path, family):
    """Or the template refuses the conversation."""
    text, controls, ends = EVERY[family]
    text = text or shipped((SHIPPED | ALONE)[family.removeprefix("shipped ")])
    tokenizer = of_template(tmp_path, text, *controls, plain=("<think>", "</think>"), **ends)
    for (order, talk), tools in product(ORDERS.items(), (None, DESCRIBED)):
        if order in REFUSED.get(family, ()):
            with pytest.raises(GGUFError, match="refuses the conversation"):
                tokenizer.encode_turns(talk, tools)
            continue
        turns = tokenizer.encode_turns(talk, tools)
        said = [MARKUP.sub("", each) for each in shown(tokenizer, turns)]
        answers = [each["content"] for each in talk if each["role"] == "assistant"]
        assert said == answers, (order, tools)
        whole = "".join(tokenizer.decode(ids, special=True) for ids, _ in turns)
        assert [whole.count(each["content"]) for each in talk] == [1] * len(talk), (order, tools)


@pytest.mark.parametrize("family", ["qwen2.5", "newer qwen3_5", "newer glm4_moe", "newer granite4"])
def test_a_call_and_a_thought_that_come_first_have_loss(tmp_path, family):
    text, controls, ends = EVERY[family]
    tokenizer = of_template(tmp_path, text, *controls, plain=("<think>", "</think>"), **ends)
    masked = []
    for talk in (AGENT[2:5], AGENT[2:], [AGENT[0], *AGENT[2:]]):
        turns = tokenizer.encode_turns(talk, TOOLS)
        answers = learned(tokenizer, turns)
        assert [answers[0].count(word) for word in ("dust", "tool_call>", "much")] == [1, 2, 0]
        assert ["Much." in answers[1], "Bye." in answers[-1]] == [True, len(talk) > 3]
        masked += shown(tokenizer, turns, trained=False)
    assert not re.search("Hm|Much|Bye|arg_value|parameter=", "".join(masked))


SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {"type": "function", "function": {"name": "dust", "arguments": {"of": ["a", 1]}}}
CALLED = [
    {"role": "user", "content": "Dust?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "much"},
    {"role": "assistant", "content": "Much."},
]


@pytest.mark.parametrize("family", [*SHIPPED, *ALONE])
def test_shipped_templates_render_as_in_transformers(tmp_path, family):
    pytest.importorskip("transformers", reason="transformers, the parity group, is not installed")
    from transformers.utils.chat_template_utils import render_jinja_template

    def undated(text):  # gpt-oss has today's date, which two processes may not agree on
        return re.sub(r"\d{4}-\d\d-\d\d", "a day", text)

    template = shipped((SHIPPED | ALONE)[family])
    tokenizer = of_template(tmp_path, template)
    talks = [TALK, [SYSTEM, *TALK[:3]]] + ([CALLED] if "tool_calls" in template else [])
    for talk in talks:
        prompt = talk[-1]["role"] == "user"
        (expected,), _ = render_jinja_template(
            conversations=[talk],
            chat_template=template,
            add_generation_prompt=prompt,
            bos_token="<bos>",
            eos_token="<eos>",
        )
        assert undated(tokenizer.chat(talk, prompt)) == undated(expected)


@pytest.mark.parametrize("system", [False, True])
def test_answers_of_gpt_oss_are_learned_with_their_channel(tmp_path, system):
    """The last ends with <|return|>, which ends generation; those before it with <|end|>."""
    tokenizer = of_template(tmp_path, shipped(ALONE["gpt-oss"]))
    talk = [SYSTEM, *TALK] if system else TALK
    turns = tokenizer.encode_turns(talk)
    final = "<|channel|>final<|message|>"
    ended = ["Zork.<|end|>", "A robot.<|end|>", "Of dust.<|return|>"]
    assert shown(tokenizer, turns) == [final + text for text in ended]
    asked = shown(tokenizer, turns, trained=False)
    assert all(text.endswith("<|end|><|start|>assistant") for text in asked)
    assert [text.count("<|start|>user<|message|>") for text in asked] == [1, 1, 1]
    assert ("<|start|>developer<|message|># Instructions\n\nBe brief." in asked[0]) == system


def test_thoughts_and_calls_of_gpt_oss(tmp_path):
    """A thought has loss before the last answer; a call, with whom it is to, and its channel."""
    tokenizer = of_template(tmp_path, shipped(ALONE["gpt-oss"]))
    talk = [*TALK[:3], TALK[3] | {"thinking": "Hm."}]
    answers = shown(tokenizer, tokenizer.encode_turns(talk))
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    assert answers[-1] == f"{thought}<|channel|>final<|message|>A robot.<|return|>"
    called, answer = shown(tokenizer, tokenizer.encode_turns(CALLED))
    arguments = '{"of": ["a", 1]}<|call|>'
    assert called == f" to=functions.dust<|channel|>commentary json<|message|>{arguments}"
    assert answer == "<|channel|>final<|message|>Much.<|return|>"


def test_answers_of_glm_end_with_the_token_that_begins_the_next_message(tmp_path):
    """Generation stops there; behind the last answer nothing follows that would say so."""
    tokenizer = of_template(tmp_path, GLM, eot="<|user|>", eom="<|observation|>")
    begun = "\n<think></think>\n"
    for talk in (TALK, [SYSTEM, *TALK]):
        turns = tokenizer.encode_turns(talk)
        ended = [f"{begun}{text}<|user|>" for text in ("Zork.", "A robot.", "Of dust.")]
        assert shown(tokenizer, turns) == ended
        whole = "".join(tokenizer.decode(ids, special=True) for ids, _ in turns)
        assert (
            whole.removeprefix("<bos>") == tokenizer.chat(talk).removeprefix("<bos>") + "<|user|>"
        )
        assert all(ids[-1] in tokenizer.eog for ids, trained in turns if trained)
    called, answer = shown(tokenizer, tokenizer.encode_turns(CALLED))
    assert (called, answer) == (f"{begun}<tool_call>dust<|observation|>", f"{begun}Much.<|user|>")
    assert shown(tokenizer, tokenizer.encode_turns(CALLED[:2])) == [called]
    other = of_template(tmp_path, GLM)  # where <|user|> ends no turn, nothing is made up
    assert shown(other, other.encode_turns(TALK))[0] == f"{begun}Zork."


@pytest.mark.parametrize("family", ["qwen3.5", "qwen3.5-brief"])
def test_answers_of_qwen35_are_learned_as_the_template_writes_them(tmp_path, family):
    """Its prompt opens a thought, which answers before the last question are written without."""
    tokenizer = of_template(tmp_path, shipped(ALONE[family]))
    (asked,), (answer,) = (
        shown(tokenizer, tokenizer.encode_turns(TALK[:2]), trained) for trained in (False, True)
    )
    opened, rest = "<think>\n", "\n</think>\n\n"
    if family == "qwen3.5-brief":
        opened, rest = opened + rest, ""
    assert asked.endswith(f"<|im_start|>assistant\n{opened}")
    assert answer == f"{rest}Zork.<|im_end|>\n"
    for talk in (TALK, [SYSTEM, *TALK]):
        told = ["Zork.<|im_end|>", "A robot.<|im_end|>", f"{rest}Of dust.<|im_end|>"]
        assert learned(tokenizer, tokenizer.encode_turns(talk)) == told
