"""Print an answer while it is made. The text of each state is cumulative."""

import radixlang


def main() -> None:
    """Stream the answer to a chat message."""
    with radixlang.Engine(model_path="default") as engine:
        ids = engine.tokenizer.encode_chat([{"role": "user", "content": "Name three colours."}])
        shown = ""
        states = engine.generate(
            input_ids=ids, sampling_params={"temperature": 0, "max_new_tokens": 48}, stream=True
        )
        for state in states:
            print(state["text"][len(shown) :], end="", flush=True)
            shown = state["text"]
        print()


if __name__ == "__main__":
    main()
