//! A tenant that has every capability in its namespace sets whatever can be set on its NICs: the
//! host and the next tenant find them as they were, or the NICs are held back, with the reason.
//!
//! Settings that need a driver of hardware are in tests/vm/cases/59-device-settings.sh.

use std::process::Command;
use std::time::Duration;

use crate::alone_as_root;
use crate::compare::{BPF, Observation, differs_for_good};
use testkit::rich::rich;
use testkit::{Container, Host, Said, ipv6, run, sh, until};

/// The tenant's NICs.
const NICS: &str = "r0,r1";
/// How long the kernel may take until addresses and carriers stand still: a work queue that shares
/// two cores with all tests.
const SETTLED: Duration = Duration::from_secs(60);

const LINK_FLAGS: &str = "
    ip link set r0 arp off; ip link set r0 multicast off; ip link set r0 dynamic on; ip link set \
    r0 mode dormant
    ip link set r0 promisc on; ip link set r0 allmulticast on; ip link set r0 trailers off; ip \
    link set r0 protodown on
    ip link set r1 arp off; ip link set r1 down";
const LINK_SIZES: &str = "
    ip link set r0 mtu 1300; ip link set r0 txqueuelen 3; ip link set r0 gso_max_size 4000; ip \
    link set r0 gso_max_segs 2
    ip link set r0 gro_max_size 5000; ip link set r0 gso_ipv4_max_size 6000; ip link set r0 \
    gro_ipv4_max_size 7000";
const LINK_TEXTS: &str = "
    ip link set r0 alias 'mine now'; ip link set r0 group 66; ip link set r1 alias ''
    ip link property del dev r0 altname fabric-rail-0-slot-00; ip link property add dev r0 \
    altname other-name";
const LINK_ADDRESS: &str = "ip link set r0 down; ip link set r0 address 02:66:66:66:66:66; ip \
    link set r0 broadcast 01:02:03:04:05:06; ip link set r0 up";
const NAMES: &str = "
    ip link set r0 down; ip link set r1 down; ip link set r0 name x9; ip link set r1 name r0; ip \
    link set x9 name r1
    ip link set r1 up; ip link set r0 up";
const ALTNAMES: &str = "
    for i in $(seq 240); do
      echo link property add dev r0 altname $(printf '%03d' $i)$(printf 'a%.0s' $(seq 124))
    done | ip -force -batch -";
const ALTNAME_BYTES: &str = r#"ip link property add dev r0 altname "$(printf '\377\376nine')""#;
const ADDRESSES: &str = "
    ip address flush dev r0; ip address add 10.0.0.66/24 dev r0; ip address add 172.16.0.1/12 dev r1
    ip address add fd66::1/64 dev r0; ip address add 192.168.9.2/24 dev r1; ip address add \
    fe80::66/64 dev r1
    ip address del fd01::1/64 dev r1; ip address change 10.1.0.1/24 dev r1 valid_lft 100 \
    preferred_lft 50";
const ROUTES: &str = "
    ip route flush table all; ip rule flush; ip -6 rule flush; ip rule add from all iif r0 lookup \
    66 priority 1
    ip link set r0 up; ip link set r1 up
    ip route add 10.66.0.0/16 via 10.0.0.66 dev r0 onlink; ip nexthop add id 66 via 10.0.0.9 dev \
    r0 onlink; ip route add 10.67.0.0/16 nhid 66";
const QDISCS: &str = "
    tc qdisc replace dev r0 root handle 66: tbf rate 8kbit burst 2kb latency 900ms
    tc qdisc add dev r1 root handle 1: htb default 1; tc class add dev r1 parent 1: classid 1:1 \
    htb rate 8kbit";
const FILTERS: &str = "
    tc qdisc add dev r0 clsact
    tc filter add dev r0 ingress protocol ip u32 match u32 0 0 flowid 1:1
    tc filter add dev r0 egress protocol all u32 match u32 0 0 flowid 1:1
    tc qdisc add dev r1 ingress_block 66 ingress; tc filter add block 66 protocol ip u32 match \
    u32 0 0 flowid 1:1";
const XDP_GENERIC: &str = "python3 $BPF xdp r0 generic; python3 $BPF xdp r1 generic";
const XDP_NATIVE: &str = "python3 $BPF xdp r0 native";
const TCX: &str = "python3 $BPF tcx r0 ingress egress; python3 $BPF tcx r1 egress";
const FEATURES: &str = "
    for f in tx rx sg tso gso gro rxvlan txvlan ntuple rxhash loopback rx-all rx-gro-list \
    rx-udp-gro-forwarding tx-nocache-copy tx-gso-list; do
      ethtool -K r0 $f off; ethtool -K r1 $f on; done";
