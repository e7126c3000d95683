"""How a model learns: memory, one step of learning, the training loop, checkpoints."""
