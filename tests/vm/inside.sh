# shellcheck shell=bash source=tests/vm/container.sh
# What a container that gets v0 and rdma0 must have, seen from its namespace and by its payload; and the line that tells so.
. "$(dirname "${BASH_SOURCE[0]}")/container.sh"

# All that the container must have, seen from its namespace: a line for each.
# shellcheck disable=SC2016 # the shell in the namespace expands it
look='
for dev in v0 rdma0; do
  echo "$dev arp $(cd /proc/sys/net/ipv4/conf/$dev && cat arp_announce arp_ignore arp_filter rp_filter | tr "\n" " ")"
done
ip -brief address | sed "s/@[^ ]*//; s/  */ /g"
ip route show 203.0.113.0/24; ip rule show priority 1000; ip route show table 100
for hca in rxe0 rxe3; do
  cd /sys/class/infiniband/$hca/ports/1
  echo "$hca $(cat state)"
  # One of soft-RoCE has room for 1024.
  for i in $(cd gids && grep -vl "^[0:]*$" *); do
    echo "$hca $(cat gid_attrs/types/$i) $(cat gid_attrs/ndevs/$i) $(cat gids/$i)"
  done
done'
expected='v0 arp 2 1 1 1 
rdma0 arp 2 1 1 1 
v0 UP 198.51.100.1/24
rdma0 UP 192.0.2.1/24 2001:db8::1/64
203.0.113.0/24 via 192.0.2.254 dev rdma0
from 198.51.100.1 lookup 100
198.18.0.0/15 dev v0
rxe0 4: ACTIVE
rxe3 4: ACTIVE
rxe0 RoCE v2 v0 0000:0000:0000:0000:0000:ffff:c633:6401
rxe3 RoCE v2 rdma0 0000:0000:0000:0000:0000:ffff:c000:0201
rxe3 RoCE v2 rdma0 2001:0db8:0000:0000:0000:0000:0000:0001'

inside() { # ID
  local line
  if [ -e /sys/class/net/v0 ] || [ -e /sys/class/net/rdma0 ]; then die "the host still has them"; fi
  said=$(within "$1" sh -c "$look")
  while read -r line; do says "$line"; done <<< "$expected"
}

# The payload tells what it has, and waits; the rest is looked at from the host. gVisor's kernel has no GIDs of its own.
# shellcheck disable=SC2016,SC2034 # the container's shell expands it; for the file that sources this
tells='echo "nodes $(ls /dev/infiniband | tr "\n" " ")"; echo "memlock $(ulimit -l)"
echo "env ${NCCL_IB_HCA:-none}"; [ ! -e /etc/nccl.conf ] || echo "conf $(grep ^NCCL_IB_HCA= /etc/nccl.conf)"
echo "sees $(ls /sys/class/infiniband | tr "\n" " ")"
[ -n "$SANDBOX" ] || for hca in rxe0 rxe3; do
  cd /sys/class/infiniband/$hca/ports/1/gids && echo "gids $hca $(cat 0 1 2 | tr "\n" " ")"
done
[ -n "$SANDBOX" ] || ip -brief address | sed "s/@[^ ]*//; s/  */ /g"
echo ready; exec sleep infinity'

# until_ready PID FILE WHAT: until that payload says so there; PID runs it.
until_ready() {
  until grep -qs '^ready' "$2"; do
    kill -0 "$1" 2>/dev/null || die "$3: $(cat "$2")"
    sleep 0.05
  done
}

# uverbs_of HCA...: the names of their nodes, each with a blank behind it. A case may have made a device again, under another number.
uverbs_of() {
  local hca
  for hca in "$@"; do
    grep -lx "$hca" /sys/class/infiniband_verbs/*/ibdev || echo "////no-node-of-$hca"
  done | cut -d / -f 5 | sort | tr '\n' ' '
}

# check_payload FILE ENV [SANDBOX]: what the payload printed is as it must be; its settings are in its environment (env) or in its
# nccl.conf (conf).
check_payload() {
  local gid
  said=$(cat "$1")
  says "nodes rdma_cm $(uverbs_of rxe0 rxe3)"
  says "memlock unlimited"
  # In rail order: PCI functions first.
  says "$([ "$2" = env ] && echo "env =rxe3,rxe0" || echo "conf NCCL_IB_HCA==rxe3,rxe0")"
  says "sees rxe0 rxe3 "
  [ $# = 2 ] || return 0
  says "v0 UP 198.51.100.1/24"
  says "rdma0 UP 192.0.2.1/24 2001:db8::1/64"
  grep -q '^gids rxe0 .*:ffff:c633:6401' <<< "$said" || die "no GID of v0: $said"
  # Of two addresses the kernel adds the GIDs in either order (a work queue for each event).
  for gid in 0000:ffff:c000:0201 2001:0db8:0000:0000:0000:0000:0000:0001; do
    grep -q "^gids rxe3 .*$gid " <<< "$said" || die "no GID $gid of rdma0: $said"
  done
}

# follow EXAMPLE IMAGE: runs the commands of that example in README.md as they stand there, IMAGE replaced. Each line that README
# shows below a command is in what the command prints, but for numbers of HCAs and PCI addresses, which differ between machines.
follow() {
  local line image=$2
  : > /tmp/ctr/said
  # Without -r: a backslash joins two lines.
  # shellcheck disable=SC2162
  while read line <&3; do
    case $line in
      '# '*)
        line=${line#'# '}
        echo "+ $line"
        eval "${line//IMAGE/"$image"}" > /tmp/ctr/said 2>&1 < /dev/null || die "$line: $(cat /tmp/ctr/said)"
        ;;
      *) nameless < /tmp/ctr/said | grep -qxF -- "$(nameless <<< "$line")" || die "no \"$line\" in: $(cat /tmp/ctr/said)" ;;
    esac
  done 3< <(sed -n "/^<!-- example: $1 -->\$/,/^\`\`\`\$/p" /repo/README.md |
    grep -vE '^(<!--|.{3}console$|.{3}$)')
}
nameless() { sed -E 's/rxe[0-9]+/rxe/g; s/[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]/PCI/g; s/ +/ /g; s/^ //'; }

# cell WHAT VERSION WAY ENV: a line of the README's table, once all of it was seen and the host was restored.
cell() {
  clean
  # On a line of its own, whatever a runtime has left before it.
  printf '\n# cell | %s %s | %s | yes | yes | %s | yes |\n' "$1" "$2" "$3" "$([ "$4" = env ] && echo environment || echo "\`/etc/nccl.conf\`")"
}

# version_of PROGRAM: the first number that it tells of itself.
version_of() { "$1" --version | grep -oE '[0-9][0-9.]*(~[0-9.]+)?' | head -n 1; }
