WRITE_PROMPT = """
Write a function that does what the description says, for every input that it allows.
"""

MEND_PROMPT = """
The solution below fails its tests. Find out why and write the whole function again in one Python block.
"""
