//! The transport over an RDMA stack: RC queue pairs with NCCL's attributes, on the program's own
//! clock, since soft-RoCE repeats a packet for ever.

mod programme;

use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use rdma_model::ids::Mac;
use rdma_verbs::{Address, Device, Lane, Memory, Path, Port};

use crate::addresses::ip;
use crate::transport::{Far, Fault, LaneEnd, LaneId, Moved, Outcome, RailEnd, Transport, Why};
use programme::{Programme, ROOM_CROSSED, room};

/// No route, no neighbour, or no answer from one (ib_resolve_eth_dmac() in
/// drivers/infiniband/core/verbs.c): ENETUNREACH, ETIMEDOUT, EHOSTUNREACH.
const NO_NEIGHBOUR: [i32; 3] = [101, 110, 113];

/// A rail of this node, open.
pub struct Rail {
    pub device: Device,
    pub hca: String,
    pub port: u8,
    pub is_ethernet: bool,
    pub gid_index: u8,
    pub gid: Ipv6Addr,
    pub mac: Option<Mac>,
}

/// What NCCL sets of a queue pair, and the program's own limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    pub traffic_class: u8,
    pub service_level: u8,
    pub timeout: u8,
    pub retries: u8,
    /// How long nothing may happen on a lane.
    pub limit: Duration,
    /// How long the rate is measured.
    pub flow: Duration,
}

/// What the host says of another's address behind one of its rails.
pub trait Look {
    /// The entry for it: no MAC where there is none that works.
    fn neighbour(&self, rail: usize, address: IpAddr) -> Option<Option<Mac>>;

    fn counters(&self) -> Vec<Moved>;
}

struct Slot {
    id: LaneId,
    lane: Option<Lane>,
    far: Option<Far>,
    programme: Programme,
}

pub struct Verbs<'a> {
    rails: Vec<Rail>,
    settings: Settings,
    look: &'a dyn Look,
    counted: Vec<Moved>,
    slots: Vec<Slot>,
    /// Of the round before: its partner may still repeat its last packet.
    before: Vec<Slot>,
    packet: u32,
}

impl<'a> Verbs<'a> {
    /// `packet` is random: the first number of packets of the first lane.
    pub fn new(rails: Vec<Rail>, settings: Settings, look: &'a dyn Look, packet: u32) -> Verbs<'a> {
        Verbs {
            rails,
            settings,
            look,
            counted: look.counters(),
            slots: Vec::new(),
            before: Vec::new(),
            packet,
        }
    }

    fn port(&self, rail: usize) -> Option<Port> {
        let rail = self.rails.get(rail)?;
        rail.device.port(rail.port).ok()
    }

    fn path(&self, rail: &Rail, mtu: u8) -> Path {
        Path {
            port: rail.port,
            is_global: rail.is_ethernet,
            gid_index: rail.gid_index,
            mtu,
            traffic_class: self.settings.traffic_class,
            service_level: self.settings.service_level,
            timeout: self.settings.timeout,
            retries: self.settings.retries,
        }
    }

    /// What the host knows better than a completion's status.
    fn refined(&self, slot: &Slot, fault: Fault) -> Fault {
        let place = usize::from(slot.id.0);
        if self.port(place).is_none_or(|port| !port.is_active) {
            return Fault {
                why: Why::PortDown,
                ..fault
            };
        }
        let (Some(rail), Some(far)) = (self.rails.get(place), &slot.far) else {
            return fault;
        };
        if !rail.is_ethernet {
            return fault;
        }
        let now = rail.device.gid(rail.port, rail.gid_index.into()).ok();
        if now != Some(rail.gid) {
            return Fault {
                why: Why::NoGid,
                ..fault
            };
        }
        if !matches!(fault.why, Why::NoAnswer | Why::Stopped) {
            return fault;
        }
        let why = match self.look.neighbour(place, ip(far.rail.gid())) {
            Some(None) => Why::NoNeighbour,
            Some(Some(mac)) if far.rail.3.as_ref().is_some_and(|real| *real != mac) => {
                Why::WrongNeighbour
            }
            _ => fault.why,
        };
        Fault { why, ..fault }
    }

    fn open_one(&mut self, id: LaneId) -> Result<(Lane, LaneEnd), Fault> {
        let flow = self.settings.flow;
        let room = if id.is_straight() {
            room(flow)
        } else {
            ROOM_CROSSED
        };
        self.packet = self.packet.wrapping_mul(0x9e37_79b1).wrapping_add(12345);
        let rail = self.rails.get(usize::from(id.0));
        let rail = rail.ok_or(Fault::of(Why::NoQueuePair))?;
        let opened = Lane::open(&rail.device, rail.port, room, self.packet >> 8);
        let lane = opened.map_err(|e| numbered(Why::NoQueuePair, &e))?;
        let memory = lane.memory();
        let end = LaneEnd {
            queue_pair: lane.queue_pair(),
            packet: lane.packet(),
            key: memory.key,
            address: memory.address,
        };
        Ok((lane, end))
    }
}

fn numbered(why: Why, error: &std::io::Error) -> Fault {
    let number = error.raw_os_error().unwrap_or_default();
    Fault {
        why,
        number: number.unsigned_abs(),
    }
}

impl Transport for Verbs<'_> {
    fn rails(&self) -> Vec<RailEnd> {
        let mut ends = Vec::new();
        for (place, rail) in self.rails.iter().enumerate() {
            let port = self.port(place);
            let lid = port.map_or(0, |port| port.lid);
            ends.push(RailEnd(
                rail.gid,
                if rail.is_ethernet { 0 } else { lid },
                port.map_or(0, |port| port.mtu),
                rail.mac.clone().filter(|mac| mac.0.len() <= 6),
            ));
        }
        ends
    }

