"""Many prompts in one call: they run together, and the answers come in the order of the prompts."""

import radixlang

ANIMALS = ["cat", "dog", "whale", "sparrow"]


def main() -> None:
    """Ask the same question about several animals."""
    with radixlang.Engine(model_path="default") as engine:
        prompts = [f"A {animal} is an animal that" for animal in ANIMALS]
        answers = engine.generate(prompts, {"temperature": 0, "max_new_tokens": 12, "stop": ["."]})
        for prompt, answer in zip(prompts, answers, strict=True):
            print(prompt + answer["text"])


if __name__ == "__main__":
    main()
