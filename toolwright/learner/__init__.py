"""Everything with trainable weights: policy, critic, reference, their updates and checkpoints."""
