"""Structured output: grammars that constrain which token may come next. Host column, never imports torch."""
