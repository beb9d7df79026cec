"""The frontend language: programs of prompts, calls, forks and constraints, run against any backend.

Must not import torch, nor the server or the engine (the in-process backend reaches them through `Engine`).
"""
