//! What NCCL sets of its queue pairs (src/transport/net_ib/connect.cc, `ncclIbRtrQp` and
//! `ncclIbRtsQp`, in 2.30.7).

use std::time::Duration;

use super::hca::parameter;
use super::settings::Settings;
use super::version::Version;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePair {
    /// NCCL_IB_TC.
    pub traffic_class: u8,
    /// NCCL_IB_SL.
    pub service_level: u8,
    /// NCCL_IB_TIMEOUT: 4.096 µs times two to this power.
    pub timeout: u8,
    /// NCCL_IB_RETRY_CNT.
    pub retries: u8,
}

impl QueuePair {
    pub fn of(settings: &Settings, version: Version) -> QueuePair {
        // The fields have 8 bits in verbs; negative numbers are defaults.
        let byte = |name: &str, default: i64| {
            let value = parameter(settings, version, name, default);
            (if value < 0 { default } else { value }) as u8
        };
        QueuePair {
            traffic_class: byte("NCCL_IB_TC", 0),
            service_level: byte("NCCL_IB_SL", 0),
            timeout: byte("NCCL_IB_TIMEOUT", 20),
            retries: byte("NCCL_IB_RETRY_CNT", 7),
        }
    }

    /// After how long without an answer a queue pair fails, as far as the HCA keeps to it; `None`:
    /// never.
    pub fn gives_up_after(&self) -> Option<Duration> {
        let power = u32::from(self.timeout & 31);
        let once = Duration::from_nanos(4096 << power);
        (power > 0).then(|| once * (u32::from(self.retries & 7) + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(env: &[(&str, &str)]) -> QueuePair {
        let settings = Settings::of(env.iter().copied(), "the environment");
        QueuePair::of(&settings, Version::NEWEST)
    }

    #[test]
    fn settings_are_those_of_the_environment_or_nccls_own() {
        let plain = QueuePair {
            traffic_class: 0,
            service_level: 0,
            timeout: 20,
            retries: 7,
        };
        assert_eq!(of(&[]), plain);
        assert_eq!(of(&[("NCCL_IB_SL", "-1"), ("NCCL_IB_TC", "")]), plain);
        let set = of(&[
            ("NCCL_IB_TC", "106"),
            ("NCCL_IB_SL", "3"),
            ("NCCL_IB_TIMEOUT", "22"),
            ("NCCL_IB_RETRY_CNT", "1"),
        ]);
        assert_eq!((set.traffic_class, set.service_level), (106, 3));
        assert_eq!((set.timeout, set.retries), (22, 1));
    }

    #[test]
    fn a_queue_pair_gives_up_after_all_its_tries() {
        // 4.3 s, eight times.
        let plain = of(&[]).gives_up_after().unwrap();
        assert_eq!(plain.as_secs(), 34);
        let short = of(&[("NCCL_IB_TIMEOUT", "14"), ("NCCL_IB_RETRY_CNT", "0")]);
        assert_eq!(short.gives_up_after().unwrap().as_millis(), 67);
        assert_eq!(of(&[("NCCL_IB_TIMEOUT", "0")]).gives_up_after(), None);
    }
}
