"""The suite as jobs of a Slurm cluster: asked for, checked where they run, collected.

`asked` holds what a job is to get, `script` writes it down for sbatch, `tools` speaks with
Slurm, `job` runs inside the job, and `collecting` says what became of it.
"""
