#!/bin/sh
# A hook of enroot (3.x), for /etc/enroot/hooks.d: it gives a container what root has published of a plan (`publish`, beside this).
# enroot runs it as the user who starts the container, in the container's user and mount namespace, before it changes to the
# container's root, and mounts what it adds to $ENROOT_MOUNTS afterwards.
#
# A container asks by its variable RDMAPREP_PLAN=NAME; one that says `RDMAPREP_PLAN=` wants none. In a job of Slurm, the plan
# slurm-JOBID is meant where it is published. No NIC moves: the container is in the host's network namespace.
set -eu
export LC_ALL=C

fail() { # CODE TEXT: the codes are those of rdmaprep
  printf 'rdmaprep: enroot: %s\n' "$2" >&2
  exit "$1"
}

dir=${RDMAPREP_ENROOT_DIR:-/run/rdmaprep-enroot}
[ -n "${ENROOT_ENVIRON-}" ] || fail 2 "not called by enroot: there is no ENROOT_ENVIRON"
[ -r "$ENROOT_ENVIRON" ] || fail 2 "$ENROOT_ENVIRON cannot be read"
# Of several lines the last one counts, for enroot, too.
if asked=$(grep '^RDMAPREP_PLAN=' "$ENROOT_ENVIRON"); then
  plan=$(printf '%s\n' "$asked" | tail -n 1)
  plan=${plan#*=}
  [ -n "$plan" ] || exit 0
else
  plan=slurm-${SLURM_JOB_ID-}
  case $plan in *[!A-Za-z0-9_.-]*) exit 0 ;; esac
  [ -e "$dir/plans/$plan" ] || exit 0
fi

# The image may have written that.
[ ${#plan} -le 64 ] || plan=.
case $plan in
  .* | *[!A-Za-z0-9_.-]*) fail 3 "RDMAPREP_PLAN is no plan name (1 to 64 letters, digits, '_', '.', '-', the first no dot)" ;;
esac
file=$dir/plans/$plan
[ -r "$file" ] || fail 3 "plan $plan is not published on this node: as root, hooks/enroot/publish $plan"
[ -n "${ENROOT_MOUNTS-}" ] || fail 2 "this enroot has no ENROOT_MOUNTS: 3.0 or later is needed"

# All that could stand against it comes before the first change.
while read -r what rest; do
  case $what in
    netns)
      [ "$(readlink /proc/self/ns/net)" = "$rest" ] ||
        fail 3 "the container has a network namespace of its own (--container-unshare=net?), and no NIC of plan $plan is there"
      ;;
    rail)
      [ -e "/sys/class/net/$rest" ] || [ -e "/sys/class/infiniband/$rest" ] ||
        fail 9 "$rest of plan $plan is not on this host: another container may hold it, as rdmaprep status tells root"
      ;;
    node)
      # A driver that is reloaded takes the next number; soft-RoCE does so with every move.
      [ "$(cat "/sys/class/infiniband_verbs/${rest% *}/ibdev" 2> /dev/null)" = "${rest#* }" ] ||
        fail 9 "${rest% *} is not ${rest#* }'s any more: as root, hooks/enroot/publish $plan again"
      ;;
    env | mount) ;;
    *) fail 2 "$file has a line that is not known here: $what" ;;
  esac
done < "$file"

# An image's last line may have no end.
for list in "$ENROOT_ENVIRON" "$ENROOT_MOUNTS"; do
  [ ! -e "$list" ] || [ -z "$(tail -c 1 "$list")" ] || echo >> "$list"
done
while read -r what rest; do
  case $what in
    # What the user set counts.
    env) grep -q "^${rest%%=*}=" "$ENROOT_ENVIRON" || printf '%s\n' "$rest" >> "$ENROOT_ENVIRON" ;;
    mount) printf '%s\n' "$rest" >> "$ENROOT_MOUNTS" ;;
  esac
done < "$file"
