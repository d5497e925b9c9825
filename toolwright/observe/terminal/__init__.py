"""The interactive viewer of a run in the terminal, made with Textual."""
