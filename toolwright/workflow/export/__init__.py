"""The best workflow for others to run: a plain Python file, AFlow's folder, or a graph of LangGraph's."""
