"""Facts out of a text as JSON that always fits its schema."""

import json

import radixlang as sgl

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"enum": ["Oslo", "Paris", "Rome"]},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}


@sgl.function
def extract(s, text):
    s += sgl.user(f"Extract name, age and city as JSON: {text}")
    s += sgl.assistant(sgl.gen("facts", max_tokens=64, temperature=0, json_schema=json.dumps(SCHEMA)))


def run():
    """→ the facts."""
    state = extract.run("Anna, who is 34 years old, has lived in Rome since 2019.")
    return json.loads(state["facts"])


if __name__ == "__main__":
    with sgl.Engine("default") as engine:
        sgl.set_default_backend(engine)
        print(run())
