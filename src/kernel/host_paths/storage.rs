//! Block devices and file systems of this host that are another machine's. Between attempts to
//! connect they have no socket, and over RDMA none at all.

use std::collections::HashMap;
use std::path::Path;
use std::{fs, io};

use nix::libc::IPPROTO_TCP;
use rdma_model::snapshot::{Connection, Question, Snapshot};

use super::{address, link_of};
use crate::select::protected_ifaces::{Facts, Socket};

const NFS: u16 = 2049;
/// IANA's port for NFS over RDMA.
const NFS_RDMA: u16 = 20049;
const NVME: u16 = 4420;
const ISCSI: u16 = 3260;

/// All that is seen below sysfs, and the NFS mounts of this thread's mount namespace.
pub(super) fn servers(sysfs: &Path, host: &Snapshot, facts: &mut Facts) {
    nfs(host, facts);
    for (class, read) in [
        ("nvme", nvme as fn(&Path, &Snapshot) -> Option<Socket>),
        ("iscsi_connection", iscsi),
    ] {
        match fs::read_dir(sysfs.join("class").join(class)) {
            Ok(entries) => facts.sockets.extend(
                entries
                    .flatten()
                    .filter_map(|entry| read(&entry.path(), host)),
            ),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => facts
                .not_asked
                .push(format!("the {class} devices of this host: {e}")),
        }
    }
}

fn socket(question: Question, is_rdma: bool, remote_port: u16) -> Socket {
    // RDMA is no protocol over IP that routing could look at.
    let protocol = if is_rdma { 0 } else { IPPROTO_TCP as u8 };
    Socket {
        question,
        connection: Connection {
            protocol,
            local_port: 0,
            remote_port,
        },
    }
}

/// The client closes the connection of a mount that is idle for five minutes (XS_IDLE_DISC_TO in
/// include/linux/sunrpc/xprt.h).
fn nfs(host: &Snapshot, facts: &mut Facts) {
    match fs::read("/proc/thread-self/mountinfo") {
        Ok(text) => {
            facts
                .sockets
                .extend(text.split(|b| *b == b'\n').filter_map(|line| {
                    let (server, is_rdma) = nfs_server(line)?;
                    Some(socket(
                        address(&server, host)?,
                        is_rdma,
                        if is_rdma { NFS_RDMA } else { NFS },
                    ))
                }));
        }
        Err(e) => facts
            .not_asked
            .push(format!("the NFS mounts of this host: {e}")),
    }
}

/// The server of an NFS mount, by its option `addr` (nfs_show_mount_options() in fs/nfs/super.c),
/// and whether it is over RDMA.
fn nfs_server(line: &[u8]) -> Option<(String, bool)> {
    let text = String::from_utf8_lossy(line);
    let mut of_file_system = text.split_once(" - ")?.1.split(' ');
    matches!(of_file_system.next()?, "nfs" | "nfs4").then_some(())?;
    let options: Vec<&str> = of_file_system.next_back()?.split(',').collect();
    let found = options
        .iter()
        .find_map(|option| option.strip_prefix("addr="));
    Some((
        found?.to_owned(),
        options
            .iter()
            .any(|option| option.starts_with("proto=rdma")),
    ))
}

fn word(device: &Path, file: &str) -> Option<String> {
    fs::read_to_string(device.join(file))
        .ok()
        .map(|text| text.trim().to_owned())
}

/// A controller (nvme_sysfs_show_address() and nvmf_get_address() in drivers/nvme/host):
/// `traddr=10.0.0.9,trsvcid=4420,…`.
fn nvme(device: &Path, host: &Snapshot) -> Option<Socket> {
    let transport = word(device, "transport")?;
    matches!(transport.as_str(), "tcp" | "rdma").then_some(())?;
    word(device, "state")
        .filter(|state| state.starts_with("deleting"))
        .is_none()
        .then_some(())?;
    let text = word(device, "address")?;
    let pairs = text.split(',').filter_map(|part| part.split_once('='));
    let values: HashMap<&str, &str> = pairs.collect();
    let to = address(values.get("traddr")?, host)?;
    let from = values
        .get("src_addr")
        .or(values.get("host_traddr"))
        .and_then(|own| own.split('%').next()?.parse().ok());
    let on = values
        .get("host_iface")
        .and_then(|name| link_of(name, host));
    let question = Question {
        from,
        oif: to.oif.or(on.map(|n| n.ifindex)),
        ..to
    };
    Some(socket(
        question,
        transport == "rdma",
        values
            .get("trsvcid")
            .and_then(|port| port.parse().ok())
            .unwrap_or(NVME),
    ))
}

