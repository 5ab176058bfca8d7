//! Pods that share a claim: its rails are one pod's at a time. The kubelet does not ask again when
//! the next one starts.

use std::collections::BTreeMap;

use rdmaprep::store::claims::{Binding, Named};

/// A bound claim as it is by now.
pub struct Shared {
    pub binding: Binding,
    /// For which it is reserved.
    pub pods: Vec<Named>,
    /// Whether a container has a rail of it.
    pub is_used: bool,
}

impl Shared {
    /// One that has ended may still be named.
    fn candidates(&self) -> impl Iterator<Item = &Named> {
        self.pods
            .iter()
            .filter(|pod| !self.binding.has_ended_for(pod))
    }

    fn is_for(&self, pod: &Named) -> bool {
        self.candidates().any(|candidate| candidate == pod)
    }

    /// Its pod, if that goes on.
    fn current(&self) -> Option<&Named> {
        self.binding.pod.as_ref().filter(|pod| self.is_for(pod))
    }
}

/// The claims that are another pod's from now on, and which one's. A pod gets all of its claims or
/// none: two that have one each of the two that both need would wait for ever.
pub fn turns(all: &[Shared]) -> Vec<(&Binding, &Named)> {
    let of = |pod: &Named| {
        all.iter()
            .filter(|shared| shared.is_for(pod))
            .collect::<Vec<_>>()
    };
    let has_all = |pod: &Named| of(pod).iter().all(|s| s.current() == Some(pod));
    let mut given: BTreeMap<&str, &Named> = BTreeMap::new();
    for shared in all.iter().filter(|shared| shared.is_used) {
        given.extend(
            shared
                .current()
                .map(|pod| (shared.binding.claim.uid.as_str(), pod)),
        );
    }
    let mut pods: Vec<&Named> = all.iter().flat_map(Shared::candidates).collect();
    pods.sort_by_key(|pod| (!has_all(pod), pod.uid.as_str()));
    for pod in pods {
        let uids: Vec<&str> = of(pod)
            .iter()
            .map(|s| s.binding.claim.uid.as_str())
            .collect();
        if uids
            .iter()
            .all(|uid| given.get(uid).is_none_or(|has| *has == pod))
        {
            given.extend(uids.into_iter().map(|uid| (uid, pod)));
        }
    }
    let changes = all.iter().filter_map(|shared| {
        let turn = given.get(shared.binding.claim.uid.as_str()).copied();
        let turn = turn.or_else(|| shared.current().or(shared.candidates().next()))?;
        let is_its = shared.current() == Some(turn);
        (!is_its).then_some((&shared.binding, turn))
    });
    changes.collect()
}

/// Whose claims are prepared: all of a call are one pod's.
pub fn caller(claims: &[&[Named]], ended: &[&Named]) -> Option<Named> {
    let (first, others) = claims.split_first()?;
    let is_common = |pod: &&Named| others.iter().all(|pods| pods.contains(pod));
    let common: Vec<&Named> = first.iter().filter(is_common).collect();
    let going = common.iter().find(|pod| !ended.contains(pod));
    going.or(common.first()).map(|pod| (*pod).clone())
}

#[cfg(test)]
mod tests {
    use super::{Named, Shared, caller, turns};
    use rdmaprep::store::claims::{Binding, SCHEMA};

    fn pod(uid: &str) -> Named {
        Named {
            name: format!("pod-{uid}"),
            uid: uid.to_owned(),
        }
    }

    fn shared(claim: &str, has: &str, pods: &[&str]) -> Shared {
        let binding = Binding {
            schema: SCHEMA,
            boot_id: String::new(),
            namespace: "jobs".to_owned(),
            claim: pod(claim),
            pod: Some(pod(has)),
            rails: Vec::new(),
            ended: false,
            past: Vec::new(),
        };
        Shared {
            binding,
            pods: pods.iter().map(|uid| pod(uid)).collect(),
            is_used: false,
        }
    }

    fn said(all: &[Shared]) -> Vec<(&str, &str)> {
        let turns = turns(all).into_iter();
        turns
            .map(|(b, pod)| (b.claim.uid.as_str(), pod.uid.as_str()))
            .collect()
    }

    #[test]
    fn claim_goes_to_the_next_when_its_pod_is_gone() {
        assert!(said(&[shared("s", "1", &["1", "2"])]).is_empty());
        assert_eq!(said(&[shared("s", "1", &["3", "2"])]), [("s", "2")]);
        assert!(said(&[shared("s", "1", &[])]).is_empty());
        let mut ended = shared("s", "1", &["1", "2"]);
        ended.binding.ended = true;
        (ended.is_used, ended.pods) = (true, vec![pod("1"), pod("2")]);
        assert_eq!(said(&[ended]), [("s", "2")]);
        let mut ended = shared("s", "1", &["1"]);
        ended.binding.ended = true;
        assert!(said(&[ended]).is_empty());
    }

    /// Each has one of two, and both need both.
    #[test]
    fn two_pods_do_not_wait_for_each_other() {
        let both = ["2", "3"];
        let all = [shared("s", "1", &both), shared("t", "3", &both)];
        assert_eq!(said(&all), [("s", "2"), ("t", "2")]);
        let mut all = all;
        all[1].is_used = true;
        assert_eq!(said(&all), [("s", "3")]);
        // One that has what it needs goes on.
        let all = [shared("s", "3", &both), shared("t", "3", &both)];
        assert!(said(&all).is_empty());
    }

    #[test]
    fn call_is_of_the_pod_that_all_its_claims_name() {
        let (shared, own) = ([pod("1"), pod("2")], [pod("2")]);
        assert_eq!(caller(&[&shared, &own], &[]), Some(pod("2")));
        assert_eq!(caller(&[&shared], &[]), Some(pod("1")));
        assert_eq!(caller(&[&shared], &[&pod("1")]), Some(pod("2")));
        assert_eq!(caller(&[&own], &[&pod("2")]), Some(pod("2")));
        assert_eq!(caller(&[&[], &own], &[]), None);
    }
}
