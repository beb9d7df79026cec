"""Device memory: KV pools, the request table, and how large they may be."""
