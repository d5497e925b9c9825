"""Serves a model over HTTP, with OpenAI's protocol and Anthropic's."""
