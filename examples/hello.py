"""One prompt, one answer, no server."""

import radixlang


def main() -> None:
    """Continue a sentence with the default model (fetched on first use)."""
    with radixlang.Engine(model_path="default") as engine:
        answer = engine.generate("The capital of France is", {"temperature": 0, "max_new_tokens": 8})
        print(answer["text"].strip())
        print(answer["meta_info"]["finish_reason"])


if __name__ == "__main__":
    main()
