"""An essay judged along several dimensions at once; the essay is computed once for all of them."""

import radixlang as sgl

ESSAY = "Trees make cities cooler. They give shade, they drink rain, and people like to sit under them. " * 3
DIMENSIONS = ["clarity", "originality", "evidence"]


@sgl.function
def judge(s, essay):
    s += f"Please judge this essay.\n\n{essay}\n\n"
    judges = s.fork(len(DIMENSIONS))
    judges += [
        f"{dimension.capitalize()}:" + sgl.gen("judgement", max_tokens=20, stop="\n") for dimension in DIMENSIONS
    ]
    judges.join()
    for dimension, judgement in zip(DIMENSIONS, s["judgement"], strict=True):
        s += f"{dimension.capitalize()}:{judgement}\n"
    s += "Overall grade: " + sgl.gen("grade", choices=["A", "B", "C", "D"])


def run():
    """→ (judgements, grade)."""
    state = judge.run(ESSAY, temperature=0)
    return state["judgement"], state["grade"]


if __name__ == "__main__":
    with sgl.Engine("default") as engine:
        sgl.set_default_backend(engine)
        judgements, grade = run()
        print(*judgements, grade, sep="\n")
