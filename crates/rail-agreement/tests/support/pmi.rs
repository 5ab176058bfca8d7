//! A launcher with PMI-1, of a few lines.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Barrier, Mutex};

pub type Space = Arc<Mutex<HashMap<String, String>>>;

/// Serves one process as Hydra does: the others see a value after a barrier, a key is put once, and
/// a value is short. With `eager` a process that looks late may see a value one barrier early.
pub fn serve(stream: UnixStream, shared: Space, all: Arc<Barrier>, vallen: usize, eager: bool) {
    let (mut put, mut out) = (Vec::new(), stream.try_clone().unwrap());
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        assert!(line.len() < 1024, "{} bytes", line.len());
        let fields: HashMap<&str, &str> =
            line.split(' ').filter_map(|w| w.split_once('=')).collect();
        let said = match fields["cmd"] {
            "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".to_owned(),
            "get_maxes" => format!("cmd=maxes kvsname_max=256 keylen_max=64 vallen_max={vallen}"),
            "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_1_0".to_owned(),
            "put" => {
                assert!(
                    fields["value"].len() <= vallen
                        && fields["key"].len() <= 64
                        && fields["kvsname"] == "kvs_1_0"
                );
                assert!(
                    !put.iter().any(|(k, _)| k == fields["key"]),
                    "a key is put once"
                );
                put.push((fields["key"].to_owned(), fields["value"].to_owned()));
                "cmd=put_result rc=0 msg=success".to_owned()
            }
            "barrier_in" => {
                if !eager {
                    all.wait();
                }
                shared.lock().unwrap().extend(put.iter().cloned());
                all.wait();
                "cmd=barrier_out rc=0".to_owned()
            }
            "get" => match shared.lock().unwrap().get(fields["key"]) {
                Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
                None => "cmd=get_result rc=-1 msg=key_not_found value=unknown".to_owned(),
            },
            "finalize" => "cmd=finalize_ack rc=0".to_owned(),
            other => panic!("{other}"),
        };
        let _ = writeln!(out, "{said}");
    }
}

pub fn file(stream: UnixStream) -> File {
    File::from(OwnedFd::from(stream))
}

/// The ends that a launcher of so many gives to its processes.
pub fn launch(count: usize, vallen: usize, eager: bool) -> Vec<File> {
    let (shared, all) = (Space::default(), Arc::new(Barrier::new(count)));
    let one = |_| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (shared, all) = (shared.clone(), all.clone());
        std::thread::spawn(move || serve(ours, shared, all, vallen, eager));
        file(theirs)
    };
    (0..count).map(one).collect()
}
