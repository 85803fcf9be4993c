#!/bin/bash
# sol-dqn-torch-cpu-1: made by `hpcrl plan` for cirrus. Complete as it stands:
#   cd PLAN && sbatch scripts/sol-dqn-torch-cpu-1.sbatch [TOKEN [ENVIRONMENTS_ROOT]]
#SBATCH --job-name=sol-dqn-torch-cpu-1
#SBATCH --account=lab
#SBATCH --partition=standard
#SBATCH --qos=standard
#SBATCH --time=06:00:00
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --array=0-4
#SBATCH --signal=USR2@120
#SBATCH --requeue
#SBATCH --output=logs/%x-%A_%a.out
#SBATCH --open-mode=append

cd "${SLURM_SUBMIT_DIR:-.}" || exit 2
if [ ! -f plan.json ]; then
  echo "$PWD: is not the plan directory: change into it, then sbatch scripts/sol-dqn-torch-cpu-1.sbatch" >&2
  exit 2
fi
mkdir -p logs records
# Sites whose jobs get no variables of the submitting shell get this one as an argument.
if [ -n "${2:-}" ]; then
  export HPCRL_ENVIRONMENTS="$2"
fi
environments="/work/${HPCRL_PROJECT}/${HPCRL_PROJECT}/${USER}/hpcrl/environments"
export HPCRL_ENV="${HPCRL_ENVIRONMENTS:-$environments}"/torch-cpu-HASH
module load cray-python
if [ ! -f "$HPCRL_ENV/hpcrl-environment.json" ]; then
  echo "$HPCRL_ENV: the environment was not built: run hpcrl env create --plan $PWD" >&2
  exit 3
fi
export PATH="$HPCRL_ENV/bin:$PATH"
export PYTHONPATH="$PWD/worker.zip" PYTHONUNBUFFERED=1
index="${SLURM_ARRAY_TASK_ID:-${HPCRL_TASK:-0}}"
# One start of this script: what the ranks of one start have in common.
export HPCRL_START="${SLURMD_NODENAME:-$HOSTNAME}-$$-$RANDOM$RANDOM"
run=("$HPCRL_ENV/bin/python" -m hpcrl.run . --job sol-dqn-torch-cpu-1 --index "$index" ${1:+--submission "$1"})
if [ -n "${SLURM_JOB_ID:-}" ] && command -v srun >/dev/null; then
  step=(srun --ntasks=1 --cpus-per-task=4 --kill-on-bad-exit=1 --hint=nomultithread --distribution=block:block "${run[@]}")
  hand_on=""  # Slurm itself signals its steps
else
  step=("${run[@]}" --ranks 1)
  hand_on=yes
fi
stop=""
signalled=""
child=""
trap 'stop=yes; signalled=yes; [ -z "$hand_on" ] || kill -s TERM "$child" 2>/dev/null' TERM
trap 'stop=yes; signalled=yes; [ -z "$hand_on" ] || kill -s USR2 "$child" 2>/dev/null' USR2
# Up to 3 cells, one after another. The exit code is the first failure's.
code=0
for ((slot = 0; slot < 3; slot++)); do
  [ -z "$stop" ] || break
  "${step[@]}" --slot "$slot" &
  child=$!
  ended=0
  while true; do
    signalled=""
    wait "$child" || ended=$?
    [ -n "$signalled" ] || break  # else it was a signal that ended `wait`
    ended=0
  done
  # bash 5.2 may lose the code of a child that ends while a trap runs: it is -1 then, and the cell's record has the outcome.
  [ "$ended" -ge 0 ] || ended=0
  [ "$code" -ne 0 ] || code=$ended
done
exit "$code"
