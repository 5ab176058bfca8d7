//! One queue pair with memory and a completion queue of its own.

use std::io;
use std::net::Ipv6Addr;
use std::ptr;
use std::sync::Arc;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::{AddressHandleAttribute, Gid};
use sideway::ibverbs::completion::{BasicCompletionQueue, GenericCompletionQueue};
use sideway::ibverbs::device_context::Mtu;
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::queue_pair::{
    BasicQueuePair, PostSendGuard, QueuePair, QueuePairAttribute, QueuePairState,
    SetScatterGatherEntry, WorkRequestFlags,
};

use super::{Device, cause};

/// Marks the number of a request that receives.
const RECEIVE: u64 = 1 << 63;

/// How much a lane holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes that are sent from, and as many that the other end writes to.
    pub bytes: usize,
    /// Writes at once.
    pub sends: u32,
    /// Writes with a number that the other end makes in all.
    pub receives: u32,
}

/// Where the other end writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub address: u64,
    pub key: u32,
}

/// The other end of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    pub gid: Ipv6Addr,
    pub lid: u16,
    pub queue_pair: u32,
    pub packet: u32,
}

/// How a lane's packets travel: as NCCL sets it (src/transport/net_ib/connect.cc, `ncclIbRtrQp`,
/// `ncclIbRtsQp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    pub port: u8,
    /// Whether packets have a global address: always over Ethernet.
    pub is_global: bool,
    pub gid_index: u8,
    /// As [`super::Port::mtu`].
    pub mtu: u8,
    pub traffic_class: u8,
    pub service_level: u8,
    /// 4.096 µs times two to this power.
    pub timeout: u8,
    pub retries: u8,
}

/// A request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A write, by the number that it was given.
    Sent(u64),
    /// The other end's write, with its number.
    Received(u32),
    /// enum ibv_wc_status, and the vendor's own number.
    Failed { status: u32, vendor: u32 },
}

/// Memory that an HCA reads and writes. It is reached by raw pointers alone: no reference to it
/// exists while the other end may write.
struct Buffer {
    start: *mut u8,
    length: usize,
}

// SAFETY: the buffer is owned, and no method keeps a reference to its bytes.
unsafe impl Send for Buffer {}

impl Buffer {
    fn new(length: usize) -> Buffer {
        let bytes = vec![0u8; length].into_boxed_slice();
        Buffer {
            start: Box::into_raw(bytes).cast(),
            length,
        }
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at <= self.length && bytes.len() <= self.length - at);
        // SAFETY: the range is within the allocation, which `bytes` is no part of.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(at), bytes.len()) }
    }

    fn copy(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at <= self.length && length <= self.length - at);
        let mut copy = Vec::with_capacity(length);
        for offset in at..at + length {
            // SAFETY: the byte is within the allocation and initialised; the HCA may write it at
            // the same time, so it is read once, as it is.
            copy.push(unsafe { ptr::read_volatile(self.start.add(offset)) });
        }
        copy
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let whole = ptr::slice_from_raw_parts_mut(self.start, self.length);
        // SAFETY: `new` made it of a Box of this length, and nothing else frees it.
        drop(unsafe { Box::from_raw(whole) });
    }
}

/// In the order in which they have to end: the queue pair, what it writes to, and last the memory.
pub struct Lane {
    pair: BasicQueuePair,
    completions: Arc<BasicCompletionQueue>,
    source: Arc<MemoryRegion>,
    target: Arc<MemoryRegion>,
    sent_from: Buffer,
    written_to: Buffer,
    packet: u32,
}

impl Lane {
    /// A queue pair of that port that takes writes; `packet` is the number of its first packet.
    pub fn open(device: &Device, port: u8, room: Room, packet: u32) -> io::Result<Lane> {
        let context = &device.0;
        // A protection domain of its own: another lane's key opens nothing here.
        let domain = context.alloc_pd().map_err(|e| cause(&e))?;
        let (sent_from, written_to) = (Buffer::new(room.bytes), Buffer::new(room.bytes));
        let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
        // SAFETY: both buffers are as long as is said, and outlive the regions: a lane drops its
        // queue pair and its regions first.
        let (source, target) = unsafe {
            (
                domain.reg_mr(sent_from.start.addr(), room.bytes, AccessFlags::LocalWrite),
                domain.reg_mr(written_to.start.addr(), room.bytes, access),
            )
        };
        let source = source.map_err(|e| cause(&e))?;
        let target = target.map_err(|e| cause(&e))?;
        let mut builder = context.create_cq_builder();
        let completions = builder.setup_cqe(room.sends + room.receives + 1).build();
        let completions = completions.map_err(|e| cause(&e))?;
        let queue = GenericCompletionQueue::from(Arc::clone(&completions));
        let mut builder = domain.create_qp_builder();
        let pair = builder
            .setup_send_cq(queue.clone())
            .setup_recv_cq(queue)
            .setup_max_send_wr(room.sends)
            .setup_max_recv_wr(room.receives)
            .build();
        let mut lane = Lane {
            pair: pair.map_err(|e| cause(&e))?,
            completions,
            source,
            target,
            sent_from,
            written_to,
            packet: packet & 0xff_ffff,
        };
        let mut init = QueuePairAttribute::new();
        init.setup_state(QueuePairState::Init)
            .setup_pkey_index(0)
            .setup_port(port)
            .setup_access_flags(access);
        lane.pair.modify(&init).map_err(|e| cause(&e))?;
        let mut receives = lane.pair.start_post_recv();
        for _ in 0..room.receives {
            // A write with a number takes a receive, and no memory of it.
            let _ = receives.construct_wr(RECEIVE);
        }
        receives.post().map_err(|e| cause(&e))?;
        Ok(lane)
    }

