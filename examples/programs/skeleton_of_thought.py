"""Skeleton of thought: first the points, then all of them written out at once."""

import radixlang as sgl


@sgl.function
def explain(s, topic, points=3):
    s += f"Three important things to know about {topic}:\n"
    for number in range(1, points + 1):
        s += f"{number}." + sgl.gen(f"point_{number}", max_tokens=10, stop=["\n", "."]) + "\n"
    s += "\n"
    writers = s.fork(points)
    writers += lambda i: f"More about point {i + 1}:" + sgl.gen("paragraph", max_tokens=24, stop="\n")
    writers.join()
    return [(s[f"point_{i + 1}"].strip(), s["paragraph"][i].strip()) for i in range(points)]


def run():
    """→ pairs of a point and its paragraph."""
    return explain.run("bread", temperature=0.3).ret_value


if __name__ == "__main__":
    with sgl.Engine("default") as engine:
        sgl.set_default_backend(engine)
        for point, paragraph in run():
            print(f"{point}: {paragraph}")
