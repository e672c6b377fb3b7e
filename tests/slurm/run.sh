#!/usr/bin/env bash
# The tests on a real Slurm of one node, which they start and stop. `make test-slurm` calls it with the Python to use.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$1
shift

if [ "$(id -u)" -ne 0 ]; then
  if sudo -n true 2> /dev/null; then
    exec sudo -n env "PATH=$PATH" "$0" "$python" "$@"
  fi
  echo "make test-slurm: Slurm's daemons, their device nodes and /etc/slurm want root." >&2
  echo "  Run it as root, or where sudo asks for no password; nothing else needs it." >&2
  exit 2
fi

missing() { for program in munged slurmctld slurmd sbatch; do PATH="$PATH:/usr/sbin" type -P "$program" > /dev/null || return 0; done; return 1; }
if missing; then
  if ! type -P apt-get > /dev/null; then
    echo "make test-slurm: install Slurm and munge first (Fedora, with EPEL also RHEL: dnf install slurm-slurmctld slurm-slurmd munge)." >&2
    exit 2
  fi
  echo "test-slurm: apt-get install slurm-wlm munge"
  export DEBIAN_FRONTEND=noninteractive
  log=$(mktemp)
  { apt-get update && apt-get install --yes --no-install-recommends slurm-wlm munge; } > "$log" 2>&1 || {
    tail -n 20 "$log" >&2
    echo "make test-slurm: Slurm's packages could not be installed; the end of apt-get's output is above." >&2
    exit 2
  }
  rm -f "$log"
fi

# Root's own files stay out of the tree.
PYTHONDONTWRITEBYTECODE=1 exec "$python" -m pytest -p no:cacheprovider tests/slurm "$@"
