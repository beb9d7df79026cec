"""An essay, judged from three sides at once, as a page to look at.

Run as `python examples/show_program.py [URL or model] [page.html]`; without arguments the small default model runs
in this process. The page says which calls ran beside each other, and how much of their prompts was cached.
"""

import sys
from pathlib import Path

import radixlang as sgl

ESSAY = "Rivers have names because people who live beside them need to tell each other where they are."


@sgl.function
def judge(s, essay):
    """Three judgements in parallel branches, then a grade."""
    s += sgl.system("You judge essays. You answer in one short sentence.")
    s += sgl.user("The essay: " + essay)
    branches = s.fork(3)
    for branch, side in zip(branches, ("clarity", "evidence", "style"), strict=True):
        branch += sgl.user(f"How good is its {side}?")
        branch += sgl.assistant(sgl.gen("judgement", max_tokens=32, stop="\n"))
    branches.join()
    s += sgl.user("Other judges said: " + " ".join(s["judgement"]) + " Your grade?")
    s += sgl.assistant("The grade is " + sgl.select("grade", ["A", "B", "C"]) + ".")


def main(where: str = "default", page: str | None = None) -> None:
    """Run the program on a server or a model, and show it."""
    if where.startswith("http"):
        show(sgl.RuntimeEndpoint(where), page)
    else:
        with sgl.Engine(where) as engine:
            show(engine, page)


def show(backend, page: str | None) -> None:
    """Run on `backend` and write the page."""
    state = judge.run(essay=ESSAY, backend=backend, temperature=0, stream=True)
    path: Path = sgl.show(state, path=page)
    print(f"grade {state['grade']}, page {path}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
