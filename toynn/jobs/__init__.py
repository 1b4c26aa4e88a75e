"""Jobs: a run's data, model, options, evaluation, and the files that it writes.

    from toynn.jobs.made import made
    from toynn.jobs.run import carried_out

    job = made("gpt2", {"data": "book.txt", "steps": 1000, "out": "runs/book"})
    outcome = carried_out(job)                  outcome.result, outcome.path, outcome.job.recipe

`toynn train` and ``toynn.finetune`` make and carry out jobs. Each job has a dataclass of its
options, such as LoRAOptions; an option is a field of it (toynn/options.py). The field says which
class takes the value: RecipeOptions, LoopOptions, Schedule, AdamW, AdapterOptions or
PreferenceOptions. So `--lr` is ``lr`` in options.py, which fills ``Schedule.lr_max``.

Importing the package imports none of its files: a command imports those that it needs.
"""
