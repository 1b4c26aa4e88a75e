"""Jobs: a run's data, model, options, evaluation, and the files that it writes.

    job = made("gpt2", {"data": "book.txt", "steps": 1000, "out": "runs/book"})
    outcome = carried_out(job)                  outcome.result, outcome.path, outcome.job.recipe

`toynn train` and ``toynn.finetune`` are that. An option is a field of a bundle (toynn/options.py):
RecipeOptions, LoopOptions, Schedule, AdamW, AdapterOptions, PreferenceOptions, and, here,
RunOptions, ShapeOptions, TextOptions, PictureOptions and others.
"""

from toynn.jobs.finetuning import Run, finetune
from toynn.jobs.job import Job
from toynn.jobs.made import JOBS, made
from toynn.jobs.run import Outcome, carried_out

__all__ = ["JOBS", "Job", "Outcome", "Run", "carried_out", "finetune", "made"]
