"""From logits to tokens: per-row sampling state, the sampler, log-probabilities."""
