"""Toolwright: train language-model agents to use tools by reinforcement learning."""

__version__ = "0.1.0"
