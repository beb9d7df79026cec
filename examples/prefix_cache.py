"""A long prefix that several prompts share is computed once: watch `cached_tokens`."""

import radixlang

RULES = (
    "You answer questions about a small library. " + "Books are lent for four weeks and may be renewed once. " * 20
)
QUESTIONS = ["How long may I keep a book?", "May I renew a book?", "What happens after four weeks?"]


def main() -> None:
    """Ask three questions under the same rules."""
    with radixlang.Engine(model_path="default") as engine:
        for question in QUESTIONS:
            answer = engine.generate(f"{RULES}\nQ: {question}\nA:", {"temperature": 0, "max_new_tokens": 16})
            meta = answer["meta_info"]
            print(f"{meta['cached_tokens']:4} of {meta['prompt_tokens']} prompt tokens cached: {question}")


if __name__ == "__main__":
    main()
