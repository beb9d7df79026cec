"""Self-consistency: several ways to an answer are drawn from one prompt, and the most frequent answer wins."""

from collections import Counter

import radixlang as sgl

QUESTION = "Tom has 3 bags with 4 marbles each. How many marbles does he have?"


@sgl.function
def solve(s, question, samples=5):
    s += sgl.user(question)
    s += sgl.assistant_begin()
    ways = s.fork(samples)
    ways += sgl.gen("thought", max_tokens=24) + "\nSo the answer is " + sgl.gen("number", regex="[0-9]{1,3}")
    ways.join()
    return Counter(s["number"]).most_common(1)[0][0]


def run():
    """→ (answers, the winner)."""
    state = solve.run(QUESTION, temperature=0.7)
    return state["number"], state.ret_value


if __name__ == "__main__":
    with sgl.Engine("default") as engine:
        sgl.set_default_backend(engine)
        print(*run())
