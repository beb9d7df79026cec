"""Text as it is made: of one variable, and of the whole program for a coroutine."""

import asyncio

import radixlang as sgl


@sgl.function
def story(s, hero):
    s += f"Once upon a time there was a {hero} who" + sgl.gen("beginning", max_tokens=16)
    s += "\nIn the end" + sgl.gen("end", max_tokens=16)


async def read(hero):
    """All pieces of a program's text."""
    return [piece async for piece in story.run(hero, stream=True).text_async_iter()]


def run():
    """→ (pieces of one variable, pieces of a whole text)."""
    state = story.run("fox", temperature=0, stream=True)
    pieces = []
    for piece in state.text_iter("beginning"):
        print(piece, end="", flush=True)
        pieces.append(piece)
    print()
    return pieces, asyncio.run(read("crow"))


if __name__ == "__main__":
    with sgl.Engine("default") as engine:
        sgl.set_default_backend(engine)
        print("".join(run()[1]))
