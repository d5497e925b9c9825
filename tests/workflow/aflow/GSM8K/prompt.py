SOLVE_PROMPT = """
Read the problem twice. Work it out step by step, with all the arithmetic written down, and end with the number
that was asked for.

Problem: """
