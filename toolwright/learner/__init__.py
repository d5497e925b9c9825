"""What holds trainable weights: policy, critic, reference, their updates and checkpoints."""
