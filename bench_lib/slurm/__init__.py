"""The suite as a job of a Slurm cluster.

`script` writes what sbatch runs and submits it, and `check` compares, inside the job, the granted
resources with the request.
"""
