"""Chat templates in the style of well-known models, with the tricks of each, and tokenizers for them."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from toolwright.models.tokenizer import CHARACTER_TEMPLATE, END, ROLES, Tokenizer

# Every role by its name, and a newline behind every turn.
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Trims, opens with a token of its own, writes calls in place of text, one at a time, and answers as JSON.
LLAMA3 = """{{- bos_token }}
{%- if not tools is defined %}{% set tools = none %}{% endif %}
{%- for m in messages %}
{%- if not (m.role == 'ipython' or m.role == 'tool' or 'tool_calls' in m) %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' }}
{%- if m.role == 'user' and tools is not none and loop.first %}
{%- for t in tools %}{{- t | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}
{%- endif %}
{{- m.content | trim + '<|eot_id|>' }}
{%- elif 'tool_calls' in m %}
{%- if not m.tool_calls | length == 1 %}{{- raise_exception('only one call at once') }}{%- endif %}
{%- set call = m.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{{- '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
{%- if m.content is mapping or m.content is iterable %}{{- m.content | tojson }}
{%- else %}{{- m.content }}{%- endif %}
{{- '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

_QWEN_HEAD = """{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n<tools>' }}
{%- for t in tools %}{{- '\\n' }}{{- t | tojson }}{%- endfor %}
{{- '\\n</tools>\\nWrite <tool_call>\\n{"name": …, "arguments": …}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
"""
_QWEN_CALLS = """
{%- for c in m.tool_calls or [] %}
{%- if c.function %}{%- set c = c.function %}{%- endif %}
{{- '\\n<tool_call>\\n{"name": "' + c.name + '", "arguments": ' }}{{- c.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
"""
# Answers that follow each other share one turn of the user's.
_QWEN_TAIL = """
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
"""
# Speaks as a system of its own where none does.
QWEN25 = (
    _QWEN_HEAD
    + """{%- else %}{{- '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}
{{- '<|im_start|>assistant' }}{%- if m.content %}{{- '\\n' + m.content }}{%- endif %}"""
    + _QWEN_CALLS
    + "{{- '<|im_end|>\\n' }}"
    + _QWEN_TAIL
    + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
# Forgets what was thought before the last question, and can be told not to think.
QWEN3 = (
    _QWEN_HEAD
    + """{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}
{%- if m.role == 'user' and not m.content.startswith('<tool_response>') %}
{%- set ns.last = loop.index0 %}
{%- endif %}
{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}
{%- set content, thought = m.content, '' %}
{%- if '</think>' in m.content %}
{%- set content = m.content.split('</think>')[-1].lstrip('\\n') %}
{%- set thought = m.content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
{%- endif %}
{%- if loop.index0 > ns.last and (loop.last or thought) %}
{{- '<|im_start|>assistant\\n<think>\\n' + thought + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
{%- else %}{{- '<|im_start|>assistant\\n' + content }}
{%- endif %}"""
    + _QWEN_CALLS
    + "{{- '<|im_end|>\\n' }}"
    + _QWEN_TAIL
    + """{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}"""
)
# Strict: roles alternate, answers belong to calls with ids of nine letters, and calls replace the text.
MISTRAL = """{{- bos_token }}
{%- set ns = namespace(turn=0, calls=false) %}
{%- for m in messages %}
{%- if m.role == 'system' %}{{- raise_exception('no system here') }}{%- endif %}
{%- if m.role == 'user' %}
{%- if ns.turn % 2 != 0 %}{{- raise_exception('roles must alternate') }}{%- endif %}
{%- set ns.turn = ns.turn + 1 %}
{%- if tools and loop.first %}{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{{- '[INST] ' + m.content + '[/INST]' }}
{%- elif m.tool_calls is defined and m.tool_calls %}
{%- set ns.calls = true %}
{{- '[TOOL_CALLS] [' }}
{%- for c in m.tool_calls %}
{%- if c.id | length != 9 %}{{- raise_exception('a call needs an id of nine letters') }}{%- endif %}
{{- '{"name": "' + c.function.name + '", "arguments": ' + (c.function.arguments | tojson) }}
{{- ', "id": "' + c.id + '"}' }}{%- if not loop.last %}{{- ', ' }}{%- endif %}
{%- endfor %}
{{- ']' + eos_token }}
{%- elif m.role == 'assistant' %}
{%- set ns.turn = ns.turn + 1 %}
{{- ' ' + m.content + eos_token }}
{%- elif m.role == 'tool' %}
{%- if not ns.calls %}{{- raise_exception('an answer without a call') }}{%- endif %}
{%- if m.tool_call_id | length != 9 %}{{- raise_exception('an answer needs its call') }}{%- endif %}
{{- '[TOOL_RESULTS] {"content": ' + (m.content | tojson) + ', "call_id": "' + m.tool_call_id + '"}' }}
{{- '[/TOOL_RESULTS]' }}
{%- else %}{{- raise_exception('unknown role ' + m.role) }}
{%- endif %}
{%- endfor %}"""
# Knows users and models, and nothing else.
GEMMA = """{{- bos_token }}
{%- for m in messages %}
{%- if m.role not in ('user', 'assistant') %}{{- raise_exception('role ' + m.role + ' is not supported') }}
{%- endif %}
{%- set role = 'model' if m.role == 'assistant' else m.role %}
{{- '<start_of_turn>' + role + '\\n' }}
{%- if role == 'model' %}{% generation %}{{- m.content | trim + '<end_of_turn>\\n' }}{% endgeneration %}
{%- else %}{{- m.content | trim + '<end_of_turn>\\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"""

# template, end of turn, special tokens, tokens that are marks without being special
STYLES: dict[str, tuple[str, str, list[str], list[str]]] = {
    "chatml": (CHATML, "<|im_end|>", ["<|im_start|>"], []),
    "llama3": (
        LLAMA3,
        "<|eot_id|>",
        ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>", "<|eom_id|>"],
        [],
    ),
    "qwen25": (QWEN25, "<|im_end|>", ["<|im_start|>"], ["<tool_call>", "</tool_call>"]),
    "qwen3": (
        QWEN3,
        "<|im_end|>",
        ["<|im_start|>", "<|endoftext|>"],
        ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"],
    ),
    "mistral": (
        MISTRAL,
        "</s>",
        ["<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"],
        [],
    ),
    "gemma": (GEMMA, "<end_of_turn>", ["<bos>", "<start_of_turn>"], []),
    "own": (CHARACTER_TEMPLATE, END, list(ROLES), []),
}
OPENING = {"llama3": "<|begin_of_text|>", "mistral": "<s>", "gemma": "<bos>"}
CORPUS = [
    'system user assistant tool {"name": "echo", "arguments": {"text": "hello world"}} the answer is 42',
    "<tool>print(12*34)</tool><result>408</result> <tool_call> </tool_call> ```python\nprint(1)\n```",
]


@cache
def tokenizer(style: str) -> Tokenizer:
    """Bytes and a few merges, with the special tokens of the style."""
    template, end, specials, marks = STYLES[style]
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=380, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_special_tokens([end, *specials])
    backend.add_tokens(marks)
    config = {"chat_template": template, "eos_token": end}
    if style in OPENING:
        config["bos_token"] = OPENING[style]
    extra = [backend.token_to_id("<|eom_id|>")] if style == "llama3" else []
    return Tokenizer(backend, config, end_tokens=extra)


def everything(made: Tokenizer, tokens: list[int]) -> str:
    """All that the tokens say, marks included."""
    return made.backend.decode(tokens, skip_special_tokens=False)
