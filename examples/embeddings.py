"""Sentence embeddings with a BERT encoder; vectors have unit length, so a dot product is the cosine."""

import radixlang

SENTENCES = ["A cat sits on the mat.", "A kitten rests on a rug.", "Interest rates rose again."]


def main() -> None:
    """Print how alike the sentences are."""
    with radixlang.Engine(model_path="all-minilm-l6-v2") as engine:
        vectors = [answer["embedding"] for answer in engine.encode(SENTENCES)]
        for sentence, vector in zip(SENTENCES, vectors, strict=True):
            alike = sum(a * b for a, b in zip(vectors[0], vector, strict=True))
            print(f"{alike:5.2f}  {sentence}")


if __name__ == "__main__":
    main()
