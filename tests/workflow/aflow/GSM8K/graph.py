import workspace.GSM8K.workflows.round_6.prompt as prompt_custom
import workspace.GSM8K.workflows.template.operator as operator
from scripts.async_llm import create_llm_instance
from scripts.evaluator import DatasetType


class Workflow:
    def __init__(
        self,
        name: str,
        llm_config,
        dataset: DatasetType,
    ) -> None:
        self.name = name
        self.dataset = dataset
        self.llm = create_llm_instance(llm_config)
        self.custom = operator.Custom(self.llm)
        self.sc_ensemble = operator.ScEnsemble(self.llm)
        self.programmer = operator.Programmer(self.llm)

    async def __call__(self, problem: str):
        """
        Five solutions, the one that most agree with, and a program that checks it.
        """
        solutions = []
        for _ in range(5):  # several, so that they can be compared
            solution = await self.custom(input=problem, instruction=prompt_custom.SOLVE_PROMPT)
            solutions.append(solution["response"])

        agreed = await self.sc_ensemble(solutions=solutions, problem=problem)

        checked = await self.programmer(problem=problem, analysis=agreed["response"])

        if checked["output"]:
            return checked["output"], self.llm.get_usage_summary()["total_cost"]
        else:
            return agreed["response"], self.llm.get_usage_summary()["total_cost"]
