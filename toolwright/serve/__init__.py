"""A model behind HTTP, with OpenAI's protocol and Anthropic's."""
