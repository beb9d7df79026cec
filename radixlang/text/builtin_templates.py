"""Chat templates for models that come without one, by the name `--chat-template` takes.

Written from the prompt formats the families document. `default_bos` is the model's begin-of-text token when its
tokenizer puts one in front of plain text, and empty otherwise.
"""

from __future__ import annotations

_CHATML_TURNS = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_CHATML = "{{ default_bos }}" + _CHATML_TURNS

_QWEN = (
    "{{ default_bos }}{% if messages[0].role != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}" + _CHATML_TURNS
)

_LLAMA3 = (
    "{{ default_bos }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + ('ipython' if message.role == 'tool' else message.role)"
    " + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)

# Formats without a system turn put the system text in front of the first user message.
_SYSTEM_FIRST = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set turns = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}"
)

_GEMMA = (
    "{{ default_bos }}" + _SYSTEM_FIRST + "{% for message in turns %}"
    "{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\\n' }}"
    "{% if loop.first and system %}{{ system | trim + '\\n\\n' }}{% endif %}"
    "{{ message.content | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)

_MISTRAL = (
    "{{ default_bos }}" + _SYSTEM_FIRST + "{% for message in turns %}{% if message.role == 'assistant' %}"
    "{{ ' ' + message.content | trim + eos_token }}{% else %}"
    "{{ '[INST] ' + (system + '\\n\\n' if loop.first and system else '') + message.content + '[/INST]' }}"
    "{% endif %}{% endfor %}"
)

_LLAMA2 = (
    _SYSTEM_FIRST + "{% for message in turns %}{% if message.role == 'assistant' %}"
    "{{ ' ' + message.content | trim + ' ' + eos_token }}{% else %}"
    "{{ default_bos + '[INST] ' + ('<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' if loop.first and system else '')"
    " + message.content | trim + ' [/INST]' }}{% endif %}{% endfor %}"
)

_VICUNA = (
    "{{ default_bos }}" + _SYSTEM_FIRST + "{{ system or "
    "'A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user\\'s questions.' }}"
    "{% for message in turns %}{% if message.role == 'assistant' %}"
    "{{ ' ASSISTANT: ' + message.content + eos_token }}"
    "{% else %}{{ ' USER: ' + message.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ ' ASSISTANT:' }}{% endif %}"
)

_ZEPHYR = (
    "{{ default_bos }}{% for message in messages %}{{ '<|' + message.role + '|>\\n' + message.content + eos_token"
    " + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)

_PLAIN = (
    "{{ default_bos }}{% for message in messages %}{{ message.role + ': ' + message.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)

TEMPLATES: dict[str, str] = {
    "chatml": _CHATML,
    "qwen": _QWEN,
    "llama-3-instruct": _LLAMA3,
    "llama-2": _LLAMA2,
    "gemma-it": _GEMMA,
    "mistral": _MISTRAL,
    "vicuna_v1.1": _VICUNA,
    "zephyr": _ZEPHYR,
    "plain": _PLAIN,
}
