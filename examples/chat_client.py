"""A conversation through a running server (`make serve`) with the `openai` client (`pip install openai`).

From the second turn on the server finds the conversation so far in its cache.
"""

import sys

from openai import OpenAI

TURNS = ["What is the capital of France?", "And of Italy?"]


def main(url: str = "http://127.0.0.1:30000") -> None:
    """Hold a short conversation with the server at `url`."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    messages = []
    for turn in TURNS:
        messages.append({"role": "user", "content": turn})
        reply = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=48)
        text = reply.choices[0].message.content
        messages.append({"role": "assistant", "content": text})
        details = reply.usage.prompt_tokens_details
        print(f"> {turn}\n{text}  [{details.cached_tokens if details else 0} prompt tokens cached]")


if __name__ == "__main__":
    main(*sys.argv[1:2])
