"""`edgegossip bench int8`: a training step in int8 beside the same model in fp32, with batchnorm
and with EvoNorm-S0."""