const CHANNELS: &str = "
    ethtool -L r0 rx 2 tx 2; ethtool -L r1 rx 1 tx 1; ethtool -G r0 rx 64; ethtool -C r0 rx-usecs \
    999; ethtool -A r0 rx off
    ethtool -s r0 speed 10 duplex half autoneg off; ethtool -s r0 wol d; ethtool --set-eee r0 eee \
    off; ethtool -X r0 weight 1
    ethtool --set-fec r0 encoding off; ethtool --set-priv-flags r0 x on";
const SYSCTLS: &str = "
    for f in /proc/sys/net/ipv4/conf/r0/* /proc/sys/net/ipv6/conf/r0/* \
    /proc/sys/net/ipv4/neigh/r0/* /proc/sys/net/ipv6/neigh/r0/*; do
      case $f in */stable_secret) ;; *) v=$(cat $f); for n in 0 1 2 3 1300 $((v + 1)); do [ $n = \
      $v ] || ! echo $n > $f || break; done ;; esac
    done
    echo 1 > /proc/sys/net/ipv6/conf/r1/disable_ipv6";
const QUEUE_FILES: &str = "
    for n in r0 r1; do d=/sys/class/net/$n
      for q in $d/queues/rx-*; do echo 3 > $q/rps_cpus; echo 512 > $q/rps_flow_cnt; done
      for q in $d/queues/tx-*; do echo 1 > $q/xps_cpus; echo 1 > $q/xps_rxqs; echo 7 > $q/tx_maxrate
        echo 9 > $q/byte_queue_limits/limit_min; done
      echo 90000 > $d/gro_flush_timeout; echo 7 > $d/napi_defer_hard_irqs; echo 1 > $d/threaded; \
      echo 1 > $d/proto_down
      echo 0 > $d/carrier; done";
const UPPERS_WITHIN: &str = "
    ip link add mv0 link r0 type macvlan mode bridge; ip link set mv0 up; ip address add \
    10.0.0.67/24 dev mv0
    ip link add vx0 type vxlan id 66 dev r0 group 239.6.6.6 dstport 4789; ip link set vx0 up
    ip link add br66 type bridge; ip link set r1 master br66; ip link set br66 up; bridge vlan \
    add dev r1 vid 66";
const UPPERS_ELSEWHERE: &str = "
    unshare --net sleep 90 > /dev/null 2>&1 < /dev/null & there=$!; sleep 0.3
    ip link add mv0 link r0 type macvlan mode bridge; ip link set mv0 netns $there
    nsenter --net=/proc/$there/ns/net ip link set mv0 up
    nsenter --net=/proc/$there/ns/net ip address add 10.0.0.68/24 dev mv0
    ip link add vx0 type vxlan id 66 dev r1 group 239.6.6.6 dstport 4789; ip link set vx0 netns \
    $there";
const NEIGHBOURS: &str = "
    ip neighbour flush all; ip neighbour add 10.0.0.66 lladdr 02:66:66:66:66:66 dev r0 nud permanent
    ip neighbour replace 10.0.0.9 lladdr 02:66:66:66:66:66 dev r0 nud permanent
    ip neighbour add 10.0.0.67 dev r0 managed; ip neighbour add proxy 10.0.0.68 dev r0; ip \
    neighbour add proxy fd00::68 dev r1
    seq -f 'neighbour add 10.1.%g.7 lladdr 02:66:66:66:66:66 dev r1 nud permanent' 200 | ip \
    -force -batch -";
const MULTICAST: &str = "
    ip maddr add 01:00:5e:66:66:66 dev r0; ip maddr add 33:33:00:66:66:66 dev r1; ip address add \
    239.6.6.6/32 dev r0 autojoin
    bridge fdb add 02:00:00:00:00:66 dev r0 self; bridge fdb add 02:00:00:00:00:67 dev r1 self";
const XFRM: &str = "
    ip xfrm state add src 10.0.0.66 dst 10.0.0.9 proto ah spi 66 mode transport auth digest_null ''
    ip xfrm state add src 10.0.0.66 dst 10.0.0.9 proto comp spi 66 mode transport comp deflate
    ip xfrm policy add src 0.0.0.0/0 dst 0.0.0.0/0 dev r0 dir out action block
    ip xfrm policy add src 0.0.0.0/0 dst 0.0.0.0/0 dir in action block";
const INET6: &str = "
    ip link set r0 addrgenmode random; ip link set r1 addrgenmode none; echo 2001:db8::66 > \
    /proc/sys/net/ipv6/conf/r0/stable_secret
    ip link set r0 down; ip link set r0 up; echo 1 > /proc/sys/net/ipv6/conf/r1/accept_ra; ip \
    token set ::66 dev r1";
