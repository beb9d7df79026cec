"""Questions about three documents: each is read in a branch of its own, and the answers are merged."""

import radixlang as sgl

DOCUMENTS = [
    "The lighthouse of Norrland was built in 1871 and is 32 metres tall.",
    "Since 1994 the lighthouse has been run from the harbour by radio.",
    "Visitors may climb the tower of the lighthouse from May to September.",
]


@sgl.function
def answer(s, question, documents):
    s += sgl.system("Answer from the documents, in one sentence.")
    readers = s.fork(len(documents))
    for document, reader in zip(documents, readers, strict=True):
        reader += sgl.user(f"Document: {document}\nQuestion: {question}\nWhat does the document say about it?")
        reader += sgl.assistant(sgl.gen("note", max_tokens=32, temperature=0))
    readers.join()
    s += sgl.user("Notes:\n" + "\n".join(s["note"]) + f"\n\nQuestion: {question}")
    s += sgl.assistant(sgl.gen("answer", max_tokens=32, temperature=0))


def run():
    """→ (notes, answer)."""
    state = answer.run("When was the lighthouse built?", DOCUMENTS)
    return state["note"], state["answer"]


if __name__ == "__main__":
    with sgl.Engine("default") as engine:
        sgl.set_default_backend(engine)
        notes, final = run()
        print(*notes, final, sep="\n")
