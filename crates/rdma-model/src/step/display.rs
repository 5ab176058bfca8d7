//! A step in words, as errors and `--dry-run` name it.

use std::fmt;

use super::{Side, Step, VirtualLink};

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Host => "on the host",
            Side::Inside => "in the container",
        })
    }
}

impl fmt::Display for Step {
    #[allow(clippy::too_many_lines, reason = "a table: one line for each step")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::RdmaLinkDelete { side, hca } => write!(f, "deleting RDMA link {hca} {side}"),
            Step::RdmaLinkAdd { side, hca, dev, .. } => {
                write!(f, "making RDMA link {hca} on {dev} {side}")
            }
            Step::RdmaRename { hca, name } => write!(f, "renaming RDMA device {hca} to {name}"),
            Step::RdmaMove {
                from: Side::Host,
                hca,
                ..
            } => write!(f, "moving RDMA device {hca} into the container"),
            Step::RdmaMove {
                from: Side::Inside,
                hca,
                ..
            } => write!(f, "moving RDMA device {hca} home"),
            Step::Move {
                from: Side::Host,
                dev,
                ..
            } => write!(f, "moving {dev} into the container"),
            Step::Move {
                from: Side::Inside,
                dev,
                name,
                ..
            } => write!(f, "moving {dev} home as {name}"),
            Step::Make {
                side,
                dev,
                made:
                    VirtualLink {
                        kind,
                        over: Some(over),
                        ..
                    },
            } => {
                write!(f, "making {kind} {dev} on {over} {side}")
            }
            Step::Make { side, dev, made } => write!(f, "making {} {dev} {side}", made.kind),
            Step::Delete { side, dev } => write!(f, "deleting {dev} {side}"),
            Step::Enslave { side, dev, master } => write!(f, "putting {dev} into {master} {side}"),
            Step::Rename { side, dev, name } => write!(f, "renaming {dev} to {name} {side}"),
            Step::AltnamesDelete {
                side,
                dev,
                altnames,
            } => match altnames.as_slice() {
                [altname] => write!(f, "deleting altname {altname} of {dev} {side}"),
                all => write!(f, "deleting {} altnames of {dev} {side}", all.len()),
            },
            Step::AltnameAdd { side, dev, altname } => {
                write!(f, "adding altname {altname} to {dev} {side}")
            }
            Step::Release { side, dev } => write!(f, "freeing {dev} from its master {side}"),
            Step::XdpDetach { side, dev } => {
                write!(f, "detaching an XDP program from {dev} {side}")
            }
            Step::ProgramDetach { side, dev, program } => {
                write!(f, "taking the {program} off {dev} {side}")
            }
            Step::ProgramAttach {
                side, dev, program, ..
            } => write!(f, "putting the {program} back on {dev} {side}"),
            Step::Sysctls { side, dev, .. } => write!(f, "writing sysctls of {dev} {side}"),
            Step::Settings {
                side,
                dev,
                settings: s,
            } => {
                write!(f, "setting MTU {} and the like of {dev} {side}", s.mtu)
            }
            Step::Device { side, dev, .. } => {
                write!(f, "restoring device settings of {dev} {side}")
            }
            Step::QdiscAdd {
                side,
                dev,
                qdisc: q,
            } => write!(f, "attaching {} to {dev} {side}", q.kind),
            Step::QdiscDelete {
                side,
                dev,
                qdisc: q,
            } => write!(f, "removing {} from {dev} {side}", q.kind),
            Step::Token { side, dev, .. } => write!(f, "setting the IPv6 token of {dev} {side}"),
            Step::Mac { side, dev, mac } => write!(f, "setting address {mac} of {dev} {side}"),
            Step::AddressAdd {
                side,
                dev,
                address: a,
            } => {
                write!(f, "adding {}/{} to {dev} {side}", a.address, a.prefix)
            }
            Step::AddressDelete {
                side,
                dev,
                address: a,
            } => {
                write!(f, "deleting {}/{} from {dev} {side}", a.address, a.prefix)
            }
            Step::Link { side, dev, up } => write!(
                f,
                "setting {dev} {} {side}",
                if *up { "up" } else { "down" }
            ),
            Step::RouteAdd { side, route } => write!(f, "adding route {route} {side}"),
            Step::LegsAdd { side, route } => write!(f, "adding legs of route {route} {side}"),
            Step::RoutePrepend { side, route } => write!(f, "putting route {route} first {side}"),
            Step::RouteDelete { side, route } => write!(f, "deleting route {route} {side}"),
            Step::NexthopAdd { side, nexthop } => {
                write!(f, "making nexthop object {nexthop} {side}")
            }
            Step::NexthopDelete { side, id } => write!(f, "deleting nexthop object {id} {side}"),
            Step::NeighbourAdd {
                side,
                dev,
                neighbour,
            } => {
                write!(f, "adding neighbour {neighbour} to {dev} {side}")
            }
            Step::NeighbourDelete {
                side,
                dev,
                neighbour,
            } => {
                write!(f, "deleting neighbour {neighbour} of {dev} {side}")
            }
            Step::RuleAdd { side, rule } => write!(f, "adding rule {rule} {side}"),
            Step::RuleAppend { side, rule } => write!(f, "putting rule {rule} last {side}"),
            Step::RuleDelete { side, rule } => write!(f, "deleting rule {rule} {side}"),
            Step::AwaitPort { hca, port, .. } => {
                write!(f, "waiting for port {port} of {hca} and its RoCE v2 GID")
            }
        }
    }
}
