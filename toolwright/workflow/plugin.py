"""What workflow search adds to Toolwright."""

ADDS = {
    "toolwright.cli": {"workflow": "toolwright.workflow.command:main"},
    "toolwright.config": {"workflow": "toolwright.workflow.config:WorkflowConfig"},
    "toolwright.config.presets": {"workflow": "toolwright.workflow.presets"},
    "toolwright.observe.report": {"searches": "toolwright.workflow.draw:searches"},
    "toolwright.doctor.symptoms": {
        "workflow runs fail": "toolwright.workflow.search_symptoms:runs_fail",
        "workflow candidates refused": "toolwright.workflow.search_symptoms:candidates_refused",
        "workflow without gain": "toolwright.workflow.search_symptoms:no_gain",
    },
    "toolwright.ui.run_views": {"workflow": "toolwright.workflow.page:searches"},
}
