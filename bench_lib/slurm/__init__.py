"""The suite as jobs of a Slurm cluster: asked for, checked where they run, collected.

`asked` reads what a job is to get and writes its script, `tools` speaks with Slurm, `job` runs
inside the job, and `collecting` says what became of it.
"""
