"""Tree of thought: branches propose, branches of branches go on, a vote picks the best leaf."""

import radixlang as sgl


@sgl.function
def tree(s, problem, width=2):
    s += f"Problem: {problem}\n"
    proposals = s.fork(width)
    proposals += lambda i: f"Idea {i + 1}:" + sgl.gen("idea", max_tokens=16, stop="\n")
    for branch in proposals:
        steps = branch.fork(width)
        steps += lambda i: f"\nNext step {i + 1}:" + sgl.gen("step", max_tokens=16, stop="\n")
        steps.join()
    proposals.join()
    leaves = [f"{idea} →{step}" for idea, steps in zip(s["idea"], s["step"], strict=True) for step in steps]
    for number, leaf in enumerate(leaves, 1):
        s += f"Plan {number}:{leaf}\n"
    s += "The best plan is number " + sgl.select("best", [str(n + 1) for n in range(len(leaves))])
    return leaves[int(s["best"]) - 1]


def run():
    """→ the plan that won."""
    return tree.run("How can a small town use less water?", temperature=0.8).ret_value


if __name__ == "__main__":
    with sgl.Engine("default") as engine:
        sgl.set_default_backend(engine)
        print(run())
