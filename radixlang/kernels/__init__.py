"""Kernels of the device column, one idea a file, each with a plain-torch twin in `reference.py`.

Importing this package imports no kernel: whoever needs one imports its file, and with it Triton.
"""
