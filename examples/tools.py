"""A loop of tool calls through a running server (`make serve`) with the `openai` client.

The first answer is made to be a call, whatever the model; with a model trained for tools leave `tool_choice` out.
"""

import json
import sys

from openai import OpenAI

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "The sum of two numbers.",
            "parameters": {
                "type": "object",
                "properties": {name: {"type": "integer", "minimum": 0, "maximum": 999} for name in "ab"},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        },
    }
]


def main(url: str = "http://127.0.0.1:30000") -> None:
    """Ask, do what the model calls for, ask again."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    messages = [{"role": "user", "content": "What is 17 + 25?"}]
    choice = "required"
    while True:
        reply = client.chat.completions.create(
            model="default",
            messages=messages,
            tools=TOOLS,
            tool_choice=choice,
            parallel_tool_calls=False,
            temperature=0,
            max_tokens=100,
        )
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            print(message.content)
            return
        for call in message.tool_calls:
            arguments = json.loads(call.function.arguments)
            print(f"{call.function.name}({arguments})")
            result = str(arguments["a"] + arguments["b"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        choice = "none"


if __name__ == "__main__":
    main(*sys.argv[1:2])
