import workspace.HumanEval.workflows.round_7.prompt as prompt_custom
import workspace.HumanEval.workflows.template.operator as operator
from scripts.async_llm import create_llm_instance
from scripts.evaluator import DatasetType


class Workflow:
    def __init__(self, name: str, llm_config, dataset: DatasetType) -> None:
        self.name = name
        self.dataset = dataset
        self.llm = create_llm_instance(llm_config)
        self.custom = operator.Custom(self.llm)
        self.custom_code_generate = operator.CustomCodeGenerate(self.llm)
        self.sc_ensemble = operator.ScEnsemble(self.llm)
        self.test = operator.Test(self.llm)

    async def __call__(self, problem: str, entry_point: str):
        solutions = []
        for _ in range(3):
            solution = await self.custom_code_generate(
                problem=problem, entry_point=entry_point, instruction=prompt_custom.WRITE_PROMPT
            )
            solutions.append(solution["response"])
        best = await self.sc_ensemble(solutions=solutions, problem=problem)
        tested = await self.test(problem=problem, solution=best["response"], entry_point=entry_point)
        if tested["result"]:
            return tested["solution"], self.llm.get_usage_summary()["total_cost"]
        mended = await self.custom(
            input=f"Problem: {problem}\nSolution that failed: {best['response']}\nLast try: {tested['solution']}",
            instruction=prompt_custom.MEND_PROMPT,
        )
        return mended["response"], self.llm.get_usage_summary()["total_cost"]
