"""The engine in virtual time: the real scheduler and the real tree, and a cost model instead of a device.

Must not import torch, and must not know how anything is computed.
"""
