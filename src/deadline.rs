//! How long a hook may take. A NIC took 22 to 37 ms to move in and 28 to 52 ms to return, on two
//! cores with six times as much to do (64 to 512 veths). Hardware opens its channels one after the
//! other when it goes up: on ConnectX-7 5.8 to 7.3 ms for each of 63 (Linux's merge "mlx5e: save
//! per-channel async ICOSQ in default" of January 2026). 100 ms are reckoned for each NIC and 10
//! for each channel, both ways.

use std::time::Duration;

use rdma_model::moved_nic::MovedNic;
use rdma_model::nic::Nic;

/// Seconds that an engine gives to a hook, at the least.
const TIMEOUT: u32 = 60;
/// Seconds that a hook takes of these without --deadline: a port may take as long to come up.
const PORT: u32 = 50;

/// What a NIC's move may take.
const EACH: Duration = Duration::from_millis(100);
/// Channels that take as long.
const CHANNELS: u32 = 10;

/// How many NICs without channels would take as long; each item is one NIC's number of channels.
pub fn weight(channels: impl Iterator<Item = Option<u32>>) -> usize {
    let one = |channels: Option<u32>| 1 + channels.unwrap_or(0) / CHANNELS;
    channels
        .map(one)
        .sum::<u32>()
        .try_into()
        .unwrap_or(usize::MAX)
}

pub fn weight_of(nics: &[Nic]) -> usize {
    weight(nics.iter().map(|nic| nic.channels))
}

pub fn weight_of_moved(held: &[MovedNic]) -> usize {
    weight(held.iter().map(|held| held.nic.channels))
}

/// What the moves of these take, one way.
pub fn moves(held: &[MovedNic]) -> Duration {
    EACH * u32::try_from(weight_of_moved(held)).unwrap_or(u32::MAX)
}

/// What the kernel takes to open channels, about.
pub fn opening(channels: u32) -> Duration {
    Duration::from_micros(7300) * channels
}

pub fn attach(weight: usize) -> u32 {
    10 + each(weight)
}

/// Seconds that their undo takes. A NIC that is cut off halfway costs more than waiting a little
/// less for a port.
fn undo(weight: usize) -> u32 {
    5 + each(weight)
}

fn each(weight: usize) -> u32 {
    u32::try_from(weight.div_ceil(10)).unwrap_or(3600).min(3600)
}

/// The timeout that an engine has to keep for hooks of NICs of that weight: their deadline and the
/// undo after it fit in.
pub fn timeout(weight: usize) -> u32 {
    TIMEOUT.max(attach(weight) + undo(weight))
}

/// The deadline that leaves the time for an undo before an engine's timeout ends the hook.
pub fn before(timeout: u32, weight: usize) -> u32 {
    timeout.saturating_sub(undo(weight).min(timeout / 2)).max(1)
}

/// The deadline of a hook: --deadline; else what its engine's timeout leaves, and no longer than a
/// port may take or its NICs need; else what these need.
pub fn for_hook(given: Option<u32>, timeout: Option<u32>, weight: usize) -> u32 {
    match (given, timeout) {
        (Some(given), _) => given,
        (None, Some(timeout)) => before(timeout, weight).min(PORT.max(attach(weight))),
        (None, None) => attach(weight),
    }
}

/// No engine ends `rdmaprep hold`.
pub fn hold(given: Option<u32>, weight: usize) -> u32 {
    given.unwrap_or_else(|| TIMEOUT.max(attach(weight)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_and_its_undo_fit_into_the_timeout() {
        for nics in [0, 1, 8, 64, 256, 512, 1024] {
            for timeout in [timeout(nics), 300] {
                let deadline = for_hook(None, Some(timeout), nics);
                assert!(
                    deadline + undo(nics) <= timeout,
                    "{nics} NICs: {deadline} of {timeout} s"
                );
                assert!(
                    deadline >= attach(nics),
                    "{nics} NICs: {deadline} of {timeout} s"
                );
            }
        }
    }

    #[test]
    fn a_nic_with_many_channels_counts_as_several() {
        assert_eq!(weight([None, Some(9), Some(63)].into_iter()), 1 + 1 + 7);
        let rails = weight([Some(63); 64].into_iter());
        let needed = (opening(63) * 64).as_secs() as u32;
        assert!(attach(rails) > needed && undo(rails) > needed);
    }

    #[test]
    fn few_nics_have_what_they_had() {
        assert_eq!(
            (timeout(8), before(60, 8), for_hook(None, None, 0)),
            (60, 54, 10)
        );
        assert_eq!(
            (
                for_hook(None, Some(60), 50),
                for_hook(None, Some(300), 8),
                for_hook(Some(7), Some(300), 512)
            ),
            (50, 50, 7)
        );
        assert_eq!(
            (
                timeout(512),
                before(timeout(512), 512),
                for_hook(None, None, 512),
                hold(None, 512)
            ),
            (119, 62, 62, 62)
        );
    }
}