/// A connection of a session, whether it is over TCP or RDMA (show_conn_ep_param_ in
/// drivers/scsi/scsi_transport_iscsi.c).
fn iscsi(device: &Path, host: &Snapshot) -> Option<Socket> {
    // What it is, else what was configured.
    let [to, port] = ["address", "port"]
        .map(|what| word(device, what).or_else(|| word(device, &format!("persistent_{what}"))));
    let to = address(&to?, host)?;
    let port = port.and_then(|port| port.parse().ok());
    Some(socket(to, false, port.unwrap_or(ISCSI)))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn nfs_mounts_name_their_servers() {
        let line = |end: &str| {
            nfs_server(format!("90 28 0:49 / /a\\040b rw,relatime shared:1 - {end}").as_bytes())
        };
        let server = "nfs srv:/x \
            rw,vers=3,proto=rdma,port=20049,mountaddr=10.1.0.9,mountproto=tcp,addr=10.0.0.9";
        assert_eq!(line(server), Some(("10.0.0.9".to_owned(), true)));
        let server = "nfs4 [fe80::9%r0]:/ \
            rw,vers=4.2,proto=tcp6,clientaddr=fe80::1%r0,local_lock=none,addr=fe80::9%r0";
        assert_eq!(line(server), Some(("fe80::9%r0".to_owned(), false)));
        assert_eq!(line("tmpfs addr=10.0.0.9 rw,addr=10.0.0.9"), None);
        assert_eq!(nfs_server(b""), None);
    }

    #[test]
    fn block_devices_name_their_servers() {
        let sysfs = tempfile::tempdir().unwrap();
        let device = |at: &str, files: &[(&str, &str)]| {
            let at = sysfs.path().join("class").join(at);
            fs::create_dir_all(&at).unwrap();
            files
                .iter()
                .for_each(|(name, text)| fs::write(at.join(name), format!("{text}\n")).unwrap());
        };
        let over =
            "traddr=10.0.0.9,trsvcid=4421,host_traddr=10.0.0.1,host_iface=r0,src_addr=10.0.0.2";
        device(
            "nvme/nvme0",
            &[
                ("transport", "rdma"),
                ("state", "connecting"),
                ("address", over),
            ],
        );
        device(
            "nvme/nvme1",
            &[
                ("transport", "tcp"),
                ("state", "live"),
                ("address", "traddr=fe80::9%r0"),
            ],
        );
        device(
            "nvme/nvme2",
            &[
                ("transport", "tcp"),
                ("state", "deleting"),
                ("address", "traddr=10.0.0.7"),
            ],
        );
        device(
            "nvme/nvme3",
            &[
                ("transport", "pcie"),
                ("state", "live"),
                ("address", "0000:01:00.0"),
            ],
        );
        device(
            "iscsi_connection/connection1:0",
            &[
                ("persistent_address", "10.0.0.8"),
                ("persistent_port", "3261"),
            ],
        );
        let netdevs =
            serde_json::from_value(serde_json::json!([{ "name": "r0", "ifindex": 7 }])).unwrap();
        let (mut facts, host) = (
            Facts::default(),
            Snapshot {
                netdevs,
                ..Snapshot::default()
            },
        );
        servers(sysfs.path(), &host, &mut facts);
        let mut seen: Vec<_> = facts
            .sockets
            .into_iter()
            .map(|s| (s.question, s.connection))
            .collect();
        seen.sort();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let over = |protocol, remote_port| Connection {
            protocol,
            local_port: 0,
            remote_port,
        };
        let to = |text: &str, from: Option<&str>, oif| Question {
            from: from.map(ip),
            oif,
            ..Question::to(ip(text))
        };
        let expected = [
            (to("10.0.0.8", None, None), over(6, 3261)),
            (to("10.0.0.9", Some("10.0.0.2"), Some(7)), over(0, 4421)),
            (to("fe80::9", None, Some(7)), over(6, 4420)),
        ];
        assert_eq!(seen, expected);
    }
}
