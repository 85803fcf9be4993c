#!/bin/bash
# sol-dqn-collect: made by `hpcrl plan` for sol. Complete as it stands:
#   cd PLAN && sbatch scripts/sol-dqn-collect.sbatch [TOKEN [ENVIRONMENTS_ROOT]]
#SBATCH --job-name=sol-dqn-collect
#SBATCH --account=lab
#SBATCH --partition=htc
#SBATCH --qos=public
#SBATCH --time=01:00:00
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --mem=4096M
#SBATCH --output=logs/%x-%j.out
#SBATCH --open-mode=append
#SBATCH --export=NONE

cd "${SLURM_SUBMIT_DIR:-.}" || exit 2
if [ ! -f plan.json ]; then
  echo "$PWD: is not the plan directory: change into it, then sbatch scripts/sol-dqn-collect.sbatch" >&2
  exit 2
fi
mkdir -p logs records
# Sites whose jobs get no variables of the submitting shell get this one as an argument.
if [ -n "${2:-}" ]; then
  export HPCRL_ENVIRONMENTS="$2"
fi
export SLURM_EXPORT_ENV=ALL
# `hpcrl submit` writes down which installation it was called from, for each user; another's file is not run.
hpcrl=hpcrl
own="launchers/$(id -u)"
[ -x "$own" ] && [ -O "$own" ] && hpcrl="./$own"
exec "$hpcrl" collect . -o dataset
