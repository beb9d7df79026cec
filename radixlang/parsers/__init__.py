"""What models write between the lines: thoughts and tool calls, read out of generated text.

`reasoning.py` splits thoughts from the answer, `tools/` reads calls out of the answer and says as a structural tag
what calls look like. Everything works on text that arrives in pieces, and gives the same for any pieces. Must not
know HTTP, requests or tokens.
"""
