"""Models and tokenizers: the learner trains them and the native engine runs them, with the same tensors."""
