"""Facts out of prose as a pydantic model, through a running server (`make serve`) with the `openai` client."""

import sys

from openai import OpenAI
from pydantic import BaseModel, Field

TEXT = "Marie Curie, born in Warsaw in 1867, won Nobel prizes in physics and in chemistry."


class Person(BaseModel):
    name: str = Field(max_length=40)
    birth_year: int
    fields: list[str] = Field(max_length=4)


def main(url: str = "http://127.0.0.1:30000") -> None:
    """Ask for one person; the answer cannot be anything else."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    answer = client.beta.chat.completions.parse(
        model="default",
        messages=[{"role": "user", "content": f"{TEXT} Who is it? Answer as JSON."}],
        response_format=Person,
        temperature=0,
        max_tokens=200,
    )
    print(answer.choices[0].message.parsed)


if __name__ == "__main__":
    main(*sys.argv[1:2])
