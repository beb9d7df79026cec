"""A conversation of several turns: each answer becomes part of the next prompt, which is in the cache already."""

import radixlang as sgl


@sgl.function
def conversation(s, questions):
    s += sgl.system("You are a helpful assistant. Answer in one short sentence.")
    for i, question in enumerate(questions):
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen(f"answer_{i}", max_tokens=24, temperature=0))


def run():
    """→ the messages of the conversation."""
    state = conversation.run(["What is the capital of France?", "What is it famous for?"])
    return state.messages()


if __name__ == "__main__":
    with sgl.Engine("default") as engine:
        sgl.set_default_backend(engine)
        for message in run():
            print(f"{message['role']:>9}: {message['content']}")
