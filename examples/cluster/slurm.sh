#!/bin/bash
# Toolwright over the nodes of a Slurm job: sbatch slurm.sh key=value …
#SBATCH --job-name=toolwright
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@300
set -euo pipefail

PORT=${PORT:-6379}
mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
HEAD=$(srun --nodes=1 --ntasks=1 --nodelist="${NODES[0]}" hostname --ip-address | awk '{print $1}')

# Ray stays in the foreground of each srun, so that Slurm ends it with the job.
srun --nodes=1 --ntasks=1 --overlap --nodelist="${NODES[0]}" \
  ray start --head --node-ip-address="$HEAD" --port="$PORT" --block &
sleep 20
if ((${#NODES[@]} > 1)); then
  REST=$(IFS=,; echo "${NODES[*]:1}")
  srun --nodes=$((${#NODES[@]} - 1)) --ntasks=$((${#NODES[@]} - 1)) --overlap --nodelist="$REST" \
    ray start --address="$HEAD:$PORT" --block &
  sleep 20
fi

# SIGTERM, five minutes before the end, lets the run write a checkpoint; submit again with run.resume=true.
srun --nodes=1 --ntasks=1 --overlap --nodelist="${NODES[0]}" \
  toolwright train runtime=ray runtime.address="$HEAD:$PORT" "$@" &
RUN=$!
trap 'kill -TERM $RUN' TERM
wait $RUN
