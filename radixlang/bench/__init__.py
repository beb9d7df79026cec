"""The measurements behind `radixlang bench`. Must not know the command line, nor import torch."""
