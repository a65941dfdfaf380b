"""Workers on a Slurm cluster, and a run on them: pip install dask-jobqueue, then python slurm.py URL [FLAGS of run].

dask-jobqueue submits the jobs that become workers, and ends them with this script.
"""

import subprocess
import sys

from dask_jobqueue import SLURMCluster

WORKERS = 16

with SLURMCluster(
    cores=1,
    processes=1,
    memory="2GB",
    walltime="01:00:00",
    nanny=False,
    # What is not exclusive shares its cores, and so its lateness.
    job_extra_directives=["--cpus-per-task=1", "--hint=nomultithread"],
) as cluster:
    cluster.scale(WORKERS)
    run = ["loadtest", "run", *sys.argv[1:], "--cluster", cluster.scheduler_address, "--workers", str(WORKERS)]
    sys.exit(subprocess.run(run, check=False).returncode)
