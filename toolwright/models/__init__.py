"""Models and tokenizers: what the learner trains and the native engine runs, from one set of tensors."""
