"""Many programs at once with a progress bar; one that fails does not lose the others."""

import radixlang as sgl


@sgl.function
def double(s, number):
    s += f"Twice {number:d} is " + sgl.gen_int("answer", max_tokens=4)


def run():
    """→ an answer or an error for each item."""
    items = [{"number": n} for n in (1, 2, 3, "four", 5, 6)]
    states = double.run_batch(items, temperature=0, progress_bar=True)
    return [str(state.error()) if state.error() else state["answer"] for state in states]


if __name__ == "__main__":
    with sgl.Engine("default") as engine:
        sgl.set_default_backend(engine)
        print(*run(), sep="\n")
