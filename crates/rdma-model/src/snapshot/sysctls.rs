//! A NIC's sysctls and the settings of its device: some 200, and the same ones for most NICs of a
//! host.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde::{Deserialize, Serialize};

type Map = BTreeMap<String, String>;

/// Maps that were made last: where another one is equal to one of these, both are one in memory. A
/// host has few kinds of NICs.
static KNOWN: Mutex<Vec<Weak<Map>>> = Mutex::new(Vec::new());
const KINDS: usize = 16;

/// Per-device sysctls by `ipv4/conf/<leaf>`, `ipv6/conf/<leaf>`, `ipv4/neigh/<leaf>`,
/// `ipv6/neigh/<leaf>`, or device settings by their names. A copy shares them until it is changed:
/// with 512 NICs each copy would take 12 MB.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Map")]
pub struct SysctlValues(Arc<Map>);

impl SysctlValues {
    pub fn keep_named(&mut self, other: &SysctlValues) {
        // A map that loses nothing stays shared.
        if !Arc::ptr_eq(&self.0, &other.0) && self.0.keys().any(|key| !other.0.contains_key(key)) {
            self.retain(|key, _| other.0.contains_key(key));
        }
    }
}

impl From<SysctlValues> for Map {
    fn from(values: SysctlValues) -> Map {
        Arc::unwrap_or_clone(values.0)
    }
}

impl From<Map> for SysctlValues {
    fn from(map: Map) -> SysctlValues {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = known
            .iter()
            .filter_map(Weak::upgrade)
            .find(|one| **one == map)
        {
            return SysctlValues(same);
        }
        let new = Arc::new(map);
        known.retain(|one| one.strong_count() > 0);
        if known.len() == KINDS {
            known.remove(0);
        }
        known.push(Arc::downgrade(&new));
        SysctlValues(new)
    }
}

impl FromIterator<(String, String)> for SysctlValues {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(all: I) -> SysctlValues {
        Map::from_iter(all).into()
    }
}

impl Deref for SysctlValues {
    type Target = Map;
    fn deref(&self) -> &Map {
        &self.0
    }
}

impl DerefMut for SysctlValues {
    fn deref_mut(&mut self) -> &mut Map {
        // A weak reference does not keep it: the last owner moves it instead of making a copy.
        Arc::make_mut(&mut self.0)
    }
}

impl<'a> IntoIterator for &'a SysctlValues {
    type Item = (&'a String, &'a String);
    type IntoIter = std::collections::btree_map::Iter<'a, String, String>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl Serialize for SysctlValues {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(value: &str) -> Map {
        Map::from([("ipv4/conf/arp_filter".to_owned(), value.to_owned())])
    }

    #[test]
    fn equal_values_are_shared_until_one_changes() {
        let (one, mut other): (SysctlValues, SysctlValues) =
            (map("shared").into(), map("shared").into());
        assert!(Arc::ptr_eq(&one.0, &other.0));
        other.keep_named(&one);
        assert!(Arc::ptr_eq(&one.0, &other.0));
        other.insert("ipv4/conf/arp_filter".to_owned(), "1".to_owned());
        assert_eq!(
            (
                one.values().next().unwrap().as_str(),
                other.values().next().unwrap().as_str()
            ),
            ("shared", "1")
        );
        other.keep_named(&SysctlValues::default());
        assert!(other.is_empty());
        // What has changed is not what the next equal one is.
        assert_eq!(*SysctlValues::from(map("shared")), map("shared"));
    }

    #[test]
    fn values_are_read_and_written_as_a_map() {
        let text = r#"{"ipv4/conf/rp_filter":"2"}"#;
        let values: SysctlValues = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&values).unwrap(), text);
    }
}
