"""A model behind HTTP, for those who speak OpenAI's protocol and those who speak Anthropic's."""
