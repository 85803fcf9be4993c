#!/bin/bash
# sol-dqn-torch-cuda-horovod-1: made by `hpcrl plan` for sol. Complete as it stands:
#   cd PLAN && sbatch scripts/sol-dqn-torch-cuda-horovod-1.sbatch [TOKEN [ENVIRONMENTS_ROOT]]
#SBATCH --job-name=sol-dqn-torch-cuda-horovod-1
#SBATCH --account=lab
#SBATCH --partition=htc
#SBATCH --qos=public
#SBATCH --time=02:00:00
#SBATCH --nodes=1
#SBATCH --ntasks=2
#SBATCH --cpus-per-task=1
#SBATCH --mem=16384M
#SBATCH --gres=gpu:a100:2
#SBATCH --array=0-14
#SBATCH --signal=USR2@120
#SBATCH --requeue
#SBATCH --output=logs/%x-%A_%a.out
#SBATCH --open-mode=append
#SBATCH --export=NONE

cd "${SLURM_SUBMIT_DIR:-.}" || exit 2
if [ ! -f plan.json ]; then
  echo "$PWD: is not the plan directory: change into it, then sbatch scripts/sol-dqn-torch-cuda-horovod-1.sbatch" >&2
  exit 2
fi
mkdir -p logs records
# Sites whose jobs get no variables of the submitting shell get this one as an argument.
if [ -n "${2:-}" ]; then
  export HPCRL_ENVIRONMENTS="$2"
fi
export SLURM_EXPORT_ENV=ALL
environments="/scratch/${USER}/hpcrl/environments"
export HPCRL_ENV="${HPCRL_ENVIRONMENTS:-$environments}"/torch-cuda-horovod-HASH
module load mamba/latest
if [ ! -f "$HPCRL_ENV/hpcrl-environment.json" ]; then
  echo "$HPCRL_ENV: the environment was not built: run hpcrl env create --plan $PWD" >&2
  exit 3
fi
source activate "$HPCRL_ENV"
export PYTHONPATH="$PWD/worker.zip" PYTHONUNBUFFERED=1
index="${SLURM_ARRAY_TASK_ID:-${HPCRL_TASK:-0}}"
# One start of this script: what the ranks of one start have in common.
export HPCRL_START="${SLURMD_NODENAME:-$HOSTNAME}-$$-$RANDOM$RANDOM"
run=("$HPCRL_ENV/bin/python" -m hpcrl.run . --job sol-dqn-torch-cuda-horovod-1 --index "$index" ${1:+--submission "$1"})
if [ -n "${SLURM_JOB_ID:-}" ] && command -v srun >/dev/null; then
  exec srun --ntasks=2 --cpus-per-task=1 --kill-on-bad-exit=1 --mpi=pmix "${run[@]}"
fi
exec "${run[@]}" --ranks 2