const SYSCTLS_OF_ALL: &str = "
    for d in all default; do for f in /proc/sys/net/ipv4/conf/$d/* /proc/sys/net/ipv6/conf/$d/*; \
    do echo 1 > $f; done; done
    echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6";
const GONE: &str = "
    unshare --net sleep 90 > /dev/null 2>&1 < /dev/null & there=$!; sleep 0.3; ip link set r0 \
    netns $there
    nsenter --net=/proc/$there/ns/net ip link set r0 up";
const GONE_RENAMED: &str = "
    unshare --net sleep 90 > /dev/null 2>&1 < /dev/null & there=$!; sleep 0.3; ip link set r1 \
    netns $there name mine
    nsenter --net=/proc/$there/ns/net ip link set mine up";

/// What was before a tenant, what it was given, and what was said when it ended.
struct Tenancy {
    before: Observation,
    given: Observation,
    stop: Said,
}

impl Tenancy {
    /// A tenant does that.
    fn of(host: &Host, does: &str) -> Tenancy {
        // No duplicate address detection: it takes seconds.
        sh("mount -t sysfs sysfs /sys; echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad");
        rich(host);
        // What a host may have of its own.
        sh(
            "tc qdisc add dev r1 root handle 7: tbf rate 1gbit burst 64kb latency 20ms; ip link \
            set r1 gso_max_size 50000
            ethtool -K r1 tx-nocache-copy on; ethtool -L r1 rx 2 tx 2; echo 1 > \
            /sys/class/net/r0/queues/rx-0/rps_cpus || :",
        );
        let before = settled(Observation::here_with_bpf);
        host.prepare(NICS);
        let mut first = Container::new("first");
        first.create(host).ok();
        let pid = first.pid();
        // A link-local address comes when the kernel has taken notice of the carrier, once in a
        // second.
        let inside = |line: &str| first.sh(line);
        until("each NIC has a link-local address", || {
            inside("ip -o -6 address show scope link").lines().count() >= 2
        });
        until("the kernel has done its part", || {
            ipv6::unfinished(inside, true).is_empty()
        });
        let whole = settled(|| Observation::inside(pid));
        let given = of_nics(&whole);
        mischief(&first, does);
        let done = whole.difference(&Observation::inside(pid));
        println!("changed: {}", done.len());
        assert!(
            !done.is_empty(),
            "the tenant has changed nothing that can be seen"
        );
        let stop = first.stop(host);
        println!("stop: {} {}", stop.code.unwrap_or(-1), stop.err);
        Tenancy {
            before,
            given,
            stop,
        }
    }

    /// Insists that the host has everything, and the next tenant gets what the first one got.
    fn left_no_trace(self, host: &Host) {
        self.stop.ok();
        let difference = differs_for_good(&self.before, SETTLED, Observation::here_with_bpf);
        assert!(
            difference.is_empty(),
            "the host differs:\n{}",
            difference.join("\n")
        );
        let second = Container::new("second");
        second.create(host).ok();
        let pid = second.pid();
        let difference =
            differs_for_good(&self.given, SETTLED, || of_nics(&Observation::inside(pid)));
        assert!(
            difference.is_empty(),
            "the next tenant's NICs differ:\n{}",
            difference.join("\n")
        );
    }
}

/// The NICs are not given on, and status has the reason.
fn held_back(host: &Host, said: &Said) {
    assert_eq!(said.code, Some(8), "{said:#?}");
    assert!(
        said.err
            .lines()
            .last()
            .is_some_and(|l| l.starts_with("rdmaprep: ") && l.len() > 40),
        "{said:#?}"
    );
    let status = host.rdmaprep(&["status"]);
    assert!(
        status.out.contains("r0") || status.out.contains("r1"),
        "{status:#?}"
    );
    let next = Container::new("second").create(host);
    assert!(matches!(next.code, Some(8 | 9)), "{next:#?}");
    println!("held back: {} {}", said.err, status.out);
}

/// Runs it in the container with all capabilities, its own /sys, and whatever of it the kernel
/// refuses is refused.
fn mischief(tenant: &Container, does: &str) {
    let net = format!("--net=/proc/{}/ns/net", tenant.pid());
    let script = format!("mount -t sysfs sysfs /sys; {does}\ntrue");
    let said = run(
        Command::new("nsenter")
            .args([&net, "unshare", "--mount", "sh", "-c", &script])
            .env("BPF", BPF),
        "",
    );
    println!("{}", said.err);
    said.ok();
}

/// What it says of the NICs, not of the rest of a namespace.
fn of_nics(all: &Observation) -> Observation {
    all.filtered(|section, line| {
        let named = |n: &str| line.split(|c: char| !c.is_alphanumeric()).any(|w| w == n);
        !matches!(section, "socket") && (named("r0") || named("r1"))
    })
}

/// Two looks in a row that are equal.
fn settled(look: impl Fn() -> Observation) -> Observation {
    let mut last = look();
    for _ in 0..40 {
        std::thread::sleep(Duration::from_millis(100));
        let next = look();
        if next == last {
            break;
        }
        last = next;
    }
    last
}

/// One test per kind of mischief, so that a failure names it.
macro_rules! tenants {
    ($($name:ident: $does:expr;)*) => {$(
        #[test]
        fn $name() {
            alone_as_root(|host| Tenancy::of(host, $does).left_no_trace(host));
        }
    )*};
}

tenants! {
    tenant_that_sets_link_flags: LINK_FLAGS;
    tenant_that_sets_link_sizes: LINK_SIZES;
    tenant_that_sets_texts_of_links: LINK_TEXTS;
    tenant_that_sets_hardware_addresses: LINK_ADDRESS;
    tenant_that_swaps_names: NAMES;
    tenant_that_adds_240_altnames: ALTNAMES;
    tenant_that_adds_an_altname_of_bytes: ALTNAME_BYTES;
    tenant_that_sets_addresses: ADDRESSES;
    tenant_that_sets_routes: ROUTES;
    tenant_that_sets_qdiscs: QDISCS;
    tenant_that_adds_filters: FILTERS;
    tenant_that_attaches_xdp_generic: XDP_GENERIC;
    tenant_that_attaches_xdp_native: XDP_NATIVE;
    tenant_that_attaches_tcx: TCX;
    tenant_that_sets_features: FEATURES;
    tenant_that_sets_channels: CHANNELS;
    tenant_that_sets_sysctls: SYSCTLS;
    tenant_that_sets_sysctls_of_all: SYSCTLS_OF_ALL;
    tenant_that_sets_queue_files: QUEUE_FILES;
    tenant_that_stacks_links: UPPERS_WITHIN;
    tenant_that_sets_neighbours: NEIGHBOURS;
    tenant_that_joins_multicast: MULTICAST;
    tenant_that_sets_xfrm: XFRM;
    tenant_that_sets_address_generation: INET6;
    tenant_that_moves_a_nic_on: GONE;
}

#[test]
fn tenant_that_does_it_all_at_once() {
    alone_as_root(|host| {
        let all = [
            LINK_FLAGS,
            LINK_SIZES,
            LINK_TEXTS,
            LINK_ADDRESS,
            ADDRESSES,
            QDISCS,
            FILTERS,
            XDP_GENERIC,
            TCX,
            FEATURES,
            CHANNELS,
            SYSCTLS,
            QUEUE_FILES,
            NEIGHBOURS,
            MULTICAST,
            XFRM,
            INET6,
            UPPERS_WITHIN,
            ALTNAMES,
            ROUTES,
            NAMES,
            GONE,
        ];
        let tenancy = Tenancy::of(host, &all.join("\n"));
        // It has another name where it is now.
        assert!(
            tenancy
                .stop
                .err
                .contains("r1 is neither in the container's namespace nor on the host"),
            "{:?}",
            tenancy.stop
        );
        held_back(host, &tenancy.stop);
    });
}

/// A NIC that is no hardware has nothing but its name, index and address to be known by in a
/// namespace that may be anyone's.
#[test]
fn tenant_that_moves_a_nic_on_renamed() {
    alone_as_root(|host| {
        let tenancy = Tenancy::of(host, GONE_RENAMED);
        held_back(host, &tenancy.stop);
    });
}

/// What a tenant stacked on its NICs and put into a further namespace is removed: it would use the
/// NIC while the next tenant has it.
#[test]
fn tenant_that_stacks_links_elsewhere() {
    alone_as_root(|host| {
        let tenancy = Tenancy::of(host, UPPERS_ELSEWHERE);
        // The kernel refuses it while there is another one.
        let alone = run(
            Command::new("ip").args("link add probe link r0 type macvlan mode passthru".split(' ')),
            "",
        );
        alone.ok();
        sh("ip link del probe; ip link set r0 promisc off");
        tenancy.left_no_trace(host);
    });
}

/// The host's own tcx programs, which a tenant detaches: they cannot be attached again, so that the
/// host gets a report.
#[test]
fn tenant_that_detaches_the_hosts_tcx() {
    alone_as_root(|host| {
        sh("mount -t sysfs sysfs /sys");
        host.rails(2);
        run(
            Command::new("python3").args([BPF, "tcx", "r0", "ingress"]),
            "",
        )
        .ok();
        let before = settled(Observation::here_with_bpf);
        host.prepare(NICS);
        let mut tenant = Container::new("first");
        let said = tenant.create(host);
        if said.code == Some(0) {
            mischief(&tenant, "python3 $BPF detach r0 ingress");
            let said = tenant.stop(host);
            return held_back(host, &said);
        }
        // Or its NIC is not given away.
        said.fails(3, &["r0"]);
        let difference = differs_for_good(&before, SETTLED, Observation::here_with_bpf);
        assert!(difference.is_empty(), "{}", difference.join("\n"));
    });
}
