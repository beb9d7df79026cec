"""Anthropic's Messages API, over the same conversations as `/v1/chat/completions`."""