    fn open(&mut self, lanes: &[LaneId]) -> Vec<Result<LaneEnd, Fault>> {
        self.before = std::mem::take(&mut self.slots);
        let mut ends = Vec::new();
        for id in lanes {
            let opened = match self.port(usize::from(id.0)) {
                Some(port) if port.is_active => self.open_one(*id),
                _ => Err(Fault::of(Why::PortDown)),
            };
            let (lane, end) = match opened {
                Ok((lane, end)) => (Some(lane), Ok(end)),
                Err(fault) => (None, Err(fault)),
            };
            self.slots.push(Slot {
                id: *id,
                lane,
                far: None,
                programme: Programme::new(*id, self.settings.flow),
            });
            ends.push(end);
        }
        ends
    }

    fn connect(&mut self, far: &[Option<Far>]) -> Vec<Option<Fault>> {
        let mtus: Vec<u8> = self.rails().iter().map(|rail| rail.2).collect();
        let mut slots = std::mem::take(&mut self.slots);
        let this = &*self;
        // The kernel looks for each neighbour while it connects, and may wait for a second.
        let results: Vec<Option<std::io::Error>> = std::thread::scope(|scope| {
            let mut parts = Vec::new();
            for (slot, far) in slots.iter_mut().zip(far) {
                let place = usize::from(slot.id.0);
                let own = mtus.get(place).copied().unwrap_or(0);
                slot.far = far.clone();
                let (Some(lane), Some(far)) = (&mut slot.lane, far) else {
                    parts.push(None);
                    continue;
                };
                let mtu = own.min(far.rail.2).max(1);
                slot.programme.fill(lane, far, mtu);
                let path = this.rails.get(place).map(|rail| this.path(rail, mtu));
                let to = Address {
                    gid: far.rail.gid(),
                    lid: far.rail.1,
                    queue_pair: far.lane.queue_pair,
                    packet: far.lane.packet,
                };
                let part = move || path.map(|path| lane.connect(&path, &to));
                parts.push(Some(scope.spawn(part)));
            }
            let ended = parts.into_iter().map(|part| part?.join().ok()??.err());
            ended.collect()
        });
        let mut faults = Vec::new();
        for (slot, error) in slots.iter_mut().zip(results) {
            let fault = error.map(|e| {
                let is_neighbour = e.raw_os_error().is_some_and(|n| NO_NEIGHBOUR.contains(&n));
                let why = if is_neighbour {
                    Why::NoNeighbour
                } else {
                    Why::NoQueuePair
                };
                this.refined(slot, numbered(why, &e))
            });
            if fault.is_some() {
                slot.far = None;
            }
            faults.push(fault);
        }
        self.slots = slots;
        faults
    }

    fn run(&mut self) -> Vec<Option<Outcome>> {
        let mut slots = std::mem::take(&mut self.slots);
        let limit = self.settings.limit;
        for straight in [true, false] {
            let now = Instant::now();
            for slot in slots
                .iter_mut()
                .filter(|slot| slot.id.is_straight() == straight)
            {
                if let (Some(lane), Some(far)) = (&mut slot.lane, &slot.far) {
                    slot.programme.start(lane, &memory(far), now);
                }
            }
            loop {
                let (mut is_quiet, mut is_over) = (true, true);
                for slot in &mut slots {
                    let (Some(lane), Some(far)) = (&mut slot.lane, &slot.far) else {
                        continue;
                    };
                    let now = Instant::now();
                    for ended in lane.ended() {
                        is_quiet = false;
                        slot.programme.take(lane, &memory(far), ended, now);
                    }
                    is_over &= slot.id.is_straight() != straight
                        || slot.programme.is_over(limit, Instant::now());
                }
                if is_over {
                    break;
                }
                if is_quiet {
                    // Soft-RoCE works on the same processors.
                    std::thread::yield_now();
                }
            }
        }
        let mut outcomes = Vec::new();
        for slot in &slots {
            outcomes.push(slot.far.as_ref().and_then(|_| {
                let sent = slot.programme.result()?;
                let sent = sent.map_err(|fault| self.refined(slot, fault));
                Some(Outcome { sent })
            }));
        }
        self.slots = slots;
        outcomes
    }

    fn close(&mut self) {
        self.slots.clear();
        self.before.clear();
    }

    fn moved(&self) -> Vec<Moved> {
        let mut moved = Vec::new();
        for now in self.look.counters() {
            let is_it = |then: &&Moved| (then.0, &then.1) == (now.0, &now.1);
            let then = self.counted.iter().find(is_it).map_or(0, |then| then.2);
            if now.2 > then {
                moved.push(Moved(now.0, now.1, now.2 - then));
            }
        }
        moved
    }
}

fn memory(far: &Far) -> Memory {
    Memory {
        address: far.lane.address,
        key: far.lane.key,
    }
}
