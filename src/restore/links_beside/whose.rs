//! Whose a link on a device below a NIC is.

use std::collections::BTreeSet;

use rdma_model::ids::IfName;
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::Stranger;

use crate::kernel::netns::search::{FoundLink, Processes};
use crate::record::Record;
use crate::restore::locate::{has_its_address, is_moved_on};

/// What a link on the device below is.
pub(super) enum Whose<'a> {
    /// A NIC of the record, which was moved on.
    MovedOn(&'a MovedNic),
    /// In the container's namespace.
    Own,
    /// Where a CNI plugin has put it.
    Given,
    /// In the container's namespace, where its engine may have put it.
    MayBeGiven,
    /// Another container's.
    Others,
    /// In another container's namespace, while this NIC is missing.
    MayBe(&'a MovedNic),
    Unknown,
}

/// A NIC that is no hardware, and is not in the container's namespace any more.
pub(super) struct Absent<'a> {
    pub(super) held: &'a MovedNic,
    /// Whether no restore had made it on the host, and it was not found elsewhere.
    pub(super) is_lost: bool,
}

/// Whether it is a NIC of one of these records, in its place.
pub(super) fn is_of(records: &[Record], link: &Stranger) -> bool {
    let mut there = records.iter().filter(|r| r.netns == link.netns);
    there.any(|r| r.held.iter().any(|h| is_nic_inside(h, link)))
}

/// Whether it was there before the container, or is the NIC of a record.
pub(super) fn is_expected(
    link: &Stranger,
    (record, others): (&Record, &[Record]),
    in_place: &BTreeSet<u32>,
) -> bool {
    let mut beside = record.held.iter().flat_map(|h| &h.beside);
    beside.any(|s| (s.netns, s.ifindex) == (link.netns, link.ifindex))
        || link.netns == record.netns && in_place.contains(&link.ifindex)
        || is_of(others, link)
}

/// Whether a link of its container's namespace is that NIC: root there cannot change its index.
fn is_nic_inside(held: &MovedNic, link: &Stranger) -> bool {
    let has_its_index = link.ifindex == held.inside.netdev.ifindex;
    has_its_index && link.kind == held.before.netdev.kind || is_moved_on(held, link)
}

fn is_on(held: &MovedNic, card: &IfName) -> bool {
    held.nic.over.as_ref() == Some(card)
}

/// Whose namespace it is in does not say whose the link is: a container may put its own there.
pub(super) fn whose<'a>(
    found: &FoundLink,
    card: &IfName,
    (record, others): (&'a Record, &[Record]),
    (absent, container): (&[Absent<'a>], &Processes),
) -> Whose<'a> {
    let link = &found.link;
    if link.netns == record.netns {
        return match found {
            _ if found.is_of_cni() => Whose::Given,
            _ if found.may_be_of_engine(container) => Whose::MayBeGiven,
            _ => Whose::Own,
        };
    }
    let mut on_card = absent.iter().filter(|nic| is_on(nic.held, card));
    if let Some(nic) = on_card.clone().find(|nic| is_moved_on(nic.held, link)) {
        return Whose::MovedOn(nic.held);
    }
    if found.is_of_cni() {
        return Whose::Given;
    }
    let began = record.members.iter().map(|m| m.start_time).min();
    let is_anothers = others.iter().any(|r| r.netns == link.netns)
        || found.is_anothers(container)
        || began.is_some_and(|began| found.is_older_than(began));
    let may_be = on_card.find(|nic| {
        let is_same_kind = nic.held.before.netdev.kind == link.kind;
        is_same_kind && nic.is_lost || has_its_address(nic.held, link)
    });
    match may_be {
        Some(nic) => Whose::MayBe(nic.held),
        None if is_anothers && !found.is_fed_from_inside => Whose::Others,
        None => Whose::Unknown,
    }
}
