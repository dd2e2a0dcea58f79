#!/bin/bash
# sbatch examples/launch/slurm.sh --config configs/finetune.yaml --data FOLDER
# Pre-empted or out of time, the run saves and ends with code 75; then the job is queued again, and resumes.
#SBATCH --nodes 1 --ntasks-per-node 4 --gpus-per-node 4
#SBATCH --requeue --signal=USR1@90 --open-mode=append
srun python -m project.fit --name "$SLURM_JOB_ID" "$@"
code=$? # 75: stopped; 138: signalled before or after training; 143: ended by srun's --kill-on-bad-exit
case $code in 75 | 138 | 143) scontrol requeue "$SLURM_JOB_ID" ;; *) exit $code ;; esac
