"""Few-shot classification: `select` scores the labels, and the examples are computed once for the whole batch."""

import radixlang as sgl

EXAMPLES = """\
Review: I loved every minute of it. Label: positive
Review: What a waste of money. Label: negative
Review: The best meal of my life! Label: positive
Review: It broke after two days. Label: negative
"""
REVIEWS = ["An absolute joy to read.", "Boring, and far too long.", "They were rude to us.", "Great value!"]


@sgl.function
def classify(s, review):
    s += EXAMPLES
    s += f"Review: {review} Label:"
    s += sgl.select("label", [" positive", " negative"], choices_method=sgl.unconditional_likelihood_normalized)


def run():
    """→ a label for each review."""
    return [state["label"].strip() for state in classify.run_batch([{"review": text} for text in REVIEWS])]


if __name__ == "__main__":
    with sgl.Engine("default") as engine:
        sgl.set_default_backend(engine)
        for review, label in zip(REVIEWS, run(), strict=True):
            print(f"{label}: {review}")
