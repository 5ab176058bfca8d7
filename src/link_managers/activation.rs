//! Which of its profiles NetworkManager has active on a link, and what it is asked to have there.
//! It takes a link that returns for a new one, and activates by itself what an administrator had
//! ended, and not what was activated by hand.

use std::path::PathBuf;

use anyhow::{Context, Result};
use rdma_model::snapshot::Netdev;
use rustbus::wire::ObjectPath;
use rustbus::wire::unmarshal::traits::Variant;

use super::Word;
use super::bus::{Bus, Callee};
use super::network_manager::{
    ACTIVATED, ACTIVE, DEVICE, DISCONNECTED, GENERATED, MANAGER, NAME, PROFILE, Profile, active_on,
    device, flag, is_external, number, object, object_in, own_profile_of, path_in, property,
    settings, string, word,
};

const PROFILES: Callee<'static> = Callee {
    name: NAME,
    path: "/org/freedesktop/NetworkManager/Settings",
    interface: "org.freedesktop.NetworkManager.Settings",
};
/// NM_DEVICE_STATE_REASON_USER_REQUESTED.
const BY_USER: u32 = 39;

fn active(bus: &mut Bus, link: &Netdev) -> Result<String> {
    let path = device(bus, link)?;
    active_on(bus, &path)
}

/// Its activation of a link, by a name that no other one has.
pub fn activation(bus: &mut Bus, link: &Netdev) -> Result<String> {
    let active = active(bus, link)?;
    Ok(format!("{} {active}", bus.owner(NAME)?))
}

/// The file of the profile that is active on a link; none of what it has found there.
pub fn profile(bus: &mut Bus, link: &Netdev) -> Result<PathBuf> {
    let device = device(bus, link)?;
    let profile = own_profile_of(bus, &device)?;
    Ok(string(bus, &profile, PROFILE, "Filename")?.into())
}

/// The profile that is active on a link.
pub fn uuid(bus: &mut Bus, link: &Netdev) -> Result<String> {
    let active = active(bus, link)?;
    string(bus, &active, ACTIVE, "Uuid")
}

/// Activates a profile on a link that has another one, or none.
pub fn activate(bus: &mut Bus, link: &Netdev, uuid: &str) -> Result<()> {
    let device = device(bus, link)?;
    let profile = path_in(&bus.call(PROFILES, "GetConnectionByUuid", &[uuid])?)?;
    let paths = [profile.as_str(), &device, "/"].map(ObjectPath::new);
    let [profile, device, none] = paths;
    bus.call(MANAGER, "ActivateConnection", &[profile?, device?, none?])
        .map(drop)
}

/// Whether someone had it end what was active on a link.
pub fn is_ended(bus: &mut Bus, link: &Netdev) -> bool {
    device(bus, link).is_ok_and(|path| is_ended_on(bus, &path))
}

fn is_ended_on(bus: &mut Bus, path: &str) -> bool {
    let Ok(answer) = property(bus, path, DEVICE, "StateReason") else {
        return false;
    };
    let reason = answer.body.parser().get::<Variant>();
    reason.is_ok_and(|r| r.get::<(u32, u32)>() == Ok((DISCONNECTED, BY_USER)))
}

/// The profiles that it could activate on a link, where an administrator keeps it from that or has
/// configured the link beside it.
pub fn ended(bus: &mut Bus, link: &Netdev) -> Result<Vec<String>> {
    let path = device(bus, link)?;
    let is_kept = match number(bus, &path, DEVICE, "State")? {
        ACTIVATED => is_external(bus, &path).is_ok_and(|is| is),
        DISCONNECTED => is_ended_on(bus, &path) || !flag(bus, &path, DEVICE, "Autoconnect")?,
        _ => false,
    };
    if !is_kept {
        return Ok(Vec::new());
    }
    let answer = property(bus, &path, DEVICE, "AvailableConnections")?;
    let profiles: Vec<ObjectPath<&str>> = answer.body.parser().get::<Variant>()?.get()?;
    let profiles: Vec<String> = profiles.iter().map(|p| p.as_ref().to_owned()).collect();
    profiles
        .iter()
        .map(|profile| uuid_of(bus, profile))
        .collect()
}

fn uuid_of(bus: &mut Bus, profile: &str) -> Result<String> {
    let answer = settings(bus, profile)?;
    let settings: Profile = answer.body.parser().get()?;
    let uuid = settings.get("connection").and_then(|c| c.get("uuid"));
    Ok(uuid
        .context("a profile without UUID")?
        .get::<&str>()?
        .into())
}

/// Keeps it from a link for which it has no profile but those that had been ended. It makes one of
/// its own, which asks for a lease and deletes all that is there when none comes
/// (`no-auto-default` in NetworkManager.conf(5)).
/// [`Word::NotBegun`] until it has decided, [`Word::Configuring`] until it has let go.
pub fn keep_off(bus: &mut Bus, link: &Netdev, ended: &[String]) -> Word {
    let Ok(path) = device(bus, link) else {
        return Word::NotBegun;
    };
    let callee = Callee {
        name: NAME,
        path: &path,
        interface: DEVICE,
    };
    // What fails is tried again.
    if !ended.is_empty() {
        let _ = bus.set_flag(callee, "Autoconnect", false);
    }
    let word = word(bus, link);
    if !matches!(word, Word::Configuring | Word::Done) {
        return word;
    }
    match is_unwanted(bus, &path, ended) {
        Some(true) => {
            let _ = bus.call::<u32>(callee, "Disconnect", &[]);
            Word::Configuring
        }
        Some(false) => Word::Unmanaged,
        None => Word::NotBegun,
    }
}

/// Whether the profile that it activates is one that it made itself, or had been ended; nothing
/// while it activates none.
fn is_unwanted(bus: &mut Bus, path: &str, ended: &[String]) -> Option<bool> {
    let active = object(bus, path, "ActiveConnection")?;
    let profile = object_in(bus, &active, ACTIVE, "Connection")?;
    let flags = number(bus, &profile, PROFILE, "Flags").ok()?;
    let uuid = string(bus, &active, ACTIVE, "Uuid").ok()?;
    Some(flags & GENERATED != 0 || ended.contains(&uuid))
}