    pub fn queue_pair(&self) -> u32 {
        self.pair.qp_number()
    }

    pub fn packet(&self) -> u32 {
        self.packet
    }

    pub fn memory(&self) -> Memory {
        Memory {
            address: self.written_to.start.addr() as u64,
            key: self.target.rkey(),
        }
    }

    /// Connects both directions. The kernel looks for the neighbour, which may take a second.
    pub fn connect(&mut self, path: &Path, to: &Address) -> io::Result<()> {
        let mut handle = AddressHandleAttribute::new();
        handle
            .setup_dest_lid(to.lid)
            .setup_service_level(path.service_level)
            .setup_port(path.port);
        if path.is_global {
            let gid = Gid::from(to.gid);
            handle.setup_grh(&gid, 0, path.gid_index, 255, path.traffic_class);
        }
        let mut receive = QueuePairAttribute::new();
        receive
            .setup_state(QueuePairState::ReadyToReceive)
            .setup_path_mtu(mtu(path.mtu)?)
            .setup_dest_qp_num(to.queue_pair & 0xff_ffff)
            .setup_rq_psn(to.packet & 0xff_ffff)
            .setup_max_dest_read_atomic(1)
            .setup_min_rnr_timer(12)
            .setup_address_vector(&handle);
        self.pair.modify(&receive).map_err(|e| cause(&e))?;
        let mut send = QueuePairAttribute::new();
        send.setup_state(QueuePairState::ReadyToSend)
            .setup_sq_psn(self.packet)
            .setup_timeout(path.timeout)
            .setup_retry_cnt(path.retries)
            .setup_rnr_retry(7)
            .setup_max_read_atomic(1);
        self.pair.modify(&send).map_err(|e| cause(&e))
    }

    /// What the next writes take from there.
    pub fn fill(&mut self, at: usize, bytes: &[u8]) {
        self.sent_from.put(at, bytes);
    }

    /// What the other end has written there.
    pub fn written(&self, at: usize, length: usize) -> Vec<u8> {
        self.written_to.copy(at, length)
    }

    /// Writes a part of this end's memory to the same place of the other's; with a number, the
    /// other end hears of it.
    pub fn write(
        &mut self,
        id: u64,
        (at, length): (usize, u32),
        to: &Memory,
        number: Option<u32>,
    ) -> io::Result<()> {
        let end = at.checked_add(length as usize);
        if end.is_none_or(|end| end > self.sent_from.length) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let place = to.address.wrapping_add(at as u64);
        let mut guard = self.pair.start_post_send();
        let request = guard.construct_wr(id & !RECEIVE, WorkRequestFlags::Signaled);
        let request = match number {
            Some(number) => request.setup_write_imm(to.key, place, number.to_be()),
            None => request.setup_write(to.key, place),
        };
        // SAFETY: the range is within `sent_from` (checked above), which lives until the queue
        // pair has ended.
        unsafe {
            let from = self.sent_from.start.add(at).addr() as u64;
            request.setup_sge(self.source.lkey(), from, length);
        }
        guard.post().map_err(|e| cause(&e))
    }

    /// What has ended since the last call.
    pub fn ended(&mut self) -> Vec<Ended> {
        let mut ended = Vec::new();
        let Ok(mut poller) = self.completions.start_poll() else {
            return ended;
        };
        for completion in &mut poller {
            ended.push(match completion.status() {
                0 if completion.wr_id() & RECEIVE != 0 => {
                    Ended::Received(u32::from_be(completion.imm_data()))
                }
                0 => Ended::Sent(completion.wr_id()),
                status => Ended::Failed {
                    status,
                    vendor: completion.vendor_err(),
                },
            });
        }
        ended
    }
}

fn mtu(code: u8) -> io::Result<Mtu> {
    Ok(match code {
        1 => Mtu::Mtu256,
        2 => Mtu::Mtu512,
        3 => Mtu::Mtu1024,
        4 => Mtu::Mtu2048,
        5 => Mtu::Mtu4096,
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_gives_back_what_it_was_given() {
        let buffer = Buffer::new(16);
        buffer.put(8, b"12345678");
        assert_eq!(buffer.copy(0, 16), b"\0\0\0\0\0\0\0\x0012345678");
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn nothing_is_read_behind_a_buffer() {
        Buffer::new(16).copy(9, 8);
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn nothing_is_written_behind_a_buffer() {
        Buffer::new(16).put(9, b"12345678");
    }

    #[test]
    fn mtus_have_the_numbers_of_verbs() {
        assert_eq!(mtu(5).map(|mtu| mtu as u32).ok(), Some(5));
        assert!(mtu(0).is_err() && mtu(6).is_err());
    }
}
