//! What the kubelet itself sends, as it was recorded: no client in Rust names such an authority.

use std::path::Path;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::machine::Machine;

/// GetInfo, from kubelet 1.36.2 to `/var/lib/kubelet/plugins_registry/rdmaprep.io-reg.sock`: the
/// settings, the fields of the call and its message.
const CALL: &str = "505249202a20485454502f322e300d0a0d0a534d0d0a0d0a\
    000000040000000000\
    00009a010400000001\
    838645 9c62ba2d98d558598c84d83498f52fb4b31909b06931ea63115392a94f\
    41 af54587b8ec545868346a8b0f5b632d054aa2c35d16cc6a91158598c84d9e95161b24a475d85ad731d6b0b32e839\
       3aff\
    5f8b1d75d0620d263d4c4d6564 7a8a9acac8b4c7602bbc15c3 4002746586 4d833505b11f\
    408e9acac8b0c842d6958b510f21aa9b 839bd9ab 40899acac8b24d494f6a7f 857df13607ad\
    000005000100000001 0000000000";
/// The same once more, by the numbers of what was sent.
const AGAIN: &str = "000009010400000003 8386c4c3c2c1c0bfbe 000005000100000003 0000000000";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: String = hex.split_whitespace().collect();
    let pairs = (0..digits.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

/// What comes back until that is in it.
async fn read_until(stream: &UnixStream, part: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while !all.windows(part.len()).any(|there| there == part) {
        stream.ready(Interest::READABLE).await.unwrap();
        let mut bytes = [0; 4096];
        match stream.try_read(&mut bytes) {
            Ok(0) => panic!("closed after {all:02x?}"),
            Ok(count) => all.extend(&bytes[..count]),
            Err(_) => {}
        }
    }
    all
}

async fn connect(path: &Path) -> UnixStream {
    loop {
        match UnixStream::connect(path).await {
            Ok(stream) => return stream,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

#[tokio::test]
async fn the_kubelets_own_bytes_are_answered() {
    let machine = Machine::new();
    let running = machine.start();
    let path = machine.path("plugins_registry/rdmaprep.io-reg.sock");
    let calls = async {
        let stream = connect(&path).await;
        for call in [CALL, AGAIN] {
            stream.writable().await.unwrap();
            let call = bytes(call);
            assert_eq!(stream.try_write(&call).unwrap(), call.len());
            read_until(&stream, b"v1.DRAPlugin").await;
        }
    };
    timeout(Duration::from_secs(60), calls).await.unwrap();
    running.end().await;
}
