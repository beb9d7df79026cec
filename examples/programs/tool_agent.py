"""An agent that uses a Python function: the arguments are constrained, so that the call is always valid."""

import radixlang as sgl

OPERATIONS = {"add": lambda a, b: a + b, "multiply": lambda a, b: a * b}
EXAMPLES = """\
Question: I have 2 apples and get 5 more. How many do I have?
Call: add(2, 5)
Question: There are 4 boxes with 6 eggs each. How many eggs are there?
Call: multiply(4, 6)
"""


@sgl.function
def agent(s, question):
    s += EXAMPLES + f"Question: {question}\nCall: "
    s += sgl.select("operation", list(OPERATIONS)) + "("
    s += sgl.gen("a", regex="[0-9]{1,3}", max_tokens=4) + ", " + sgl.gen("b", regex="[0-9]{1,3}", max_tokens=4)
    result = OPERATIONS[s["operation"]](int(s["a"]), int(s["b"]))
    s += f")\nResult: {result}\nAnswer:" + sgl.gen("answer", max_tokens=16, stop="\n")
    return result


def run():
    """→ (the call, its result, the answer)."""
    state = agent.run("A train has 7 cars with 30 seats each. How many seats are there?", temperature=0)
    return f"{state['operation']}({state['a']}, {state['b']})", state.ret_value, state["answer"]


if __name__ == "__main__":
    with sgl.Engine("default") as engine:
        sgl.set_default_backend(engine)
        print(*run(), sep="\n")
